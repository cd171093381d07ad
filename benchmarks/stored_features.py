"""What a frozen backbone says of whole images, kept once for every head, seed and rate.

Every training image is shown in three sizes and mirrored; a training batch is windows of these
feature maps at random places. Windows of features are not features of windows: they have seen
beyond their border. That holds for every head alike, and makes a run cost its head alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import track
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

import hemnet
from common import console
from hemnet.data.transforms import normalise

SHORT_SIDES = (18, 22, 27)  # of the images that windows are taken from, in strides, less a pixel
COARSE = 4  # of the pixels of a side, training looks at one


class View(NamedTuple):
    """Features C,h,w and labels at positions 0, COARSE, 2·COARSE … of the pixels they span."""

    features: Tensor
    labels: Tensor


def stored(model: hemnet.Segmenter, data: Any, file: Path, *, learn: bool) -> list[list[View]]:
    """The views of every image, from the file if it is there: to learn from, or to judge by."""
    if file.exists():
        return [[View(*v) for v in views] for views in torch.load(file, mmap=True)]
    make = _sizes_and_mirrored if learn else _as_it_is
    shown = track(
        range(len(data)), f"features of {len(data)} images", console=console, transient=True,
        disable=not console.is_terminal,
    )  # fmt: skip
    views = [make(model.eval(), *data[i][:2]) for i in shown]  # image and mask
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save([[tuple(v) for v in each] for each in views], file)
    return views


def _as_it_is(model: hemnet.Segmenter, image: Tensor, mask: Tensor) -> list[View]:
    return [View(_features(model, image), mask.byte().clone())]


def _sizes_and_mirrored(model: hemnet.Segmenter, image: Tensor, mask: Tensor) -> list[View]:
    stride = model.backbone.output_stride
    found = []
    for short in SHORT_SIDES:
        factor = (short * stride + 1) / min(image.shape[-2:])
        # Whole strides and one pixel: the first and the last feature lie on the border.
        size = [max(short, int(s * factor - 1) // stride) * stride + 1 for s in image.shape[-2:]]
        pixels = tv.resize(image, size, antialias=True)
        labels = tv.resize(mask[None], size, interpolation=v2.InterpolationMode.NEAREST_EXACT)[0]
        for a, b in ((pixels, labels), (pixels.flip(-1), labels.flip(-1))):
            found.append(View(_features(model, a), b[::COARSE, ::COARSE].byte().clone()))
    return found


@torch.inference_mode()
def _features(model: hemnet.Segmenter, image: Tensor) -> Tensor:
    batch = normalise(image.as_subclass(Tensor)[None], model.config.mean, model.config.std)
    return model.backbone(batch.contiguous(memory_format=torch.channels_last))[-1][0].half().clone()


def window_batch(
    images: list[list[View]], window: tuple[int, int], batch: int, stride: int, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Features B,C,h,w and labels of random windows: a function of (seed, step) alone."""
    draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
    enlarge = stride // COARSE
    features, labels = [], []
    for index in torch.randint(len(images), (batch,), generator=draw).tolist():
        which, *place = torch.rand(3, generator=draw).tolist()
        view = images[index][int(which * len(images[index]))]
        grid = view.features.shape[1:]
        top, left = (int(p * (g - w + 1)) for p, g, w in zip(place, grid, window, strict=True))
        (bottom, right) = top + window[0] - 1, left + window[1] - 1
        features.append(view.features[:, top : bottom + 1, left : right + 1])
        labels.append(
            view.labels[enlarge * top : enlarge * bottom + 1, enlarge * left : enlarge * right + 1]
        )
    return torch.stack(features), torch.stack(labels)
