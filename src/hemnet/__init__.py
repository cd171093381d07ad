"""Highway Expectation-Maximization Networks: attention and segmentation in PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from hemnet.version import __version__

if TYPE_CHECKING:
    from hemnet.api import evaluate, predict, predict_files, train
    from hemnet.data.catalog import dataset_info, list_datasets, open_dataset
    from hemnet.data.dataset import SegmentationDataset
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
    from hemnet.errors import UserError
    from hemnet.inference.metrics import Evaluation
    from hemnet.inference.open_model import open_model
    from hemnet.inference.options import InferenceOptions, PredictOptions
    from hemnet.models.bundled import list_pretrained
    from hemnet.models.pretrained import from_pretrained
    from hemnet.models.registry import create_model, list_models
    from hemnet.models.segmenter import Segmenter
    from hemnet.nn.attention import EMAttention, HighwayEMAttention
    from hemnet.nn.health import BasesWarning, Health
    from hemnet.training.config import TrainConfig
    from hemnet.training.loop import TrainResult

__all__ = [
    "BasesWarning",
    "Bernoulli",
    "DiagonalGaussian",
    "EMAttention",
    "EMResult",
    "Evaluation",
    "Gaussian",
    "Health",
    "HighwayEMAttention",
    "InferenceOptions",
    "Iteration",
    "Mixture",
    "PredictOptions",
    "SegmentationDataset",
    "Segmenter",
    "TrainConfig",
    "TrainResult",
    "UserError",
    "VonMisesFisher",
    "__version__",
    "create_model",
    "dataset_info",
    "e_step",
    "elbo",
    "evaluate",
    "from_pretrained",
    "highway_em",
    "list_datasets",
    "list_models",
    "list_pretrained",
    "log_likelihood",
    "n_step",
    "open_dataset",
    "open_model",
    "predict",
    "predict_files",
    "r_step",
    "trace",
    "train",
]

# Imported when first used (PEP 562): torch and timm take seconds, and `hemnet --help` needs none.
_LAZY = {
    "hemnet.api": ("evaluate", "predict", "predict_files", "train"),
    "hemnet.data.catalog": ("dataset_info", "list_datasets", "open_dataset"),
    "hemnet.data.dataset": ("SegmentationDataset",),
    "hemnet.em": (
        "Bernoulli",
        "DiagonalGaussian",
        "EMResult",
        "Gaussian",
        "Iteration",
        "Mixture",
        "VonMisesFisher",
        "e_step",
        "elbo",
        "highway_em",
        "log_likelihood",
        "n_step",
        "r_step",
        "trace",
    ),
    "hemnet.errors": ("UserError",),
    "hemnet.inference.metrics": ("Evaluation",),
    "hemnet.inference.open_model": ("open_model",),
    "hemnet.inference.options": ("InferenceOptions", "PredictOptions"),
    "hemnet.models.bundled": ("list_pretrained",),
    "hemnet.models.pretrained": ("from_pretrained",),
    "hemnet.models.registry": ("create_model", "list_models"),
    "hemnet.models.segmenter": ("Segmenter",),
    "hemnet.nn.attention": ("EMAttention", "HighwayEMAttention"),
    "hemnet.nn.health": ("BasesWarning", "Health"),
    "hemnet.training.config": ("TrainConfig",),
    "hemnet.training.loop": ("TrainResult",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}
_PACKAGES = ("data", "em", "models", "nn")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found = getattr(importlib.import_module(_MODULES[name]), name)
    elif name in _PACKAGES:
        found = importlib.import_module(f"hemnet.{name}")
    else:
        raise AttributeError(f"module 'hemnet' has no attribute {name!r}")
    globals()[name] = found  # not asked for again
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_PACKAGES})
