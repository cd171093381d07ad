"""Models: made by name, saved, loaded, converted from other projects, and what they cost."""

from hemnet.models.bundled import list_pretrained
from hemnet.models.pretrained import from_pretrained
from hemnet.models.registry import create_model, list_models
from hemnet.models.segmenter import ModelConfig, Segmenter

__all__ = [
    "ModelConfig",
    "Segmenter",
    "create_model",
    "from_pretrained",
    "list_models",
    "list_pretrained",
]
