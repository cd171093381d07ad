"""Highway EM from start to end: one loop, whatever the features, the mixture or the gradient.

"Improving Gradient Flow with Unrolled Highway Expectation Maximization", AAAI 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from hemnet.em.bound import elbo
from hemnet.em.checks import Steps, StepSize, check_choice, check_iterations, check_steps
from hemnet.em.mixtures import Mixture, mean_statistics, prepare
from hemnet.em.numeric import no_autocast, product_dtype, upcast
from hemnet.em.sources import Features, Linear, apply_linear
from hemnet.em.statistics import Statistics

BACKWARDS = ("exact", "autograd", "highway", "implicit", "none")
NEUMANN_TERMS = 8  # of the implicit gradient; what is left out shrinks with each as EM converges


class EMResult(NamedTuple):
    """What `highway_em` found.

    Attributes:
        bases: B,K,C after the last N-step (B,K,P for a mixture with P mean parameters).
        responsibilities: B,N,K of the last E-step.
    """

    bases: Tensor
    responsibilities: Tensor


# Features as an iteration sees them: (weight, bias, whether to keep the responsibilities) → the
# statistics of softmax(t(x)·weight + bias).
Source = Callable[[Tensor, Tensor, bool], Statistics]


def iterate(
    source: Source, bases: Tensor, steps: Steps, mixture: Mixture, keep: bool = False
) -> Iterator[tuple[Tensor, Statistics, Tensor]]:
    """The loop of highway EM: bases B,K,P before each iteration, what it measured, bases after.

    The last iteration has the responsibilities, with `keep` every one has.
    """
    for t, step in enumerate(steps):
        found = source(*mixture.logits(bases), keep or t == len(steps) - 1)
        means = mean_statistics(found.sums, found.mass, bases)
        before, bases = bases, mixture.move(bases, means, step)
        yield before, found, bases


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
    mixture: Mixture | None = None,
    linear: Linear | None = None,
    group: ProcessGroup | None = None,
) -> EMResult:
    """Fit the bases to the features by unrolled highway EM.

    Args:
        x: features B,N,C of any floating type; half precision is computed in float32.
        bases: initial bases K,C, shared by the batch, or B,K,C.
        iterations: number of E- and N-steps.
        step_size: η in (0, 2): a number, one per iteration, or a tensor of either, which may
            require grad. 1 is plain EM; a mixture other than a Gaussian takes at most 1.
        variance: σ², the softmax's temperature; √C where None. A tensor may require grad.
        kernel: "dot" (the paper's) or "rbf" (the mixture's exact posterior).
        backward: "exact" – the full gradient, in memory that does not grow with the iterations
            but for K·C numbers each;
            "autograd" – the same by plain unrolled autograd, the readable reference, and the only
            one that can be differentiated twice;
            "highway" – only skip connections and N-steps, responsibilities are constants;
            "implicit" – the gradient as if the bases had converged, by a Neumann series: its cost
            does not depend on the iterations, and it is `exact` once they have converged;
            "none" – the results are constants.
        weights: constants B,N or 1,N, how much each position counts: 0 leaves it out, as padding
            wants (it has responsibilities all the same), 2 counts it twice; None: each once.
        mixture: another mixture than the Gaussian that `variance` and `kernel` are short for, such
            as `hemnet.VonMisesFisher(10.0)`.
        linear: weight D,C and bias D (or None) of a linear map in front of EM, which then sees
            x·weightᵀ + bias. It is applied to the K bases instead of the N positions where that is
            less work; the result is the same.
        group: a process group over whose ranks the positions of each image are spread. Every rank
            has the same bases, and its own positions' responsibilities.

    Examples:
        >>> x, start = torch.randn(2, 4096, 64), torch.randn(32, 64)
        >>> result = highway_em(x, start, iterations=3, step_size=0.5)
        >>> result.bases.shape, result.responsibilities.shape
        (torch.Size([2, 32, 64]), torch.Size([2, 4096, 32]))
    """
    check_iterations(iterations)
    check_choice(backward, BACKWARDS, "backward")
    mixture, start = prepare(x, bases, mixture, variance, kernel, weights, linear)
    steps = check_steps(step_size, iterations, mixture.step_limit)
    dtype = product_dtype(x)  # before autocast is off
    with no_autocast(x), torch.set_grad_enabled(torch.is_grad_enabled() and backward != "none"):
        if linear is not None and not pays_off(x.shape[1], iterations, bases.shape[-2], mixture):
            x, linear = apply_linear(x, linear), None
        t = x if mixture.linear else mixture.statistics(upcast(x))
        features = Features(t, weights, linear, group, backward, dtype)
        solution = _implicit if backward == "implicit" else iterate
        *_, (_, found, last) = solution(features, start, steps, mixture)
    dtype = torch.promote_types(x.dtype, bases.dtype)
    return EMResult(last.to(dtype), found.responsibilities.to(x.dtype))


def pays_off(positions: int, iterations: int, bases: int, mixture: Mixture) -> bool:
    """Whether a linear map costs less on the bases of every iteration than on the positions.

    Exported for any size, it is on the bases: a file cannot choose.
    """
    if not mixture.linear:
        return False
    return torch.compiler.is_exporting() or positions > 2 * iterations * bases


def _implicit(
    features: Features, bases: Tensor, steps: Steps, mixture: Mixture
) -> Iterator[tuple[Tensor, Statistics, Tensor]]:
    """`iterate`, with a gradient as if the last bases were a fixed point μ = F(μ, x).

    That gradient is Σ_j (∂F/∂μ)ʲ ∂F/∂x. One more iteration at the same point adds one more term:
    its forward pass is known, and its backward pass needs no memory beyond its bases.
    """
    with torch.no_grad():
        *_, (bases, found, moved) = iterate(features, bases, steps, mixture)
    if not torch.is_grad_enabled():
        yield bases, found, moved
        return
    point, features.known = bases, features.seen
    # Any step size has the same fixed point. Full steps converge fastest where EM never overshoots.
    relaxed = (1.0,) if mixture.exact else steps[-1:]
    for _ in range(NEUMANN_TERMS):
        ((_, _, moved),) = iterate(features, bases, relaxed, mixture)
        bases = point + (moved - moved.detach())  # the point itself, with this gradient
    yield from iterate(features, bases, steps[-1:], mixture)


class Iteration(NamedTuple):
    """What one iteration of `trace` did.

    Attributes:
        bases: B,K,C that it moved to.
        responsibilities: B,N,K that it computed first.
        elbo: B, the bound with both.
    """

    bases: Tensor
    responsibilities: Tensor
    elbo: Tensor


def trace(
    x: Tensor,
    bases: Tensor,
    iterations: int = 3,
    step_size: StepSize = 0.5,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
    weights: Tensor | None = None,
    *,
    mixture: Mixture | None = None,
) -> Iterator[Iteration]:
    """`highway_em` one iteration at a time, each with its bound: for looking, not for training.

    The arguments are those of `highway_em`. The bound is taken after the N-step, with the
    responsibilities that led to it. Nothing is kept between iterations: `list(trace(…))` keeps
    all of them.
    """
    check_iterations(iterations)
    mixture, start = prepare(x, bases, mixture, variance, kernel, weights)
    steps = check_steps(step_size, iterations, mixture.step_limit)
    features = Features(mixture.statistics(upcast(x)), weights)
    for _, found, moved in iterate(features, start, steps, mixture, keep=True):
        bound = elbo(x, moved, found.responsibilities, weights=weights, mixture=mixture)
        yield Iteration(moved, found.responsibilities, bound)
