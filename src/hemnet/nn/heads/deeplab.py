"""DeepLabV3+: atrous spatial pyramid pooling and a decoder that adds stride-4 detail.

Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation,
ECCV 2018 (https://arxiv.org/abs/1802.02611); with dense convolutions, as in the paper's Table 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hemnet.nn.heads.layers import (
    DETAIL,
    classifier,
    conv_bn_relu,
    detail_index,
    joined,
    masked_mean,
)

# The rates of the DeepLab papers at stride 16, doubled or halved to reach as far on the image.
_RATES = {8: (12, 24, 36), 16: (6, 12, 18), 32: (3, 6, 9)}


class DeepLabV3PlusHead(nn.Module):
    """Features at strides 4 and s → logits at stride 4: B,classes,H/4,W/4."""

    offset = 0.0

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        width: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.level = self.detail_index = detail_index(strides, "deeplabv3plus")
        self.factor = strides[-1] // 4
        inputs = channels[-1]
        self.branches = nn.ModuleList([conv_bn_relu(inputs, width)])
        for rate in _RATES[strides[-1]]:
            self.branches.append(conv_bn_relu(inputs, width, 3, rate))
        self.pool = conv_bn_relu(inputs, width)
        self.project = conv_bn_relu(5 * width, width)
        self.detail = conv_bn_relu(channels[self.detail_index], DETAIL)
        self.decode = nn.Sequential(
            conv_bn_relu(width + DETAIL, width, 3), conv_bn_relu(width, width, 3)
        )
        self.classifier = classifier(width, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        detail, x = features[self.detail_index], features[-1]
        pooled = self.pool(masked_mean(x, mask)).expand(-1, -1, *x.shape[-2:])
        x = self.project(torch.cat([*(branch(x) for branch in self.branches), pooled], 1))
        x = joined(x, self.detail(detail), self.factor, self.offset)
        return self.classifier(self.decode(x))
