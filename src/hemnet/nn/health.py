"""How the bases are doing: collapsed into one, saturated, or healthy.

Around bases that are all equal, one iteration multiplies differences by (1−η) + η·Cov(x)/σ². With
λ the largest eigenvalue of Cov(x), everything hangs on λ/σ²: below 1 all differences die out and
every position is rebuilt as the same vector; far above 1 the softmax saturates and the E-step has
no gradient. `docs/method.md` derives and measures both.

Responsibilities may be nearly hard and the E-step still pass most of the gradient: what a small
change moves between two bases grows with the distance between them over σ². So it is the gradient
itself that is measured.

Whatever the reason, a unit that rebuilds every position as the same vector is a global mean. So
that is measured itself: how much of the features' variance over positions is left when they have
been rebuilt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hemnet.em import Gaussian, Mixture, n_step, r_step
from hemnet.em.mixtures import initial
from hemnet.em.numeric import upcast
from hemnet.em.statistics import softmax_of

# Share of the variance left below which a unit acts as a global mean: units that solve recall have
# 0.4 to 0.9, those that stay at the majority of the lamps less than 0.02.
GLOBAL_MEAN = 0.05
SAMPLE = 512  # positions of an image that stand for all of it
SATURATED = 0.01  # share of the gradient through the E-step below which it passes none to speak of


class BasesWarning(UserWarning):
    """The bases of an attention unit have collapsed or saturated in training."""


@dataclass(frozen=True)
class Health:
    """How the bases of an attention unit are doing; as text, one line to print.

    Attributes:
        ratio: λ/σ², the features' variance over the mixture's: below 1 the bases collapse.
        spread: distance of the bases from their mean, relative to their norm: 0 … 1.
        entropy: of a position's responsibilities, in nats: 0 … ln K.
        in_use: share of the bases that explain some position best.
        rebuilt: share of the features' variance over positions that the rebuilt features have:
            near 0 the unit is a global mean.
        e_step: of the gradient that reaches the features through an iteration, the share that
            comes through the E-step: near 0 the responsibilities are hard and learn nothing.
        bases: K.
    """

    ratio: float
    spread: float
    entropy: float
    in_use: float
    rebuilt: float
    e_step: float
    bases: int

    @property
    def state(self) -> str:
        """ "collapsed" into a global mean, "saturated" or "healthy"."""
        if self.rebuilt < GLOBAL_MEAN:
            return "collapsed"
        return "saturated" if self.e_step < SATURATED else "healthy"

    def __str__(self) -> str:
        return (
            f"{self.state}: λ/σ² {self.ratio:.2f}, variance rebuilt {self.rebuilt:.1%}, "
            f"spread {self.spread:.2f}, entropy {self.entropy:.2f} of {math.log(self.bases):.2f}, "
            f"bases in use {self.in_use:.0%}, gradient through the E-step {self.e_step:.1%}"
        )


@torch.no_grad()
def position_sample(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Evenly spaced positions of x: B,N,C in float32, and their weights. The same in any batch."""
    stride = max(1, x.shape[1] // SAMPLE)
    chosen = slice(0, min(SAMPLE * stride, x.shape[1]), stride)
    return upcast(x[:, chosen]).clone(), None if weights is None else weights[:, chosen].clone()


@torch.no_grad()
def read_health(
    x: Tensor,
    start: Tensor,
    bases: Tensor,
    responsibilities: Tensor,
    mixture: Mixture,
    step: float | Tensor,
    weights: Tensor | None = None,
) -> Health:
    """What T iterations made of x: B,N,C features (a sample does) starting from bases …,K,P.

    They ended with `bases` and `responsibilities`: B,N,K, and the step size `step`. Positions whose
    weight (B,N) is 0 are not looked at.
    """
    principal = largest_variance(x, weights=weights)
    gamma = responsibilities.float().flatten(0, 1)
    if weights is not None:
        gamma = gamma[weights.expand(x.shape[:2]).flatten() > 0]
    entropy = -torch.xlogy(gamma, gamma).sum(dim=-1).mean()
    used = torch.zeros(gamma.shape[-1], device=gamma.device)
    used[gamma.argmax(dim=-1)] = 1
    # Directions of unit length say nothing of how far features are apart: means of x do.
    first = mixture.means(initial(start, x, mixture, x.shape[-1]))
    means = (
        mixture.means(bases)
        if isinstance(mixture, Gaussian)
        else n_step(x, first, responsibilities, 1.0, weights)
    )
    variance = mixture.variance
    return Health(
        ratio=math.nan if variance is None else float(principal / variance),
        spread=float(spread(first)),
        entropy=float(entropy),
        in_use=float(used.mean()),
        rebuilt=variance_rebuilt(x, responsibilities, means, weights),
        e_step=e_step_share(x, bases, mixture, step, weights),
        bases=gamma.shape[-1],
    )


def e_step_share(
    x: Tensor,
    bases: Tensor,
    mixture: Mixture,
    step: float | Tensor = 1.0,
    weights: Tensor | None = None,
) -> float:
    """The E-step's share of the gradient that an iteration from `bases` passes to x: B,N,C.

    Of the mean absolute gradient of a random linear function of the rebuilt features.
    """
    # Copies: autograd takes no tensors that were made in inference mode.
    with torch.inference_mode(False), torch.enable_grad():
        in_logits, in_sums = (x.clone().requires_grad_() for _ in range(2))
        start, weights = bases.clone(), None if weights is None else weights.clone()
        step = step.clone() if isinstance(step, Tensor) else step
        weight, bias = mixture.logits(start)
        gamma = softmax_of(mixture.statistics(in_logits), weight, bias)
        moved = n_step(in_sums, start, gamma, step, weights, mixture=mixture)
        rebuilt = r_step(gamma, mixture.means(moved))
        probe = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(rebuilt)
        both = torch.autograd.grad((probe * rebuilt).sum(), (in_logits, in_sums))
        by_e_step, by_n_step = (float(gradient.abs().mean()) for gradient in both)
    return by_e_step / max(by_e_step + by_n_step, torch.finfo(x.dtype).tiny)


def variance_rebuilt(
    x: Tensor, responsibilities: Tensor, bases: Tensor, weights: Tensor | None = None
) -> float:
    """Variance over positions of the rebuilt features γμ, B,N,C, relative to that of x: 0 … 1."""
    rebuilt = r_step(responsibilities.to(x.dtype), bases.to(x.dtype))
    whole = variance_over_positions(x, weights)
    left = variance_over_positions(rebuilt, weights)
    return float(left / whole.clamp_min(torch.finfo(whole.dtype).tiny))


def variance_over_positions(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """The sum over channels and images of the variance of x: B,N,C over positions."""
    counts = x.new_ones(x.shape[:2]) if weights is None else weights.to(x).expand(x.shape[:2])
    shares = (counts / counts.sum(1, keepdim=True).clamp_min(1e-30)).unsqueeze(-1)
    centred = x - (shares * x).sum(1, keepdim=True)
    return (shares * centred.square()).sum()


def spread(bases: Tensor) -> Tensor:
    """Root mean square distance of bases: …,K,C from their mean, relative to their norm."""
    centred = bases - bases.mean(dim=-2, keepdim=True)
    return centred.norm() / bases.norm().clamp_min(torch.finfo(bases.dtype).tiny)


def largest_variance(x: Tensor, iterations: int = 32, weights: Tensor | None = None) -> Tensor:
    """λ: the largest eigenvalue of the covariance of x: B,N,C within images, by power iteration.

    Approached from below; 32 iterations are within 2 % when the second eigenvalue is at most 0.95
    of the first, and no further off than the two are apart when they are closer.
    """
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(x.shape[-1], generator=generator).to(x)
    for _ in range(iterations):
        direction = torch.nn.functional.normalize(direction, dim=0)
        direction = covariance_product(x, direction, weights).mean(0)
    return direction.norm()


def covariance_product(x: Tensor, direction: Tensor, weights: Tensor | None = None) -> Tensor:
    """Cov(x_b)·direction for each image of x: B,N,C  →  B,C, without forming the covariance.

    Positions count as often as weights: B,N or 1,N say, once where None.
    """
    projection = x @ direction  # B,N
    if weights is None:
        projection = projection - projection.mean(dim=1, keepdim=True)
        return (projection.unsqueeze(1) @ x).squeeze(1) / x.shape[1]
    weights = weights.to(x)
    total = weights.sum(dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    mean = (projection * weights).sum(dim=1, keepdim=True) / total
    projection = (projection - mean) * weights / total
    return (projection.unsqueeze(1) @ x).squeeze(1)
