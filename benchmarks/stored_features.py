"""What frozen stages of a backbone say of whole images, kept once for every head, seed and rate.

Every training image is shown in several sizes and mirrored; a training batch is windows of these
feature maps at random places. Windows of features are not features of windows: they have seen
beyond their border. That holds for every head alike, and makes a run cost only what it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.progress import track
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

import hemnet
from common import console
from hemnet.data.transforms import normalise
from hemnet.nn.backbone import Backbone

SHORT_SIDES = (18, 22, 27)  # of the images that windows are taken from, in strides, less a pixel
COARSE = 4  # of the pixels of a side, training looks at one


class View(NamedTuple):
    """Features C,h,w and labels at positions 0, COARSE, 2·COARSE … of the pixels they span."""

    features: Tensor
    labels: Tensor


def stored(
    model: hemnet.Segmenter, data: Any, file: Path, stage: int, short_sides: Sequence[int] = ()
) -> list[list[View]]:
    """The views of every image, from the file if it is there: to learn from in sizes with these
    short sides, or as it is, to judge by.

    `stage` is the index of the backbone's feature map that is kept.
    """
    if file.exists():
        return [[View(*v) for v in views] for views in torch.load(file, mmap=True)]
    frozen = cut(model.backbone, stage)[0].eval()
    shown = track(
        range(len(data)), f"features of {len(data)} images", console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    views = []
    for i in shown:
        image, mask = data[i][:2]
        pairs = _sizes_and_mirrored(image, mask, model.backbone.output_stride, short_sides)
        views.append(
            [View(_features(model, frozen, image), mask.byte().clone()) for image, mask in pairs]
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save([[tuple(v) for v in each] for each in views], file)
    return views


def cut(backbone: Backbone, stage: int) -> tuple[nn.Sequential, nn.Sequential]:
    """What makes the backbone's feature map with index `stage`, and what makes the last one of it.

    For networks that are a sequence of layers, as ResNets and EfficientNets are.
    """
    parent, before, after = backbone.network, [], []
    for name in backbone.network.feature_info.module_name()[stage].split("."):
        at = [child for child, _ in parent.named_children()].index(name)
        children = list(parent.children())
        before, after = before + children[:at], children[at + 1 :] + after
        parent = children[at]
    later = nn.Sequential(*after)
    _undilate(later)
    return nn.Sequential(*before, parent), later


class Undilated(nn.Module):
    """A dilated depthwise convolution as an ordinary one on every d-th row and column.

    The same to rounding. A CPU's backward of a dilated one is several times slower.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        (batch, channels, height, width), d = x.shape, self.conv.dilation[0]
        h, w = -(-height // d), -(-width // d)
        parts = F.pad(x, (0, w * d - width, 0, h * d - height)).view(batch, channels, h, d, w, d)
        parts = parts.permute(3, 5, 0, 1, 2, 4).reshape(-1, channels, h, w)
        parts = parts.contiguous(memory_format=torch.channels_last)
        border = self.conv.kernel_size[0] // 2
        y = F.conv2d(parts, self.conv.weight, None, 1, border, 1, self.conv.groups)
        y = y.view(d, d, batch, channels, h, w).permute(2, 3, 4, 0, 5, 1)
        y = y.reshape(batch, channels, h * d, w * d)[:, :, :height, :width]
        return y.contiguous(memory_format=torch.channels_last)


def _undilate(network: nn.Module) -> None:
    for name, child in network.named_children():
        if (
            isinstance(child, nn.Conv2d)
            and child.groups == child.in_channels
            and child.dilation[0] > 1
            and child.stride == (1, 1)
            and child.bias is None
            and child.padding[0] == child.dilation[0] * (child.kernel_size[0] // 2)
        ):
            setattr(network, name, Undilated(child))
        else:
            _undilate(child)


def _sizes_and_mirrored(
    image: Tensor, mask: Tensor, stride: int, short_sides: Sequence[int]
) -> list[tuple[Tensor, Tensor]]:
    if not short_sides:
        return [(image, mask)]
    found = []
    for short in short_sides:
        factor = (short * stride + 1) / min(image.shape[-2:])
        # Whole strides and one pixel: the first and the last feature lie on the border.
        size = [max(short, int(s * factor - 1) // stride) * stride + 1 for s in image.shape[-2:]]
        pixels = tv.resize(image, size, antialias=True)
        labels = tv.resize(mask[None], size, interpolation=v2.InterpolationMode.NEAREST_EXACT)[0]
        labels = labels[::COARSE, ::COARSE]
        found += [(pixels, labels), (pixels.flip(-1), labels.flip(-1))]
    return found


@torch.inference_mode()
def _features(model: hemnet.Segmenter, frozen: nn.Module, image: Tensor) -> Tensor:
    batch = normalise(image.as_subclass(Tensor)[None], model.config.mean, model.config.std)
    batch = model.backbone.pad(batch).contiguous(memory_format=torch.channels_last)
    return frozen(batch)[0].half().clone()


def window_batch(
    images: list[list[View]],
    window: tuple[int, int],
    batch: int,
    stride: int,
    finer: int,
    seed: int,
    step: int,
) -> tuple[Tensor, Tensor]:
    """Features B,C,h,w and labels of random windows: a function of (seed, step) alone.

    Windows are counted in steps of `stride` pixels; features may be `finer` than that.
    """
    draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
    enlarge = stride // COARSE
    features, labels = [], []
    for index in torch.randint(len(images), (batch,), generator=draw).tolist():
        which, *place = torch.rand(3, generator=draw).tolist()
        view = images[index][int(which * len(images[index]))]
        grid = [-(-side // finer) for side in view.features.shape[1:]]
        top, left = (int(p * (g - w + 1)) for p, g, w in zip(place, grid, window, strict=True))
        (bottom, right) = top + window[0] - 1, left + window[1] - 1
        features.append(
            view.features[:, finer * top : finer * bottom + 1, finer * left : finer * right + 1]
        )
        labels.append(
            view.labels[enlarge * top : enlarge * bottom + 1, enlarge * left : enlarge * right + 1]
        )
    return torch.stack(features), torch.stack(labels)
