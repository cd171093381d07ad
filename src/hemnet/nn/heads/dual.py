"""DANet: attention between positions and attention between channels, added.

Fu et al., Dual Attention Network for Scene Segmentation, CVPR 2019
(https://arxiv.org/abs/1809.02983).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.em.numeric import no_autocast
from hemnet.nn.heads.layers import attended, classifier, conv_bn_relu


class PositionAttention(nn.Module):
    """Every position attends to every other: B,C,H,W → B,C,H,W, time O(N²)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = max(channels // 8, 1)
        self.query = nn.Conv2d(channels, inner, 1)
        self.key = nn.Conv2d(channels, inner, 1)
        self.value = nn.Conv2d(channels, channels, 1)
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (f(x).flatten(2).transpose(1, 2) for f in (self.query, self.key, self.value))
        # No 1/√C in this paper; the fused kernel needs no N×N matrix in memory.
        seen = attended(mask)
        out = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], seen, scale=1.0)
        return x + self.scale * out[:, 0].transpose(1, 2).reshape(x.shape)


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


class DualAttentionHead(nn.Module):
    """B,C,h,w → B,classes,h,w."""

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        width: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        inputs = channels[-1]
        self.position = nn.Sequential(
            conv_bn_relu(inputs, width, 3), PositionAttention(width), conv_bn_relu(width, width, 3)
        )
        self.channel = nn.Sequential(
            conv_bn_relu(inputs, width, 3), ChannelAttention(), conv_bn_relu(width, width, 3)
        )
        self.classifier = classifier(width, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = features[-1]
        branches = [
            convert(attend(reduce(x), mask))
            for reduce, attend, convert in (self.position, self.channel)
        ]
        return self.classifier(branches[0] + branches[1])
