"""What the heads share."""

from __future__ import annotations

from torch import Tensor, nn

MIXED = 256  # channels that the classifier of an attention head sees


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
