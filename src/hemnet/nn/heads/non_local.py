"""Non-local networks: self-attention as the unit of the attention head.

Wang et al., Non-local Neural Networks, CVPR 2018 (https://arxiv.org/abs/1711.07971).
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.nn.heads.attention import AttentionHead
from hemnet.nn.heads.head import SelfAttention


class NonLocalAttention(SelfAttention):
    """The embedded Gaussian form: B,C,h,w → B,C,h,w.

    `activation`: a ReLU after the sum with the input.
    """

    def __init__(self, channels: int, activation: bool = True) -> None:
        inner = max(channels // 2, 1)
        super().__init__(channels, inner, inner)
        self.activation = activation
        self.out = nn.Sequential(
            nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = x + self.out(self.attend(x, mask))
        return F.relu(y) if self.activation else y


class NonLocalHead(AttentionHead):
    """The head of HEMNet with a non-local unit."""

    UNIT = NonLocalAttention
