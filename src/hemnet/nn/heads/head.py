"""The base class of heads, and the layers that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.nn.geometry import FeatureInfo, upsample

MIXED = 256  # channels that the classifier of an attention head sees
DETAIL = 48  # channels of the stride-4 features that a decoder joins to the head's


class Head(nn.Module):
    """Base class of heads: made with (features, num_classes, **options).

    `forward(features, mask)` maps the list of feature maps to logits B,classes,h,w, on the grid of
    map `level`; the segmenter resizes them to the image. `mask`, B,h,w or 1,h,w of the last map,
    is 0 where a feature lies on padding: whatever a head pools over the image leaves these out.
    An option called `channels` is the head's width, which `create_model` has as an argument.
    """

    level = -1

    @abstractmethod
    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class FineGrid:
    """The stride-4 features that a decoder joins to coarse ones."""

    level: int  # which of the feature maps
    channels: int  # its own
    factor: int  # coarse features are so many times as far apart,
    offset: float  # and the first one lies on this feature of the fine map

    def join(self, x: Tensor, detail: Tensor) -> Tensor:
        """x: B,C,h,w on the coarse grid and detail: B,D,H,W → B,C+D,H,W."""
        return torch.cat([upsample(x, detail.shape[-2:], self.factor, self.offset), detail], 1)


def fine_grid(features: FeatureInfo, who: str) -> FineGrid:
    strides = list(features.strides)
    if 4 not in strides:
        raise ValueError(
            f"{who} needs a feature of stride 4 for its decoder; this backbone has strides "
            f"{sorted(set(strides))}"
        )
    level = len(strides) - 1 - strides[::-1].index(4)
    offset = (features.offsets[-1] - features.offsets[level]) / 4
    return FineGrid(level, features.channels[level], strides[-1] // 4, offset)


def conv_bn_relu(inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution that keeps the size, batch norm, ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def classifier(inputs: int, num_classes: int, dropout: float) -> nn.Sequential:
    """Channel dropout and the 1×1 convolution to class logits."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), not {dropout}")
    if inputs < 1:
        raise ValueError(f"mixed must be at least 1 channel, not {inputs}")
    return nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(inputs, num_classes, 1))


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """B,C,h,w → B,C,1,1, the mean over the positions in mask: B,h,w or 1,h,w."""
    if mask is None:
        return x.mean((-2, -1), keepdim=True)
    weights = mask[:, None].to(x.dtype)
    return (x * weights).sum((-2, -1), keepdim=True) / weights.sum((-2, -1), keepdim=True).clamp(1)


class SelfAttention(nn.Module):
    """Each position attends to all others, O(N²) time: B,C,h,w → B,value,h,w."""

    def __init__(self, channels: int, inner: int, value: int, scale: float | None = None) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, inner, 1)
        self.key = nn.Conv2d(channels, inner, 1)
        self.value = nn.Conv2d(channels, value, 1)
        self.logit_scale = scale  # None: 1/√inner

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (
            f(x).flatten(2).transpose(1, 2)[:, None] for f in (self.query, self.key, self.value)
        )
        # The fused kernel needs no N×N matrix in memory.
        keys = None if mask is None else mask.bool().flatten(1)[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, keys, scale=self.logit_scale)[:, 0]
        return y.transpose(1, 2).unflatten(2, x.shape[-2:])
