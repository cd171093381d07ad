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


def expect(holds: bool, wanted: str, given: object) -> None:
    if not holds:
        given = given.tolist() if isinstance(given, Tensor) and not given.is_meta else given
        raise ValueError(f"{wanted}; got {given!r}")


def check_shapes(**given: tuple[Tensor | None, str]) -> dict[str, int]:
    """Tensors with the names of their axes, or two choices of names: the sizes of all axes.

    An axis has the same size, at least 1 but for the batch, wherever it occurs.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, shape) in given.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} must be a floating tensor; got {kind}")
        choices = [choice.strip("()").split(", ") for choice in shape.split(" or ")]
        axes = next((choice for choice in choices if len(choice) == tensor.ndim), [])
        fits = len(axes) == tensor.ndim
        for axis, size in zip(axes, tensor.shape, strict=False):
            fits = fits and sizes.setdefault(axis, size) == size and (size > 0 or axis == "batch")
        if not fits:
            shapes = [f"{n} {tuple(t.shape)}" for n, (t, _) in given.items() if t is not None]
            raise ValueError(f"{name} must have the shape {shape}; got {', '.join(shapes)}")
    return sizes


def check_choice(value: str, choices: Sequence[str], name: str) -> None:
    expect(value in choices, f"{name} must be one of {', '.join(map(repr, choices))}", value)


def check_iterations(iterations: int) -> None:
    whole = isinstance(iterations, int) and not isinstance(iterations, bool)
    wanted = "iterations must be a whole number of at least 1"
    expect(whole and iterations >= 1, wanted, iterations)


def check_positive(value: float | Tensor, name: str) -> None:
    one = value.numel() == 1 if isinstance(value, Tensor) else isinstance(value, int | float)
    wanted = f"{name} must be one positive, finite number"
    expect(one and _inside(value, math.inf), wanted, value)


def check_steps(step_size: StepSize, iterations: int, limit: float = 2.0) -> Steps:
    """One step size for each iteration, in (0, 2), or in (0, 1] where only those raise the bound.

    `limit` is the mixture's `step_limit`: 2 (exclusive) or 1 (inclusive).
    """
    steps: Steps
    if isinstance(step_size, Tensor):
        steps = step_size.reshape(-1)
        steps = steps.expand(iterations) if len(steps) == 1 else steps
        inside = _inside(steps, limit)
    else:
        one = isinstance(step_size, int | float)
        steps = tuple(map(float, [step_size] * iterations if one else step_size))  # type: ignore[arg-type]
        inside = all(_inside(step, limit) for step in steps)
    wanted = f"step_size must be one number or one per iteration ({iterations})"
    expect(len(steps) == iterations, wanted, step_size)
    interval = "(0, 1]" if limit == 1 else f"(0, {limit:g})"
    expect(inside, f"step_size must lie in {interval}", step_size)
    return steps


def _inside(value: Any, limit: float) -> bool:
    """Whether all of it is above 0 and below the limit (1 itself is allowed), as far as is known:

    reading a tensor's values must be possible and make nobody wait.
    """
    good = (value > 0) & ((value <= limit) if limit == 1 else (value < limit))
    if not isinstance(good, Tensor):
        return bool(good)
    if good.device.type != "cpu" or torch.compiler.is_compiling():
        return True
    try:
        return bool(good.all())
    except RuntimeError:  # inside torch.func.vmap
        return True
