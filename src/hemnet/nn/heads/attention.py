"""The head of HEMNet, EMANet and Non-local networks: one attention unit between convolutions.

3×3 convolution to `width` → attention unit → 3×3 convolution to `mixed` → classifier.
`concatenate` joins the backbone's features to what the classifier would see and mixes the two
with another 3×3 convolution, as mmsegmentation's heads do.

With `decoder` the mixed channels are up-sampled to stride 4, joined to the backbone's features
there (reduced to 48 channels), and mixed by one more 3×3 convolution before the classifier: the
light decoder of DeepLabV3+ (https://arxiv.org/abs/1802.02611).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hemnet.nn.attention import EMAttention, HighwayEMAttention
from hemnet.nn.heads.layers import (
    DETAIL,
    MIXED,
    attended,
    classifier,
    conv_bn_relu,
    detail_index,
    joined,
)


class AttentionHead(nn.Module):
    """B,C,h,w → B,classes,h,w, with an attention unit made by a subclass.

    With `decoder`, its number of channels, the logits are on the grid of stride 4.
    """

    offset = 0.0

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        width: int,
        attention: nn.Module,
        dropout: float,
        mixed: int = MIXED,
        concatenate: bool = False,
        decoder: int | None = None,
    ) -> None:
        super().__init__()
        self.reduce = conv_bn_relu(channels[-1], width, 3)
        self.attention = attention
        self.mix = conv_bn_relu(width, mixed, 3)
        self.join = conv_bn_relu(channels[-1] + mixed, mixed, 3) if concatenate else None
        self.detail: nn.Module | None = None
        if decoder is not None:
            if isinstance(decoder, bool) or not isinstance(decoder, int) or decoder < 1:
                raise ValueError(f"decoder must be null or a whole number from 1, not {decoder!r}")
            self.level = detail_index(strides, f"decoder={decoder}")
            self.factor = strides[-1] // 4
            self.detail = conv_bn_relu(channels[self.level], DETAIL)
            self.decode = conv_bn_relu(mixed + DETAIL, decoder, 3)
        self.classifier = classifier(decoder or mixed, num_classes, dropout)

    def forward(self, features: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        x = self.mix(self.attention(self.reduce(features[-1]), mask))
        if self.join is not None:
            x = self.join(torch.cat([features[-1], x], 1))
        if self.detail is not None:
            detail = self.detail(features[self.level])
            x = self.decode(joined(x, detail, self.factor, self.offset))
        return self.classifier(x)


class HEMHead(AttentionHead):
    """HEMNet; further options are those of `HighwayEMAttention`."""

    UNIT: type[nn.Module] = HighwayEMAttention

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        width: int = 512,
        dropout: float = 0.1,
        mixed: int = MIXED,
        concatenate: bool = False,
        decoder: int | None = None,
        **unit: Any,
    ) -> None:
        attention = self.UNIT(width, **unit)
        options = mixed, concatenate, decoder
        super().__init__(channels, strides, num_classes, width, attention, dropout, *options)


class EMAHead(HEMHead):
    """EMANet; further options are those of `EMAttention`."""

    UNIT = EMAttention


class NonLocalAttention(nn.Module):
    """Self-attention over all positions, O(N²) time: B,C,H,W → B,C,H,W.

    Wang et al., Non-local Neural Networks, CVPR 2018 (https://arxiv.org/abs/1711.07971),
    embedded Gaussian form. `activation`: a ReLU after the sum with the input.
    """

    def __init__(self, channels: int, activation: bool = True) -> None:
        super().__init__()
        self.activation = activation
        inner = max(channels // 2, 1)
        self.query = nn.Conv2d(channels, inner, 1)
        self.key = nn.Conv2d(channels, inner, 1)
        self.value = nn.Conv2d(channels, inner, 1)
        self.out = nn.Sequential(
            nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (f(x).flatten(2).transpose(1, 2) for f in (self.query, self.key, self.value))
        seen = attended(mask)
        y = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], seen)[:, 0]
        y = y.transpose(1, 2).unflatten(2, x.shape[-2:])
        y = x + self.out(y)
        return F.relu(y) if self.activation else y


class NonLocalHead(AttentionHead):
    """The same head with a non-local block as its unit."""

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        num_classes: int,
        width: int = 512,
        dropout: float = 0.1,
        mixed: int = MIXED,
        concatenate: bool = False,
        activation: bool = True,
        decoder: int | None = None,
    ) -> None:
        attention = NonLocalAttention(width, activation)
        options = mixed, concatenate, decoder
        super().__init__(channels, strides, num_classes, width, attention, dropout, *options)
