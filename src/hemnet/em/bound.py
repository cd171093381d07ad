"""The evidence lower bound and the likelihood that highway EM raises.

As in the paper the mixing weights are dropped from both, so the mixture "density" is the plain
sum of K Gaussians and ELBO ≤ log-likelihood holds with equality at the exact posterior.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hemnet.em.checks import check_features, check_responsibilities, check_variance, check_weights
from hemnet.em.steps import no_autocast, wide


def elbo(
    x: Tensor,
    bases: Tensor,
    responsibilities: Tensor,
    variance: float | Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """The evidence lower bound Σ γ ln N(x|μ, σ²I) − Σ γ ln γ.

    Args:
        x: features B,N,C.
        bases: μ, K,C or B,K,C.
        responsibilities: γ, B,N,K.
        variance: σ²; √C where None.
        weights: how much each position counts, B,N; None: each once.

    Returns:
        The bound of each image, B.
    """
    check_features(x, bases)
    check_responsibilities(responsibilities, bases, x)
    gamma = wide(responsibilities)
    with no_autocast(x):
        terms = gamma * _log_densities(x, bases, variance) - torch.xlogy(gamma, gamma)
        return _total(terms.sum(dim=-1), x, weights)


def log_likelihood(
    x: Tensor,
    bases: Tensor,
    variance: float | Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """The log-likelihood Σₙ ln Σₖ N(xₙ|μₖ, σ²I), which the bound approaches from below.

    Args:
        x: features B,N,C.
        bases: μ, K,C or B,K,C.
        variance: σ²; √C where None.
        weights: how much each position counts, B,N; None: each once.

    Returns:
        One number for each image, B.
    """
    check_features(x, bases)
    with no_autocast(x):
        return _total(_log_densities(x, bases, variance).logsumexp(dim=-1), x, weights)


def _total(terms: Tensor, x: Tensor, weights: Tensor | None) -> Tensor:
    """The sum over positions of terms: B,N, each as often as it counts: B."""
    check_weights(weights, x)
    return (terms if weights is None else terms * weights.to(terms.dtype)).sum(dim=-1)


def _log_densities(x: Tensor, bases: Tensor, variance: float | Tensor | None) -> Tensor:
    """ln N(x_n|μ_k, σ²I): B,N,K."""
    variance = check_variance(variance, x.shape[-1])
    # Distances through products (‖x‖² − 2x·μ + ‖μ‖²), centred first so that little cancels.
    centre = wide(x).mean(dim=1, keepdim=True).detach()
    x, bases = wide(x) - centre, wide(bases) - centre
    squares = x.square().sum(-1, keepdim=True) + bases.square().sum(-1).unsqueeze(-2)
    distances = squares - 2 * x @ bases.mT
    normaliser = (
        0.5
        * x.shape[-1]
        * (
            math.log(2 * math.pi)
            + (torch.log(variance) if isinstance(variance, Tensor) else math.log(variance))
        )
    )
    return distances / (-2 * variance) - normaliser
