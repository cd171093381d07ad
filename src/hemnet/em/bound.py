"""The evidence lower bound and the likelihood that highway EM raises.

As in the paper the mixing weights are dropped from both, so the mixture "density" is the plain
sum of K densities and ELBO ≤ log-likelihood holds with equality at the exact posterior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hemnet.em.mixtures import Mixture, prepare
from hemnet.em.numeric import no_autocast, upcast


def elbo(
    x: Tensor,
    bases: Tensor,
    responsibilities: Tensor,
    variance: float | Tensor | None = None,
    weights: Tensor | None = None,
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """The evidence lower bound Σ γ ln p(x|k) − Σ γ ln γ of each image: B.

    The arguments are those of `highway_em`, with any responsibilities γ: B,N,K; the mixture is
    that of the Gaussians N(x|μ, σ²I) unless given.
    """
    mixture, parameters = prepare(
        x, bases, mixture, variance, weights=weights, responsibilities=responsibilities
    )
    gamma = upcast(responsibilities)
    with no_autocast(x):
        terms = gamma * mixture.log_densities(upcast(x), parameters) - torch.xlogy(gamma, gamma)
    return _total(terms.sum(dim=-1), weights)


def log_likelihood(
    x: Tensor,
    bases: Tensor,
    variance: float | Tensor | None = None,
    weights: Tensor | None = None,
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """The log-likelihood Σₙ ln Σₖ p(xₙ|k) of each image, B, which `elbo` is a lower bound of."""
    mixture, parameters = prepare(x, bases, mixture, variance, weights=weights)
    with no_autocast(x):
        densities = mixture.log_densities(upcast(x), parameters)
    return _total(densities.logsumexp(dim=-1), weights)


def _total(terms: Tensor, weights: Tensor | None) -> Tensor:
    """The sum over positions of terms: B,N, each as often as it counts: B."""
    return (terms if weights is None else terms * weights.to(terms.dtype)).sum(dim=-1)
