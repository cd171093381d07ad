"""Highway EM as pure functions on tensors. Imports nothing else of this package."""

from hemnet.em.bound import elbo as elbo
from hemnet.em.bound import log_likelihood as log_likelihood
from hemnet.em.mixtures import KERNELS as KERNELS
from hemnet.em.mixtures import Bernoulli as Bernoulli
from hemnet.em.mixtures import DiagonalGaussian as DiagonalGaussian
from hemnet.em.mixtures import Gaussian as Gaussian
from hemnet.em.mixtures import Mixture as Mixture
from hemnet.em.mixtures import VonMisesFisher as VonMisesFisher
from hemnet.em.solver import BACKWARDS as BACKWARDS
from hemnet.em.solver import EMResult as EMResult
from hemnet.em.solver import Iteration as Iteration
from hemnet.em.solver import highway_em as highway_em
from hemnet.em.solver import trace as trace
from hemnet.em.steps import e_step as e_step
from hemnet.em.steps import n_step as n_step
from hemnet.em.steps import r_step as r_step
