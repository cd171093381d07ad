"""Highway Expectation-Maximization Networks: attention and segmentation in PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from hemnet.version import __version__

if TYPE_CHECKING:
    from hemnet.hub import from_pretrained
    from hemnet.models import create_model, list_models
    from hemnet.nn.segmenter import Segmenter

__all__ = ["Segmenter", "__version__", "create_model", "from_pretrained", "list_models"]

# Imported when first used: the models need timm, which takes seconds to import.
_LAZY = {
    "Segmenter": "hemnet.nn.segmenter",
    "create_model": "hemnet.models",
    "from_pretrained": "hemnet.hub",
    "list_models": "hemnet.models",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'hemnet' has no attribute {name!r}")
