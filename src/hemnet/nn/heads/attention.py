"""The head of HEMNet, EMANet and Non-local networks: one attention unit between convolutions.

3×3 convolution to `channels` → attention unit → 3×3 convolution to `mixed` → classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hemnet.nn.attention import EMAttention, HighwayEMAttention
from hemnet.nn.geometry import FeatureInfo
from hemnet.nn.heads.head import (
    DETAIL,
    MIXED,
    FineGrid,
    Head,
    classifier,
    conv_bn_relu,
    fine_grid,
)


class AttentionHead(Head):
    """The head of a unit whose class a subclass names as `UNIT`.

    Args:
        features: of the backbone.
        num_classes: channels of the logits.
        channels: of the unit.
        dropout: before the classifier.
        mixed: channels that the classifier sees.
        concatenate: join the backbone's features to what the classifier would see and mix the two
            by another 3×3 convolution, as mmsegmentation's heads do.
        decoder: up-sample the mixed channels to stride 4, join the backbone's features there, and
            mix them by a 3×3 convolution to this many channels: the light decoder of DeepLabV3+
            (https://arxiv.org/abs/1802.02611). The logits have stride 4.
        unit: options of the unit.
    """

    UNIT: Callable[..., nn.Module]

    def __init__(
        self,
        features: FeatureInfo,
        num_classes: int,
        channels: int = 512,
        dropout: float = 0.1,
        mixed: int = MIXED,
        concatenate: bool = False,
        decoder: int | None = None,
        **unit: Any,
    ) -> None:
        super().__init__()
        inputs, attention = features.channels[-1], self.UNIT(channels, **unit)
        self.reduce = conv_bn_relu(inputs, channels, 3)
        self.attention = attention
        self.mix = conv_bn_relu(channels, mixed, 3)
        self.join = conv_bn_relu(inputs + mixed, mixed, 3) if concatenate else None
        self.fine: FineGrid | None = None
        if decoder is not None:
            if isinstance(decoder, bool) or not isinstance(decoder, int) or decoder < 1:
                raise ValueError(f"decoder must be null or a whole number from 1, not {decoder!r}")
            self.fine = fine_grid(features, f"decoder={decoder}")
            self.level = self.fine.level
            self.detail = conv_bn_relu(self.fine.channels, DETAIL)
            self.decode = conv_bn_relu(mixed + DETAIL, decoder, 3)
        self.classifier = classifier(decoder or mixed, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = self.mix(self.attention(self.reduce(features[-1]), mask))
        if self.join is not None:
            x = self.join(torch.cat([features[-1], x], 1))
        if self.fine is not None:
            x = self.decode(self.fine.join(x, self.detail(features[self.level])))
        return self.classifier(x)


class HEMHead(AttentionHead):
    """HEMNet; further options are those of `HighwayEMAttention`."""

    UNIT = HighwayEMAttention


class EMAHead(AttentionHead):
    """EMANet; further options are those of `EMAttention`."""

    UNIT = EMAttention
