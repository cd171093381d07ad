"""FCN heads: the plain classifier of the ResNet row of Table 3, and the auxiliary head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from hemnet.nn.heads.layers import MIXED, classifier, conv_bn_relu


class FCNHead(nn.Module):
    """A classifier on the backbone's last feature: B,C,h,w → B,classes,h,w.

    `hidden` puts two 3×3 convolutions before it, to so many channels and to 256: an attention head
    of that width without its unit.
    """

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        dropout: float = 0.1,
        hidden: int | None = None,
    ) -> None:
        super().__init__()
        last = channels[-1] if hidden is None else MIXED
        self.convolutions = nn.Sequential()
        if hidden is not None:
            self.convolutions.append(conv_bn_relu(channels[-1], hidden, 3))
            self.convolutions.append(conv_bn_relu(hidden, MIXED, 3))
        self.classifier = classifier(last, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        return self.classifier(self.convolutions(features[-1]))


class AuxiliaryHead(nn.Module):
    """A second, smaller opinion from the last feature but one, used for training only."""

    def __init__(self, channels: Sequence[int], num_classes: int, dropout: float = 0.1) -> None:
        super().__init__()
        width = max(channels[-2] // 4, 16)
        self.reduce = conv_bn_relu(channels[-2], width, 3)
        self.classifier = classifier(width, num_classes, dropout)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.classifier(self.reduce(features[-2]))
