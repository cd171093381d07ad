"""Highway Expectation-Maximization Networks: attention and segmentation in PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from hemnet.em import (
    Bernoulli,
    DiagonalGaussian,
    EMResult,
    Gaussian,
    Iteration,
    Mixture,
    VonMisesFisher,
    e_step,
    elbo,
    highway_em,
    log_likelihood,
    n_step,
    r_step,
    trace,
)
from hemnet.nn.attention import EMAttention, HighwayEMAttention
from hemnet.nn.health import BasesWarning, Health
from hemnet.version import __version__

if TYPE_CHECKING:
    from hemnet.box import list_pretrained
    from hemnet.hub import from_pretrained
    from hemnet.models import create_model, list_models
    from hemnet.nn.segmenter import Segmenter

__all__ = [
    "BasesWarning",
    "Bernoulli",
    "DiagonalGaussian",
    "EMAttention",
    "EMResult",
    "Gaussian",
    "Health",
    "HighwayEMAttention",
    "Iteration",
    "Mixture",
    "Segmenter",
    "VonMisesFisher",
    "__version__",
    "create_model",
    "e_step",
    "elbo",
    "from_pretrained",
    "highway_em",
    "list_models",
    "list_pretrained",
    "log_likelihood",
    "n_step",
    "r_step",
    "trace",
]

# Imported when first used: the models need timm, which takes seconds to import.
_LAZY = {
    "Segmenter": "hemnet.nn.segmenter",
    "create_model": "hemnet.models",
    "from_pretrained": "hemnet.hub",
    "list_models": "hemnet.models",
    "list_pretrained": "hemnet.box",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'hemnet' has no attribute {name!r}")
