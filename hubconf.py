"""Entry points of `torch.hub`.

model = torch.hub.load("OWNER/hemnet", "hemnet", num_classes=21, backbone="resnet50s")
model = torch.hub.load("OWNER/hemnet", "pretrained", "user/model")
"""

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "src"))

from hemnet.models import create_model, list_models
from hemnet.models import from_pretrained as pretrained

dependencies = ["torch", "torchvision", "timm", "safetensors", "huggingface_hub", "PIL"]

__all__ = ["create_model", "pretrained"]


def _entry(name: str) -> partial:  # type: ignore[type-arg]
    entry = partial(create_model, name)
    entry.__doc__ = f"`{name}`, with the arguments of `hemnet.create_model` after its name."
    return entry


globals().update({name: _entry(name) for name in list_models()})
