"""Units that carry the context of an image without EM: what does EM add to these?

Both have the layers, the residual gain and the number of parameters of the unit that hemnet
recommends (attention pooling: C more, its query), so that only what stands in EM's place differs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hemnet.nn.attention import PRESETS
from hemnet.nn.residual_gain import ResidualGain


class ContextUnit(nn.Module, ABC):
    """1×1 convolution → context → ReLU → 1×1 convolution, batch norm, + identity → ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(channels, channels, 1)
        self.conv_out = nn.Conv2d(channels, channels, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.gain = ResidualGain(PRESETS["recommended"]["gain_lr_mult"])
        for conv in (self.conv_in, self.conv_out):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.conv_in.bias)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: B,C,H,W; mask: B,H,W or 1,H,W, True where a position is part of the image."""
        shape = x.shape[0], 1, *x.shape[2:]
        inside = x.new_ones(shape) if mask is None else mask[:, None].to(x.dtype).expand(shape)
        context = self.context(self.conv_in(x), inside)
        return F.relu(self.gain(x, self.conv_out(F.relu(context)), self.norm))

    @abstractmethod
    def context(self, features: Tensor, inside: Tensor) -> Tensor:
        """features: B,C,H,W and inside: B,1,H,W, 0 for padding → B,C,H,W."""


class AttentionPooling(ContextUnit):
    """One weighted mean of the image, whose weights a learned query gives."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.query = nn.Parameter(torch.randn(channels) / math.sqrt(channels))

    def context(self, features: Tensor, inside: Tensor) -> Tensor:
        logits = torch.einsum("bchw,c->bhw", features, self.query)[:, None]
        logits = logits.masked_fill(inside == 0, -math.inf)
        weights = logits.flatten(2).softmax(-1).view_as(logits)
        return (features * weights).sum((2, 3), keepdim=True).expand_as(features)


class GridMeans(ContextUnit):
    """The mean of each cell of a fixed 8×8 grid, given to the positions of that cell."""

    cells = 8

    def context(self, features: Tensor, inside: Tensor) -> Tensor:
        sums = F.adaptive_avg_pool2d(features * inside, self.cells)
        share = F.adaptive_avg_pool2d(inside, self.cells)
        means = sums / share.clamp_min(torch.finfo(share.dtype).tiny)
        return F.interpolate(means, features.shape[2:], mode="nearest")
