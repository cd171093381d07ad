"""DANet: attention between positions and attention between channels, added.

Fu et al., Dual Attention Network for Scene Segmentation, CVPR 2019
(https://arxiv.org/abs/1809.02983).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from hemnet.em.numeric import no_autocast
from hemnet.nn.geometry import FeatureInfo
from hemnet.nn.heads.head import Head, SelfAttention, classifier, conv_bn_relu


class PositionAttention(SelfAttention):
    """Every position attends to every other: B,C,h,w → B,C,h,w."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, max(channels // 8, 1), channels, scale=1.0)  # not 1/√C
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x + self.scale * self.attend(x, mask)


class ChannelAttention(nn.Module):
    """Every channel attends to those least like it: B,C,H,W → B,C,H,W."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        flat = x.flatten(2)  # B,C,N
        counted = flat if mask is None else flat * mask.flatten(1)[:, None].to(flat.dtype)
        # Sums over N positions leave half precision's range; softmax of the negative is the
        # same as of max − energy.
        with no_autocast(x):
            energy = counted.float() @ flat.float().transpose(1, 2)  # B,C,C
            weights = torch.softmax(-energy, -1)
        return x + self.scale * (weights.to(flat.dtype) @ flat).view_as(x)


class DualAttentionHead(Head):
    """B,C,h,w → B,classes,h,w."""

    def __init__(
        self,
        features: FeatureInfo,
        num_classes: int,
        channels: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        inputs = features.channels[-1]
        self.position, self.channel = (
            nn.Sequential(
                conv_bn_relu(inputs, channels, 3), unit(), conv_bn_relu(channels, channels, 3)
            )
            for unit in (partial(PositionAttention, channels), ChannelAttention)
        )
        self.classifier = classifier(channels, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = features[-1]
        branches = [
            convert(attend(reduce(x), mask))
            for reduce, attend, convert in (self.position, self.channel)
        ]
        return self.classifier(branches[0] + branches[1])
