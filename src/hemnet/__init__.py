"""Highway Expectation-Maximization Networks: attention and segmentation in PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from hemnet.version import __version__

if TYPE_CHECKING:
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
    from hemnet.models.bundled import list_pretrained
    from hemnet.models.pretrained import from_pretrained
    from hemnet.models.registry import create_model, list_models
    from hemnet.models.segmenter import Segmenter
    from hemnet.nn.attention import EMAttention, HighwayEMAttention
    from hemnet.nn.health import BasesWarning, Health

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

# Imported when first used (PEP 562): torch and timm take seconds, and `hemnet --help` needs none.
_LAZY = {
    "BasesWarning": "hemnet.nn.health",
    "Bernoulli": "hemnet.em",
    "DiagonalGaussian": "hemnet.em",
    "EMAttention": "hemnet.nn.attention",
    "EMResult": "hemnet.em",
    "Gaussian": "hemnet.em",
    "Health": "hemnet.nn.health",
    "HighwayEMAttention": "hemnet.nn.attention",
    "Iteration": "hemnet.em",
    "Mixture": "hemnet.em",
    "Segmenter": "hemnet.models.segmenter",
    "VonMisesFisher": "hemnet.em",
    "create_model": "hemnet.models.registry",
    "e_step": "hemnet.em",
    "elbo": "hemnet.em",
    "from_pretrained": "hemnet.models.pretrained",
    "highway_em": "hemnet.em",
    "list_models": "hemnet.models.registry",
    "list_pretrained": "hemnet.models.bundled",
    "log_likelihood": "hemnet.em",
    "n_step": "hemnet.em",
    "r_step": "hemnet.em",
    "trace": "hemnet.em",
}
_PACKAGES = ("data", "em", "models", "nn")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        found = getattr(importlib.import_module(_LAZY[name]), name)
    elif name in _PACKAGES:
        found = importlib.import_module(f"hemnet.{name}")
    else:
        raise AttributeError(f"module 'hemnet' has no attribute {name!r}")
    globals()[name] = found  # not asked for again
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_PACKAGES})
