"""DeepLabV3+: atrous spatial pyramid pooling and a decoder that adds stride-4 detail.

Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation,
ECCV 2018 (https://arxiv.org/abs/1802.02611); with dense convolutions, as in the paper's Table 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hemnet.nn.geometry import FeatureInfo
from hemnet.nn.heads.head import (
    DETAIL,
    Head,
    classifier,
    conv_bn_relu,
    fine_grid,
    masked_mean,
)

# The rates of the DeepLab papers at stride 16, doubled or halved to reach as far on the image.
_RATES = {8: (12, 24, 36), 16: (6, 12, 18), 32: (3, 6, 9)}


class DeepLabV3PlusHead(Head):
    """Features at strides 4 and s → logits at stride 4: B,classes,H/4,W/4."""

    def __init__(
        self,
        features: FeatureInfo,
        num_classes: int,
        channels: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        inputs, rates = features.channels[-1], _RATES[features.strides[-1]]
        self.branches = nn.ModuleList(
            [conv_bn_relu(inputs, channels)]
            + [conv_bn_relu(inputs, channels, 3, rate) for rate in rates]
        )
        self.pool = conv_bn_relu(inputs, channels)
        self.project = conv_bn_relu(5 * channels, channels)
        self.fine = fine_grid(features, "deeplabv3plus")
        self.level = self.fine.level
        self.detail = conv_bn_relu(self.fine.channels, DETAIL)
        self.decode = nn.Sequential(
            conv_bn_relu(channels + DETAIL, channels, 3), conv_bn_relu(channels, channels, 3)
        )
        self.classifier = classifier(channels, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = features[-1]
        pooled = self.pool(masked_mean(x, mask)).expand(-1, -1, *x.shape[-2:])
        x = self.project(torch.cat([*(branch(x) for branch in self.branches), pooled], 1))
        return self.classifier(self.decode(self.fine.join(x, self.detail(features[self.level]))))
