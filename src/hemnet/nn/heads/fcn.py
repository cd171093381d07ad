"""FCN heads: the plain classifier of the ResNet row of Table 3, and the auxiliary head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hemnet.nn.geometry import FeatureInfo
from hemnet.nn.heads.head import MIXED, Head, classifier, conv_bn_relu


class FCNHead(Head):
    """A classifier on the backbone's last feature: B,C,h,w → B,classes,h,w.

    `hidden` puts two 3×3 convolutions before it, to `hidden` and to `mixed` channels: an attention
    head of that width without its unit. `concatenate` is the attention heads'.
    """

    def __init__(
        self,
        features: FeatureInfo,
        num_classes: int,
        dropout: float = 0.1,
        hidden: int | None = None,
        mixed: int = MIXED,
        concatenate: bool = False,
    ) -> None:
        super().__init__()
        if hidden is None and (concatenate or mixed != MIXED):
            raise ValueError("concatenate and mixed need the convolutions that hidden adds")
        inputs = features.channels[-1]
        self.convolutions = nn.Sequential()
        if hidden is not None:
            self.convolutions.append(conv_bn_relu(inputs, hidden, 3))
            self.convolutions.append(conv_bn_relu(hidden, mixed, 3))
        self.join = conv_bn_relu(inputs + mixed, mixed, 3) if concatenate else None
        self.classifier = classifier(inputs if hidden is None else mixed, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = self.convolutions(features[-1])
        if self.join is not None:
            x = self.join(torch.cat([features[-1], x], 1))
        return self.classifier(x)


class AuxiliaryHead(Head):
    """A smaller classifier on the penultimate feature map, for a training loss only."""

    level = -2

    def __init__(self, features: FeatureInfo, num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        inputs = features.channels[self.level]
        channels = max(inputs // 4, 16)
        self.reduce = conv_bn_relu(inputs, channels, 3)
        self.classifier = classifier(channels, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        return self.classifier(self.reduce(features[self.level]))
