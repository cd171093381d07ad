"""What the functions of this package accept, and how they say no.

Only shapes, types and Python numbers are looked at. Values on a device are not (that would make
the host wait for it); the one exception is a step size or variance tensor that lives on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

StepSize = float | Sequence[float] | Tensor
Steps = tuple[float, ...] | Tensor  # one step size per iteration

KERNELS = ("dot", "rbf")


def check_kernel(kernel: str) -> None:
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {', '.join(map(repr, KERNELS))}; got {kernel!r}")


def check_features(x: Tensor, bases: Tensor) -> None:
    """x: B,N,C with bases: K,C or B,K,C, both floating."""
    for name, tensor in (("x", x), ("bases", bases)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor; got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must have a floating type; got {tensor.dtype}")
    if x.ndim != 3:
        raise ValueError(f"x must have the shape (batch, positions, channels); got {_shape(x)}")
    if bases.ndim not in (2, 3):
        raise ValueError(
            f"bases must have the shape (bases, channels) or (batch, bases, channels); "
            f"got {_shape(bases)}"
        )
    if bases.shape[-1] != x.shape[-1]:
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


def check_iterations(iterations: int) -> None:
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ValueError(f"iterations must be a whole number of at least 1; got {iterations!r}")


def check_variance(variance: float | Tensor | None, channels: int) -> float | Tensor:
    """The variance to use: a positive number or one-element tensor; √channels where None."""
    if variance is None:
        return math.sqrt(channels)
    if isinstance(variance, Tensor):
        if variance.numel() != 1:
            raise ValueError(f"variance must be one number; got a tensor {_shape(variance)}")
        if _readable(variance) and not bool((variance > 0).all()):
            raise ValueError(f"variance must be positive; got {variance.item()}")
        return variance.reshape(())
    if not math.isfinite(variance) or variance <= 0:
        raise ValueError(f"variance must be positive and finite; got {variance!r}")
    return float(variance)


def check_steps(step_size: StepSize, iterations: int) -> Steps:
    """One step size in (0, 1] for each iteration."""
    if isinstance(step_size, Tensor):
        if step_size.numel() != 1 and step_size.shape != (iterations,):
            raise ValueError(
                f"step_size must be one number or one per iteration ({iterations}); "
                f"got a tensor {_shape(step_size)}"
            )
        if _readable(step_size) and not bool(((step_size > 0) & (step_size <= 1)).all()):
            raise ValueError(f"step_size must lie in (0, 1]; got {step_size.tolist()}")
        return step_size.reshape(-1).expand(iterations)
    steps = (step_size,) * iterations if isinstance(step_size, int | float) else tuple(step_size)
    if len(steps) != iterations:
        raise ValueError(
            f"step_size must be one number or one per iteration ({iterations}); got {len(steps)}"
        )
    if not all(0 < step <= 1 for step in steps):
        raise ValueError(f"step_size must lie in (0, 1]; got {step_size!r}")
    return tuple(map(float, steps))


def _readable(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
