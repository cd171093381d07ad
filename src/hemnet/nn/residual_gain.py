"""How much a unit adds to its input, learned at a rate of its own.

A unit that starts as the identity (gain 0) disturbs nothing, but a learning rate that suits
convolutions hardly moves its gain: it would stay near 0 for thousands of steps.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hemnet.em.sources import all_reduce
from hemnet.nn.running_average import in_backward


class ResidualGain(nn.Module):
    """x + rate · norm(branch); the norm's weight times the rate is the gain.

    A step of the optimizer then changes what is added `rate` times as much as it changes the
    norm's weight. That weight's gradient is `rate` times as large, too, and an optimizer whose
    steps follow the gradient's size, as SGD's do, would be rate² times as fast: it is divided by
    the rate again. The rate is kept in checkpoints, as the weight means nothing without it.
    """

    rate: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 < rate < math.inf:
            raise ValueError(f"gain_lr_mult must be a finite number above 0; got {rate!r}")
        self.factor = float(rate)  # `rate` as a number, which needs no look at the device
        self.register_buffer("rate", torch.tensor(self.factor))

    def reset_parameters(self) -> None:
        """Needed by hand only after construction on the meta device."""
        with torch.no_grad():
            self.rate.fill_(self.factor)

    def forward(
        self, x: Tensor, branch: Tensor, norm: nn.Module, group: ProcessGroup | None = None
    ) -> Tensor:
        r = self.factor
        if r == 1 or torch.compiler.is_exporting() or not torch.is_grad_enabled():
            return torch.add(x, batch_norm(norm, branch, group), alpha=r)
        # Before the norm the gradient is r times as large again: only its weights' is divided.
        normed = batch_norm(norm, _gradient_times(branch, r), group)
        return torch.add(x, _gradient_times(normed, 1 / r), alpha=r)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        # Files from before the rate was kept have the rate that the unit was built with.
        state_dict.setdefault(f"{prefix}rate", self.rate)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if not self.rate.is_meta:
            self.factor = float(self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.factor:g}"


def batch_norm(norm: nn.Module, x: Tensor, group: ProcessGroup | None = None) -> Tensor:
    """norm(x), where it counts right: once for a pass that activation checkpointing repeats, and
    over all ranks of a group that have parts of the same images."""
    if not isinstance(norm, nn.BatchNorm2d) or not norm.training:
        return norm(x)
    if group is None:
        if in_backward() and norm.running_mean is not None and norm.running_var is not None:
            mean, variance = norm.running_mean.clone(), norm.running_var.clone()
            weight, bias = norm.weight, norm.bias
            return F.batch_norm(x, mean, variance, weight, bias, training=True, eps=norm.eps)
        return norm(x)
    sums = torch.stack((x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), x.new_ones(x.shape[1])))
    sums = torch.cat((sums[:2], sums[2:] * (x.numel() / x.shape[1])))
    total = all_reduce(sums, group)
    mean = total[0] / total[2]
    variance = total[1] / total[2] - mean.square()
    if not in_backward() and norm.running_mean is not None and norm.running_var is not None:
        momentum = 0.1 if norm.momentum is None else norm.momentum
        unbiased = variance * total[2] / (total[2] - 1).clamp_min(1)
        with torch.no_grad():
            norm.running_mean.lerp_(mean.to(norm.running_mean), momentum)
            norm.running_var.lerp_(unbiased.to(norm.running_var), momentum)
    scale = (variance + norm.eps).rsqrt()
    scale = scale if norm.weight is None else scale * norm.weight
    shift = -mean * scale if norm.bias is None else norm.bias - mean * scale
    return x * scale[:, None, None] + shift[:, None, None]


def _gradient_times(x: Tensor, factor: float) -> Tensor:
    """x itself, with its gradient multiplied."""
    same: Tensor = _GradientTimes.apply(x, factor)
    return same


class _GradientTimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
