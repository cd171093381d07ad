"""What the heads share."""

from __future__ import annotations

from torch import nn

MIXED = 256  # channels that the classifier of an attention head sees


def conv_bn_relu(inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution that keeps the size, batch norm, ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def classifier(inputs: int, num_classes: int, dropout: float) -> nn.Sequential:
    """Channel dropout and the 1×1 convolution to class logits."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), not {dropout}")
    return nn.Sequential(nn.Dropout2d(dropout), nn.Conv2d(inputs, num_classes, 1))
