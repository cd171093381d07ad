"""What the heads share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hemnet.nn.geometry import upsample

MIXED = 256  # channels that the classifier of an attention head sees
DETAIL = 48  # channels of the stride-4 features that a decoder joins to the head's


def conv_bn_relu(inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution that keeps the size, batch norm, ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """B,C,h,w → B,C,1,1, the mean over the positions in mask: B,h,w or 1,h,w."""
    if mask is None:
        return x.mean((-2, -1), keepdim=True)
    weights = mask[:, None].to(x.dtype)
    return (x * weights).sum((-2, -1), keepdim=True) / weights.sum((-2, -1), keepdim=True).clamp(1)


def attended(mask: Tensor | None) -> Tensor | None:
    """mask: B,h,w as the keys that attention may look at, B,1,1,N."""
    return None if mask is None else mask.bool().flatten(1)[:, None, None]


def classifier(inputs: int, num_classes: int, dropout: float) -> nn.Sequential:
    """Channel dropout and the 1×1 convolution to class logits."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), not {dropout}")
    if inputs < 1:
        raise ValueError(f"mixed must be at least 1 channel, not {inputs}")
    return nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(inputs, num_classes, 1))


def detail_index(strides: Sequence[int], who: str) -> int:
    """Which of the features a decoder takes its detail from: the last of stride 4."""
    if 4 not in strides:
        raise ValueError(
            f"{who} needs a feature of stride 4 for its decoder; this backbone has strides "
            f"{sorted(set(strides))}"
        )
    return len(strides) - 1 - list(strides)[::-1].index(4)


def joined(x: Tensor, detail: Tensor, factor: int, offset: float) -> Tensor:
    """x: B,C,h,w up-sampled to the grid of detail: B,D,H,W → B,C+D,H,W.

    Feature i of an axis of x lies on feature factor·i + offset of detail.
    """
    return torch.cat([upsample(x, detail.shape[-2:], factor, offset), detail], 1)
