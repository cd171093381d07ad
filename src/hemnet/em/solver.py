"""Highway EM from start to end: T iterations of E-step and N-step, in four backward modes.

"Improving Gradient Flow with Unrolled Highway Expectation Maximization", AAAI 2021.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hemnet.em.backward import Exact, Highway
from hemnet.em.bound import elbo
from hemnet.em.checks import (
    Steps,
    StepSize,
    check_features,
    check_iterations,
    check_kernel,
    check_steps,
    check_variance,
    check_weights,
)
from hemnet.em.steps import e_step, n_step, no_autocast
from hemnet.em.tiles import solve

BACKWARDS = ("exact", "autograd", "highway", "none")


class EMResult(NamedTuple):
    """What `highway_em` found.

    Attributes:
        bases: B,K,C after the last N-step.
        responsibilities: B,N,K of the last E-step.
    """

    bases: Tensor
    responsibilities: Tensor


@dataclass(frozen=True)
class Iteration:
    """What one iteration of `trace` did.

    Attributes:
        bases: B,K,C that it moved to.
        responsibilities: B,N,K that it computed first.
        elbo: B, the bound with both.
    """

    bases: Tensor
    responsibilities: Tensor
    elbo: Tensor


def highway_em(
    x: Tensor,
    bases: Tensor,
    iterations: int = 3,
    step_size: StepSize = 0.5,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
    backward: str = "exact",
    *,
    weights: Tensor | None = None,
) -> EMResult:
    """Fit the bases to the features by unrolled highway EM.

    Args:
        x: features B,N,C of any floating type; half precision is computed in float32.
        bases: initial bases K,C, shared by the batch, or B,K,C.
        iterations: number of E- and N-steps.
        step_size: η in (0, 1]: a number, one per iteration, or a tensor of either, which may
            require grad. 1 is plain EM.
        variance: σ², the softmax's temperature; √C where None. A tensor may require grad.
        kernel: "dot" (the paper's) or "rbf" (the mixture's exact posterior).
        backward: "exact" – the full gradient, keeping only x and the T+1 small bases;
            "autograd" – the same gradient by plain unrolled autograd, the readable reference, and
            the only one that can be differentiated twice;
            "highway" – only skip connections and N-steps, responsibilities are constants;
            "none" – the results are constants.
        weights: how much each position counts, B,N or 1,N: 0 leaves it out, as padding wants, 2
            counts it twice. Constants; None: each position counts once. A position that is left
            out has responsibilities all the same.

    Examples:
        >>> x, start = torch.randn(2, 4096, 64), torch.randn(32, 64)
        >>> result = highway_em(x, start, iterations=3, step_size=0.5)
        >>> result.bases.shape, result.responsibilities.shape
        (torch.Size([2, 32, 64]), torch.Size([2, 4096, 32]))
    """
    check_features(x, bases)
    check_iterations(iterations)
    check_kernel(kernel)
    if backward not in BACKWARDS:
        raise ValueError(
            f"backward must be one of {', '.join(map(repr, BACKWARDS))}; got {backward!r}"
        )
    steps = check_steps(step_size, iterations)
    variance = check_variance(variance, x.shape[-1])
    check_weights(weights, x)
    if backward == "autograd":
        return _unrolled(x, bases, steps, variance, kernel, weights)
    tensors = (x, bases, steps, variance)
    if backward == "none" or not (
        torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in tensors)
    ):
        return constant_em(x, bases, steps, variance, kernel, weights=weights)
    function = Exact if backward == "exact" else Highway
    return EMResult(*function.apply(x, bases, steps, variance, kernel, weights))


def _unrolled(
    x: Tensor,
    bases: Tensor,
    steps: Steps,
    variance: float | Tensor,
    kernel: str,
    weights: Tensor | None,
) -> EMResult:
    for step in steps:
        responsibilities = e_step(x, bases, variance, kernel)
        bases = n_step(x, bases, responsibilities, step, weights)
    return EMResult(bases, responsibilities)


@torch.no_grad()
def constant_em(
    x: Tensor,
    bases: Tensor,
    steps: Steps,
    variance: float | Tensor,
    kernel: str = "dot",
    unit_length: bool = False,
    weights: Tensor | None = None,
) -> EMResult:
    """Highway EM whose results are constants; the arguments are taken as checked.

    `unit_length` scales the bases to length 1 after each iteration, as EMANet does.
    """
    with no_autocast(x):
        solution = solve(x, bases, steps, variance, kernel, unit_length, weights)
    dtype = torch.promote_types(x.dtype, bases.dtype)
    return EMResult(solution.bases[-1].to(dtype), solution.responsibilities.to(x.dtype))


def trace(
    x: Tensor,
    bases: Tensor,
    iterations: int = 3,
    step_size: StepSize = 0.5,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
    weights: Tensor | None = None,
) -> Iterator[Iteration]:
    """`highway_em` one iteration at a time, each with its bound: for looking, not for training.

    The arguments are those of `highway_em`. The bound is taken after the N-step, with the
    responsibilities that led to it. Nothing is kept between iterations: `list(trace(…))` keeps
    all of them.

    Examples:
        >>> steps = list(trace(torch.randn(1, 500, 8), torch.randn(4, 8), 10, kernel="rbf"))
        >>> bool(steps[-1].elbo > steps[0].elbo)
        True
    """
    check_iterations(iterations)
    for step in check_steps(step_size, iterations):
        responsibilities = e_step(x, bases, variance, kernel)
        bases = n_step(x, bases, responsibilities, step, weights)
        bound = elbo(x, bases, responsibilities, variance, weights)
        yield Iteration(bases, responsibilities, bound)
