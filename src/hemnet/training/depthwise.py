"""Depthwise convolutions stay in float32 where autocast computes in bf16 on a CPU.

oneDNN takes two to five times as long for the gradient of a depthwise convolution in bf16 as in
float32, which costs EfficientNets and MobileNets more than bf16 gains in their other layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Float32Conv2d(nn.Conv2d):
    """A convolution that autocast leaves alone."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name of the base class
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input.float())


def keep_depthwise_in_float32(model: nn.Module) -> None:
    """Replace depthwise convolutions by ones that ignore autocast, with the same parameters."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Conv2d and module.groups == module.in_channels > 1:
            model.set_submodule(name, _with_parameters_of(module))


def _with_parameters_of(old: nn.Conv2d) -> Float32Conv2d:
    new = Float32Conv2d(
        old.in_channels,
        old.out_channels,
        old.kernel_size,  # type: ignore[arg-type]
        old.stride,  # type: ignore[arg-type]
        old.padding,  # type: ignore[arg-type]
        old.dilation,  # type: ignore[arg-type]
        old.groups,
        old.bias is not None,
        old.padding_mode,
        device="meta",
    )
    new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)
