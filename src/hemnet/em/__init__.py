"""Highway EM as pure functions on tensors. Imports nothing else of this package."""

from hemnet.em.bound import elbo, log_likelihood
from hemnet.em.mixtures import (
    KERNELS,
    Bernoulli,
    DiagonalGaussian,
    Gaussian,
    Mixture,
    VonMisesFisher,
)
from hemnet.em.solver import BACKWARDS, EMResult, Iteration, highway_em, trace
from hemnet.em.steps import e_step, n_step, r_step

__all__ = [
    "BACKWARDS",
    "KERNELS",
    "Bernoulli",
    "DiagonalGaussian",
    "EMResult",
    "Gaussian",
    "Iteration",
    "Mixture",
    "VonMisesFisher",
    "e_step",
    "elbo",
    "highway_em",
    "log_likelihood",
    "n_step",
    "r_step",
    "trace",
]
