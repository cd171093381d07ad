"""FCN heads: the plain classifier of the ResNet row of Table 3, and the auxiliary head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hemnet.nn.heads.layers import MIXED, classifier, conv_bn_relu


class FCNHead(nn.Module):
    """A classifier on the backbone's last feature: B,C,h,w → B,classes,h,w.

    `hidden` puts two 3×3 convolutions before it, to so many channels and to `mixed`: an attention
    head of that width without its unit. `concatenate` is the attention heads'.
    """

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        dropout: float = 0.1,
        hidden: int | None = None,
        mixed: int = MIXED,
        concatenate: bool = False,
    ) -> None:
        super().__init__()
        if concatenate and hidden is None:
            raise ValueError("concatenate needs hidden convolutions whose output is joined")
        last = channels[-1] if hidden is None else mixed
        self.convolutions = nn.Sequential()
        if hidden is not None:
            self.convolutions.append(conv_bn_relu(channels[-1], hidden, 3))
            self.convolutions.append(conv_bn_relu(hidden, mixed, 3))
        self.join = conv_bn_relu(channels[-1] + mixed, mixed, 3) if concatenate else None
        self.classifier = classifier(last, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = self.convolutions(features[-1])
        if self.join is not None:
            x = self.join(torch.cat([features[-1], x], 1))
        return self.classifier(x)


class AuxiliaryHead(nn.Module):
    """A second, smaller opinion from the last feature but one, used for training only."""

    def __init__(self, channels: Sequence[int], num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        width = max(channels[-2] // 4, 16)
        self.reduce = conv_bn_relu(channels[-2], width, 3)
        self.classifier = classifier(width, num_classes, dropout)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.classifier(self.reduce(features[-2]))
