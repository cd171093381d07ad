"""PSPNet: context from average pools over 1×1, 2×2, 3×3 and 6×6 regions.

Zhao et al., Pyramid Scene Parsing Network, CVPR 2017 (https://arxiv.org/abs/1612.01105).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.nn.geometry import FeatureInfo
from hemnet.nn.heads.head import Head, classifier, conv_bn_relu
from hemnet.nn.pooling import region_means

_REGIONS = (1, 2, 3, 6)


class PSPHead(Head):
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
        part = max(inputs // len(_REGIONS), 1)
        self.pools = nn.ModuleList(conv_bn_relu(inputs, part) for _ in _REGIONS)
        self.mix = conv_bn_relu(inputs + part * len(_REGIONS), channels, 3)
        self.classifier = classifier(channels, num_classes, dropout)
        self.align_corners = features.align_corners

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = features[-1]
        parts = [x]
        weights = None if mask is None else mask[:, None].to(x.dtype)
        for regions, reduce in zip(_REGIONS, self.pools, strict=True):
            grid = (regions, regions)
            if weights is None:
                means = region_means(x, grid)
            else:  # a region that is all padding has the mean 0
                share = region_means(weights, grid).clamp_min(1e-6)
                means = region_means(x * weights, grid) / share
            pooled = reduce(means)
            size, corners = x.shape[-2:], self.align_corners
            parts.append(F.interpolate(pooled, size, mode="bilinear", align_corners=corners))
        return self.classifier(self.mix(torch.cat(parts, 1)))
