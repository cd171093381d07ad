"""The evidence lower bound and the likelihood that highway EM raises.

As in the paper the mixing weights are dropped from both, so the mixture "density" is the plain
sum of K densities and ELBO ≤ log-likelihood holds with equality at the exact posterior.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hemnet.em.checks import channels_of, check_features, check_responsibilities, check_weights
from hemnet.em.mixtures import Mixture, make_mixture
from hemnet.em.numeric import no_autocast, upcast
from hemnet.em.steps import parameters


def elbo(
    x: Tensor,
    bases: Tensor,
    responsibilities: Tensor,
    variance: float | Tensor | None = None,
    weights: Tensor | None = None,
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """The evidence lower bound Σ γ ln p(x|k) − Σ γ ln γ, by default of the Gaussians N(x|μ, σ²I).

    Args:
        x: features B,N,C.
        bases: μ, K,C or B,K,C.
        responsibilities: γ, B,N,K.
        variance: σ²; √C where None.
        weights: how much each position counts, B,N; None: each once.
        mixture: another mixture than a Gaussian.

    Returns:
        The bound of each image, B.
    """
    check_responsibilities(responsibilities, bases, x)
    gamma = upcast(responsibilities)
    with no_autocast(x):
        densities = _log_densities(x, bases, variance, mixture)
        terms = gamma * densities - torch.xlogy(gamma, gamma)
        return _total(terms.sum(dim=-1), x, weights)


def log_likelihood(
    x: Tensor,
    bases: Tensor,
    variance: float | Tensor | None = None,
    weights: Tensor | None = None,
    *,
    mixture: Mixture | None = None,
) -> Tensor:
    """The log-likelihood Σₙ ln Σₖ p(xₙ|k), which the bound approaches from below.

    Args:
        x: features B,N,C.
        bases: μ, K,C or B,K,C.
        variance: σ²; √C where None.
        weights: how much each position counts, B,N; None: each once.
        mixture: another mixture than a Gaussian.

    Returns:
        One number for each image, B.
    """
    with no_autocast(x):
        densities = _log_densities(x, bases, variance, mixture)
        return _total(densities.logsumexp(dim=-1), x, weights)


def _total(terms: Tensor, x: Tensor, weights: Tensor | None) -> Tensor:
    """The sum over positions of terms: B,N, each as often as it counts: B."""
    check_weights(weights, x)
    return (terms if weights is None else terms * weights.to(terms.dtype)).sum(dim=-1)


def _log_densities(
    x: Tensor, bases: Tensor, variance: float | Tensor | None, mixture: Mixture | None
) -> Tensor:
    """ln p(x_n|k): B,N,K."""
    mixture = make_mixture(mixture, variance, "dot", channels_of(x))
    check_features(x, bases, None, mixture.width(x.shape[-1]))
    return mixture.log_densities(upcast(x), parameters(bases, x.shape[-1], mixture))
