"""Models that export in a second."""

from typing import Any

import torch
from torch import Tensor, nn

import hemnet
from hemnet.data import Scenes

INFO = Scenes.info


class Cells(nn.Module):
    """A backbone of one layer for each stride, so that an export takes a second."""

    def __init__(self, channels: list[int], strides: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(3, c, 3, s, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU())
            for c, s in zip(channels, strides, strict=True)
        )

    def forward(self, images: Tensor) -> list[Tensor]:
        return [layer(images) for layer in self.layers]


def build(name: str = "hemnet", tiny: bool = True, **options: Any) -> hemnet.Segmenter:
    torch.manual_seed(2)
    if name != "fcn":
        options["channels"] = 16
    if name in ("hemnet", "emanet"):
        options.setdefault("bases", 8)  # an export repeats what finds the first ones for each
    if name == "psanet":
        options |= {"mask_size": 3, "shrink": 1}
    model = hemnet.create_model(
        name, 11, "test_resnet", 16, classes=INFO.classes, palette=INFO.palette, **options
    )
    if tiny:
        model.backbone.network = Cells(model.backbone.channels, model.backbone.strides)
    for module in model.modules():  # as after training: folding has something to do
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return model.eval()


def logits(model: nn.Module, *shape: int) -> Tensor:
    with torch.inference_mode():
        return model(torch.randn(*shape, generator=torch.Generator().manual_seed(1)))
