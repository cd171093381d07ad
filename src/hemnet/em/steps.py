"""The three steps of highway EM as functions of their own.

Half-precision tensors are computed in float32 and handed back in their own type.
"""

from __future__ import annotations

from torch import Tensor, promote_types

from hemnet.em.checks import check_shapes, check_steps
from hemnet.em.mixtures import Mixture, mean_statistics, prepare
from hemnet.em.numeric import no_autocast, upcast
from hemnet.em.statistics import softmax_of


def e_step(
    x: Tensor,
    bases: Tensor,
    variance: float | Tensor | None = None,
    kernel: str = "dot",
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """Responsibilities B,N,K: how much each basis explains each position; rows sum to 1.

    With the kernel "dot" they are the softmax over the bases of x·μ / σ², with "rbf" that of
    −‖x−μ‖² / 2σ², the exact posterior. The arguments are those of `highway_em`.
    """
    mixture, parameters = prepare(x, bases, mixture, variance, kernel)
    with no_autocast(x):
        return softmax_of(mixture.statistics(upcast(x)), *mixture.logits(parameters)).to(x.dtype)


def n_step(
    x: Tensor,
    bases: Tensor,
    responsibilities: Tensor,
    step_size: float | Tensor,
    weights: Tensor | None = None,
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """Bases B,K,C after one damped Newton step: (1−η)·bases + η·(weighted means of x).

    The arguments are those of `highway_em`, with any responsibilities B,N,K.
    """
    mixture, start = prepare(x, bases, mixture, weights=weights, responsibilities=responsibilities)
    (step,) = check_steps(step_size, 1, mixture.step_limit)
    gamma = upcast(responsibilities)
    gamma = gamma if weights is None else gamma * weights.unsqueeze(-1).to(gamma.dtype)
    with no_autocast(x):
        sums = gamma.mT @ mixture.statistics(upcast(x))
        moved = mixture.move(start, mean_statistics(sums, gamma.sum(dim=1), start), step)
    return moved.to(promote_types(x.dtype, bases.dtype))


def r_step(responsibilities: Tensor, bases: Tensor) -> Tensor:
    """Features rebuilt from the bases: responsibilities B,N,K times bases B,K,C or K,C: B,N,C."""
    check_shapes(
        responsibilities=(responsibilities, "(batch, positions, bases)"),
        bases=(bases, "(bases, channels) or (batch, bases, channels)"),
    )
    gamma, means = upcast(responsibilities), upcast(bases)
    with no_autocast(gamma):
        return (gamma @ means).to(responsibilities.dtype)
