"""DeepLabV3+: atrous spatial pyramid pooling and a decoder that adds stride-4 detail.

Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation,
ECCV 2018 (https://arxiv.org/abs/1802.02611); with dense convolutions, as in the paper's Table 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hemnet.nn.geometry import upsample
from hemnet.nn.heads.layers import classifier, conv_bn_relu, masked_mean

# The rates of the DeepLab papers at stride 16, doubled or halved to reach as far on the image.
_RATES = {8: (12, 24, 36), 16: (6, 12, 18), 32: (3, 6, 9)}
_DETAIL_CHANNELS = 48


class DeepLabV3PlusHead(nn.Module):
    """Features at strides 4 and s → logits at stride 4: B,classes,H/4,W/4."""

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        width: int = 256,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if 4 not in strides:
            raise ValueError(
                "deeplabv3plus needs a feature of stride 4 for its decoder; this backbone has "
                f"strides {sorted(set(strides))}"
            )
        self.level = self.detail_index = len(strides) - 1 - list(strides)[::-1].index(4)
        self.factor = strides[-1] // 4
        inputs = channels[-1]
        self.branches = nn.ModuleList([conv_bn_relu(inputs, width)])
        for rate in _RATES[strides[-1]]:
            self.branches.append(conv_bn_relu(inputs, width, 3, rate))
        self.pool = conv_bn_relu(inputs, width)
        self.project = conv_bn_relu(5 * width, width)
        self.detail = conv_bn_relu(channels[self.detail_index], _DETAIL_CHANNELS)
        self.decode = nn.Sequential(
            conv_bn_relu(width + _DETAIL_CHANNELS, width, 3), conv_bn_relu(width, width, 3)
        )
        self.classifier = classifier(width, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        detail, x = features[self.detail_index], features[-1]
        pooled = self.pool(masked_mean(x, mask)).expand(-1, -1, *x.shape[-2:])
        x = self.project(torch.cat([*(branch(x) for branch in self.branches), pooled], 1))
        # Patches are cut at both strides alike: there are `factor` times as many of the small ones.
        patches = x.shape[-2] * self.factor == detail.shape[-2]
        offset = (self.factor - 1) / 2 if patches else 0.0
        x = upsample(x, detail.shape[-2:], self.factor, offset)
        return self.classifier(self.decode(torch.cat([x, self.detail(detail)], 1)))
