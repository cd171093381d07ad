"""What the functions of this package accept, and how they say no.

Only shapes, types and Python numbers are looked at. Values on a device are not (that would make
the host wait for it); the one exception is a step size or variance tensor that lives on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

StepSize = float | Sequence[float] | Tensor
Steps = tuple[float, ...] | Tensor  # one step size per iteration


def check_features(
    x: Tensor, bases: Tensor, channels: int | None = None, width: int | None = None
) -> None:
    """x: B,N,C with bases: K,C or B,K,C, both floating.

    `channels`: C of the bases where x reaches them through a linear map; `width`: the number of
    mean parameters that a mixture has instead of C means.
    """
    channels_of(x)
    _check_floating("bases", bases)
    if bases.ndim not in (2, 3):
        raise ValueError(
            f"bases must have the shape (bases, channels) or (batch, bases, channels); "
            f"got {_shape(bases)}"
        )
    if bases.shape[-1] not in (channels := x.shape[-1] if channels is None else channels, width):
        raise ValueError(
            f"x and bases must have the same channels; got x {_shape(x)} and bases {_shape(bases)}"
        )
    if bases.ndim == 3 and bases.shape[0] != x.shape[0]:
        raise ValueError(
            f"bases for each image need the batch size of x; "
            f"got x {_shape(x)} and bases {_shape(bases)}"
        )
    if bases.shape[-2] == 0 or x.shape[1] == 0:
        raise ValueError(
            f"at least one position and one basis are needed; "
            f"got x {_shape(x)} and bases {_shape(bases)}"
        )


def check_responsibilities(
    responsibilities: Tensor, bases: Tensor, x: Tensor | None = None
) -> None:
    """responsibilities: B,N,K, fitting bases: (B,)K,C and, where given, x: B,N,C."""
    if responsibilities.ndim != 3 or responsibilities.shape[-1] != bases.shape[-2]:
        raise ValueError(
            f"responsibilities must have the shape (batch, positions, {bases.shape[-2]}) to go "
            f"with bases {_shape(bases)}; got {_shape(responsibilities)}"
        )
    if x is not None and responsibilities.shape[:2] != x.shape[:2]:
        raise ValueError(
            f"responsibilities must have the batch and positions of x; "
            f"got responsibilities {_shape(responsibilities)} and x {_shape(x)}"
        )


def check_weights(weights: Tensor | None, x: Tensor) -> None:
    """weights: B,N, or 1,N for all images alike, of positions of x: B,N,C."""
    if weights is None:
        return
    if not isinstance(weights, Tensor) or not weights.is_floating_point():
        kind = weights.dtype if isinstance(weights, Tensor) else type(weights).__name__
        raise TypeError(f"weights must be a floating tensor; got {kind}")
    if (
        weights.ndim != 2
        or weights.shape[0] not in (1, x.shape[0])
        or (weights.shape[1] != x.shape[1])
    ):
        raise ValueError(
            f"weights must have the shape (batch, positions) of x {_shape(x)}; "
            f"got {_shape(weights)}"
        )
    if weights.requires_grad:
        raise ValueError("weights are constants: no gradient is computed for them")


def channels_of(x: Tensor) -> int:
    """C of features x: B,N,C."""
    _check_floating("x", x)
    if x.ndim != 3:
        raise ValueError(f"x must have the shape (batch, positions, channels); got {_shape(x)}")
    return x.shape[-1]


def _check_floating(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must have a floating type; got {tensor.dtype}")


def check_linear(linear: tuple[Tensor, Tensor | None] | None, x: Tensor) -> int:
    """The channels that EM sees of x: B,N,C: C, or D of a map with weight D,C and bias D."""
    channels = channels_of(x)
    if linear is None:
        return channels
    weight, bias = linear
    if weight.ndim != 2 or weight.shape[1] != channels:
        raise ValueError(
            f"the weight of linear must have the shape (channels, {channels}) to go with x "
            f"{_shape(x)}; got {_shape(weight)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"the bias of linear must have the shape ({len(weight)},); got {_shape(bias)}"
        )
    return len(weight)


def check_iterations(iterations: int) -> None:
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"iterations must be a whole number of at least 1; got {iterations!r}")


def check_positive(value: float | Tensor, name: str) -> None:
    """One positive, finite number."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} must be one number; got a tensor {_shape(value)}")
        if _known_false(value > 0):
            raise ValueError(f"{name} must be positive; got {value.item()}")
    elif not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} must be positive and finite; got {value!r}")


def check_steps(step_size: StepSize, iterations: int, limit: float = 2.0) -> Steps:
    """One step size for each iteration, in (0, 2), or in (0, 1] where only those raise the bound.

    Args:
        step_size: one number, one for each iteration, or a tensor of either.
        iterations: T.
        limit: the mixture's `step_limit`: 2 (exclusive) or 1 (inclusive).
    """
    interval = "(0, 1]" if limit == 1 else f"(0, {limit:g})"

    def allowed(step: Any) -> Any:
        return (step > 0) & ((step <= 1) if limit == 1 else (step < limit))

    if isinstance(step_size, Tensor):
        if step_size.numel() != 1 and step_size.shape != (iterations,):
            raise ValueError(
                f"step_size must be one number or one per iteration ({iterations}); "
                f"got a tensor {_shape(step_size)}"
            )
        if _known_false(allowed(step_size)):
            raise ValueError(f"step_size must lie in {interval}; got {step_size.tolist()}")
        return step_size.reshape(-1).expand(iterations)
    steps = (step_size,) * iterations if isinstance(step_size, int | float) else tuple(step_size)
    if len(steps) != iterations:
        raise ValueError(
            f"step_size must be one number or one per iteration ({iterations}); got {len(steps)}"
        )
    if not all(allowed(step) for step in steps):
        raise ValueError(f"step_size must lie in {interval}; got {step_size!r}")
    return tuple(map(float, steps))


def _known_false(condition: Tensor) -> bool:
    """Whether a condition does not hold, where reading it makes nobody wait and is possible."""
    if condition.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    try:
        return not bool(condition.all())
    except RuntimeError:  # inside torch.func.vmap values cannot be read
        return False


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
