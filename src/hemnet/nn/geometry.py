"""Positions of features on the image, and upsampling that respects them.

With stride s, feature i of an axis is centred on pixel s·i + offset. The offset is 0 for networks
whose convolutions are padded alike on both sides, (s − 1)/2 for those that cut the image into
patches, and does not depend on the image's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.pool2d_same import AvgPool2dSame
from torch import Tensor, nn
from torch.nn import functional as F


class Placement(NamedTuple):
    """Where the features of a stride lie: feature i of an axis on pixel stride·i + offset."""

    stride: int = 1
    offset: float = 0.0

    def upsample(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """B,C,h,w → B,C,H,W, bilinear."""
        return upsample(x, size, *self)

    def pixels(self, count: int, length: int) -> Tensor:
        """The pixel of an axis of `length` on which each of `count` features is centred.

        The last one for features beyond it.
        """
        middles = torch.arange(count) * self.stride + self.offset
        return middles.floor().long().clamp(max=length - 1)

    def nearest(self, pixel: float, count: int) -> int:
        """The feature, of `count`, nearest to a pixel."""
        return min(count - 1, max(0, round((pixel - self.offset) / self.stride)))


@dataclass(frozen=True)
class FeatureInfo:
    """The feature maps B,C_i,h_i,w_i of a backbone, coarsest last.

    Attributes:
        channels: C_i.
        strides: pixels between neighbours in map i.
        offsets: the pixel on which feature 0 of map i is centred.
        align_corners: False where weights were trained with up-sampling of that kind.
    """

    channels: Sequence[int]
    strides: Sequence[int]
    offsets: Sequence[float]
    align_corners: bool = True


def upsample(x: Tensor, size: Sequence[int], stride: int, offset: float = 0.0) -> Tensor:
    """Bilinear up-sampling of B,C,h,w to B,C,*size with feature i at pixel stride·i + offset.

    Pixels beyond the first and the last feature have the value of these.
    """
    if 2 * offset == stride - 1 and stride > 1:  # the middles of patches: exact
        whole = [n * stride for n in x.shape[-2:]]
        return _cut(F.interpolate(x, whole, mode="bilinear", align_corners=False), size)
    whole = [(n - 1) * stride + 1 for n in x.shape[-2:]]
    if whole != list(x.shape[-2:]):
        x = F.interpolate(x, whole, mode="bilinear", align_corners=True)
    before = max(0, math.floor(offset))
    between = max(0.0, offset) - before
    shifted = _cut(x, size, before)
    return shifted.lerp(_cut(x, size, before + 1), between) if between else shifted


def _cut(x: Tensor, size: Sequence[int], before: int = 0) -> Tensor:
    """The first H,W pixels of x, `before` rows and columns of its border put in front."""
    height, width = size
    below = larger(0, height - before - x.shape[-2])
    after = larger(0, width - before - x.shape[-1])
    if torch.compiler.is_exporting() or before or below or after:
        x = F.pad(x, (before, after, before, below), mode="replicate")
    return x[..., :height, :width]


def larger(a: int, b: int) -> int:
    """max, also of the symbolic sizes of `torch.export`."""
    return cast(int, torch.sym_max(a, b))


def downsample(x: Tensor, factor: int) -> Tensor:
    """B,C,h,w → every factor-th feature, each the mean of those nearer to it than to the next."""
    if factor == 1:
        return x
    return F.avg_pool2d(x, 2 * factor - 1, factor, factor - 1, count_include_pad=False)


class LayerShift(NamedTuple):
    """A call of a layer that shifts features: rows in and out, and by how many rows of its input
    the centre of output 0 lies from input 0."""

    rows_in: int
    rows_out: int
    shift: float
    kernel: int
    average: bool  # an average pool: the shortcut of a residual block, or all there is


@contextmanager
def record_shifts(network: nn.Module, calls: list[LayerShift]) -> Iterator[None]:
    """Record calls of layers with a stride or one-sided padding in `calls`."""

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        rows_in, rows_out = inputs[0].shape[-2], output.shape[-2]
        kernel = _first(getattr(module, "filt_size", None) or module.kernel_size)
        span = (kernel - 1) * _first(getattr(module, "dilation", 1))
        if isinstance(module, _SAME):
            left = max(0, span + 1 - _first(module.stride)) // 2
        elif isinstance(module, EvenAvgPool2d | EvenConv2d):
            left = span // 2
        else:
            left = 0 if isinstance(module.padding, str) else _first(module.padding)
        average = isinstance(module, nn.AvgPool2d)
        calls.append(LayerShift(rows_in, rows_out, span / 2 - left, kernel, average))

    hooks = [m.register_forward_hook(note) for m in network.modules() if _moves(m)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


_SAME = (Conv2dSame, AvgPool2dSame)


def _moves(module: nn.Module) -> bool:
    if not isinstance(module, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        return hasattr(module, "filt_size") and _first(module.stride) > 1  # timm's BlurPool2d
    one_sided = isinstance(module, (*_SAME, EvenAvgPool2d, EvenConv2d))
    even = _first(module.kernel_size) % 2 == 0
    return (one_sided and even) or _first(module.stride) > 1


def offsets(
    calls: list[LayerShift], rows: int, strides: Sequence[int], patches: bool
) -> list[float]:
    """The offset of the features of each stride, from the layers that an image of `rows` met.

    Of several layers that take the same stride the one with the largest kernel counts; an average
    pool beside it is a block's shortcut, and the block lies half-way between the two. Where no
    layer is seen to take a stride, as in Swin's patch merging, `patches` says whether it cuts
    into patches.
    """

    def level(n: int) -> int:
        return rows // n if patches else (rows - 1) // max(1, n - 1)

    found = []
    for stride in strides:
        at, total = 1, 0.0
        while at < stride:
            onward = [c for c in calls if level(c.rows_in) == at < level(c.rows_out)]
            after = min((level(c.rows_out) for c in onward), default=stride)
            shift = _joint([c for c in onward if level(c.rows_out) == after])
            if not onward and patches:
                shift = (stride // at - 1) / 2
            total += at * shift
            at = after
        kept = [c for c in calls if level(c.rows_in) == at == level(c.rows_out)]
        total += at * sum(c.shift / 2 if c.average else c.shift for c in kept)
        found.append(total)
    return found


def _joint(layers: list[LayerShift]) -> float:
    """The shift of layers side by side."""
    kinds = [[c for c in layers if c.average == average] for average in (False, True)]
    shifts = [max(kind, key=lambda c: c.kernel).shift for kind in kinds if kind]
    return sum(shifts) / max(1, len(shifts))


def symmetric_padding(network: nn.Module) -> None:
    """Replace TensorFlow's "same" padding by the constant one that it is at sizes k·s + 1.

    At other sizes "same" shifts features by an amount that depends on the size; a backbone pads
    images to k·s + 1, where the two are equal to the last bit. Ordinary layers are faster, and
    `torch.export` does not have to follow nested symbolic sizes.
    """
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if not isinstance(child, _SAME):
                continue
            even, stride = _first(child.kernel_size) % 2 == 0, _first(child.stride)
            if isinstance(child, AvgPool2dSame) and stride == 1:
                setattr(module, name, EvenAvgPool2d(child))
            elif isinstance(child, Conv2dSame) and (stride == 1 or not even):
                kind = EvenConv2d if even else nn.Conv2d
                plain = kind(1, 1, 1, device="meta")
                plain.__dict__.update(child.__dict__)  # weights, stride, dilation, groups, hooks
                high, wide = (
                    (k - 1) * d for k, d in zip(child.kernel_size, child.dilation, strict=True)
                )
                plain.padding = (0, 0) if even else (high // 2, wide // 2)
                setattr(module, name, plain)


class EvenAvgPool2d(nn.AvgPool2d):
    """timm's average pool with "same" padding and stride 1: one row and column less before."""

    def __init__(self, pool: AvgPool2dSame) -> None:
        super().__init__(
            pool.kernel_size, 1, 0, pool.ceil_mode, count_include_pad=pool.count_include_pad
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_pad_both_sides(x, _first(self.kernel_size) - 1))


class EvenConv2d(nn.Conv2d):
    """A convolution with an even kernel and stride 1, padded like `EvenAvgPool2d`."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_pad_both_sides(x, (self.kernel_size[0] - 1) * self.dilation[0]))


def _pad_both_sides(x: Tensor, total: int) -> Tensor:
    before = total // 2
    return F.pad(x, (before, total - before, before, total - before))


def _first(value: Any) -> int:
    return int(value[0] if isinstance(value, tuple | list) else value)
