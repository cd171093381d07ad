"""Augmentation and normalisation of an image and its mask.

All transforms are torchvision `transforms.v2` on tv_tensors, so any of theirs or one's own can be
added. They draw from torch's default generator, which `seeded_draws` seeds from (seed, epoch,
index): no draw depends on workers, ranks or what was read before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from hemnet.data.labels import VOID
from hemnet.limits import number, out_of_range

Triple = tuple[float, float, float]
IMAGENET_MEAN: Triple = (0.485, 0.456, 0.406)
IMAGENET_STD: Triple = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Augmentation:
    """What training does to an image. The defaults are the paper's.

    Args:
        crop: height and width of what the network sees; smaller images are padded.
        scale: range of the random scale, drawn uniformly. (1, 1) leaves the scale alone.
        scale_step: draw from scale[0], scale[0] + scale_step, …, scale[1] instead; None: uniformly.
        flip: probability of a horizontal flip.
        jitter: strength of random brightness, contrast and saturation (hue: a quarter); 0: none.
        mean: of the RGB channels in 0 … 1; padding has this colour and the label 255.
        std: of the RGB channels in 0 … 1.
    """

    crop: tuple[int, int] = (513, 513)
    scale: tuple[float, float] = (0.5, 2.0)
    flip: float = number(0.5, 0, 1)
    jitter: float = number(0.0, 0, 1)
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    scale_step: float | None = number(None, above=0)

    def __post_init__(self) -> None:
        if min(self.crop) < 1:
            raise ValueError(f"crop {self.crop}: expected height and width of at least 1")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale {self.scale}: expected 0 < lowest <= highest")
        for name, problem in out_of_range(self):
            raise ValueError(f"{name} {problem}")
        if min(self.std) <= 0:
            raise ValueError(f"std {self.std}: expected positive numbers")


@contextmanager
def seeded_draws(seed: int, epoch: int, index: int) -> Iterator[None]:
    """Inside, torch's random numbers are a function of (seed, epoch, index) alone."""
    key = np.random.SeedSequence([seed, epoch, index]).generate_state(1, np.uint64)[0]
    state = torch.get_rng_state()
    try:
        # Not torch.manual_seed: that would also seed every accelerator.
        torch.default_generator.manual_seed(int(key) & (2**63 - 1))
        yield
    finally:
        torch.set_rng_state(state)


class RandomScaleCrop(v2.Transform):
    """Scale by a random factor and crop a random window: in one step.

    Only the window that the crop will show is scaled, which gives the same picture (the window is
    rounded to whole source pixels) for a fraction of the work when images grow. What is smaller
    than the crop comes out smaller, for `RandomPad`.
    """

    def __init__(
        self, crop: tuple[int, int], scale: tuple[float, float], scale_step: float | None = None
    ) -> None:
        super().__init__()
        self.crop, self.scale, self.scale_step = crop, scale, scale_step

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = flat_inputs[0].shape[-2:]
        low, high = self.scale
        draw = torch.rand(()).item()
        factor = low + (high - low) * draw
        if self.scale_step is not None:
            count = int((high - low) / self.scale_step + 1e-6) + 1
            factor = low + self.scale_step * int(draw * count)
        rows = self._axis(height, self.crop[0], factor)
        columns = self._axis(width, self.crop[1], factor)
        return {"rows": rows, "columns": columns}

    @staticmethod
    def _axis(length: int, crop: int, factor: float) -> tuple[int, int, int]:
        """One axis: the first source pixel, how many, and their size after scaling."""
        window = max(1, round(crop / factor))
        draw = torch.rand(()).item()
        if window <= length:
            return int(draw * (length - window + 1)), window, crop
        return 0, length, min(crop, max(1, round(length * factor)))

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        top, height, new_height = params["rows"]
        left, width, new_width = params["columns"]
        out = F.crop(inpt, top, left, height, width)
        if (height, width) == (new_height, new_width):
            return out
        size = [new_height, new_width]
        if isinstance(inpt, tv_tensors.Mask):
            return F.resize(out, size, interpolation=v2.InterpolationMode.NEAREST_EXACT)
        # 8-bit images scale two to three times as fast when the colours of a pixel lie together.
        pixels = out.as_subclass(Tensor).permute(1, 2, 0).contiguous().permute(2, 0, 1)
        return tv_tensors.Image(F.resize(pixels, size, antialias=True))


class RandomPad(v2.Transform):
    """Pad to the crop's size, the picture at a random place: images in `fill`, masks in void."""

    def __init__(self, crop: tuple[int, int], fill: tuple[int, int, int]) -> None:
        super().__init__()
        self.crop, self.fill = crop, fill

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        height, width = flat_inputs[0].shape[-2:]
        spare = self.crop[0] - height, self.crop[1] - width
        above, before = (int(torch.rand(()).item() * (room + 1)) for room in spare)
        return {"padding": [before, above, spare[1] - before, spare[0] - above]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        if not any(params["padding"]):
            return inpt
        fill: Any = VOID if isinstance(inpt, tv_tensors.Mask) else list(self.fill)
        return F.pad(inpt, params["padding"], fill=fill)


def training_transform(config: Augmentation) -> v2.Transform:
    """(image, mask) as uint8 tv_tensors → the same, augmented."""
    red, green, blue = (round(255 * value) for value in config.mean)
    steps: list[v2.Transform] = [RandomScaleCrop(config.crop, config.scale, config.scale_step)]
    if config.flip:
        steps.append(v2.RandomHorizontalFlip(config.flip))
    if config.jitter:
        j = config.jitter
        steps.append(v2.ColorJitter(brightness=j, contrast=j, saturation=j, hue=min(j / 4, 0.5)))
    # Padding after the jitter, which would change its colour.
    steps.append(RandomPad(config.crop, (red, green, blue)))
    return v2.Compose(steps)


def normalise(images: Tensor, mean: Triple = IMAGENET_MEAN, std: Triple = IMAGENET_STD) -> Tensor:
    """(…, 3, H, W) uint8 → float32 with the given mean and standard deviation taken out."""
    scale = torch.tensor([1 / (255 * s) for s in std], device=images.device).view(3, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=images.device)
    pixels = images.to(torch.float32, memory_format=torch.contiguous_format)
    return pixels.mul_(scale).add_(shift.view(3, 1, 1))
