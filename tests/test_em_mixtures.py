"""The laws that every mixture has to obey, in float64."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hemnet
from hemnet.em.mixtures import MIXTURES, describe, mixture_from
from support.mixtures import SAMPLES, ids, problem

mixtures = st.sampled_from(SAMPLES)
seeds = st.integers(0, 2**31)


def test_every_mixture_is_tested() -> None:
    assert {type(mixture) for mixture in SAMPLES} == set(MIXTURES.values())


@given(mixtures, seeds, st.floats(0.01, 1.0))
def test_a_step_in_mean_parameters_raises_the_bound(
    mixture: hemnet.Mixture, seed: int, eta: float
) -> None:
    """Proposition 1, for any responsibilities."""
    x, start = problem(seed)
    bases = mixture.start(start).expand(2, -1, -1)
    generator = torch.Generator().manual_seed(seed + 1)
    gamma = torch.randn(2, 30, 3, generator=generator, dtype=torch.float64).mul(3).softmax(-1)
    before = hemnet.elbo(x, bases, gamma, mixture=mixture)
    moved = hemnet.n_step(x, bases, gamma, eta, mixture=mixture)
    after = hemnet.elbo(x, moved, gamma, mixture=mixture)
    assert bool((after >= before - 1e-9 * (1 + before.abs())).all())


@given(st.sampled_from([m for m in SAMPLES if m.step_limit == 2]), seeds, st.floats(1.0, 1.999))
def test_gaussians_may_step_too_far(mixture: hemnet.Mixture, seed: int, eta: float) -> None:
    """Their bound is a parabola in η with its top at 1: η and 2 − η gain the same."""
    x, bases = problem(seed)
    gamma = hemnet.e_step(x, bases, mixture=mixture)
    gains = []
    for step in (eta, 2 - eta):
        moved = hemnet.n_step(x, bases, gamma, step, mixture=mixture)
        gains.append(hemnet.elbo(x, moved, gamma, mixture=mixture))
    torch.testing.assert_close(gains[0], gains[1], rtol=1e-9, atol=1e-9)
    assert bool((gains[0] >= hemnet.elbo(x, bases, gamma, mixture=mixture) - 1e-9).all())


@given(st.sampled_from([m for m in SAMPLES if m.exact]), seeds, st.floats(0.05, 1.0))
def test_an_exact_e_step_is_tight_and_the_likelihood_rises(
    mixture: hemnet.Mixture, seed: int, eta: float
) -> None:
    x, bases = problem(seed)
    likelihoods = [hemnet.log_likelihood(x, bases, mixture=mixture)]
    current: Tensor = bases
    for step in hemnet.trace(x, bases, 4, eta, mixture=mixture):
        bound = hemnet.elbo(x, current, step.responsibilities, mixture=mixture)
        torch.testing.assert_close(bound, likelihoods[-1], rtol=1e-8, atol=1e-8)
        current = step.bases
        likelihoods.append(hemnet.log_likelihood(x, current, mixture=mixture))
    for earlier, later in itertools.pairwise(likelihoods):
        assert bool((later >= earlier - 1e-9 * (1 + earlier.abs())).all())


def test_an_inexact_e_step_says_so() -> None:
    assert [mixture.exact for mixture in SAMPLES[:2]] == [False, True]


@pytest.mark.parametrize("mixture", SAMPLES, ids=ids)
def test_densities_are_densities(mixture: hemnet.Mixture) -> None:
    """Against the textbook, up to what is the same for all components and points."""
    x, start = problem(3)
    bases = mixture.start(start)
    found = mixture.log_densities(x, bases)
    mean = mixture.means(bases)
    match mixture:
        case hemnet.Gaussian():
            expected = torch.distributions.Normal(mean, math.sqrt(0.7)).log_prob(x[:, :, None])
        case hemnet.DiagonalGaussian():
            deviation = mixture.variances(bases).sqrt()
            expected = torch.distributions.Normal(mean, deviation).log_prob(x[:, :, None])
        case hemnet.Bernoulli():
            p = mean.clamp(1e-4, 1 - 1e-4)
            expected = x[:, :, None] * p.log() + (1 - x[:, :, None]) * (1 - p).log()
        case hemnet.VonMisesFisher():
            direction = torch.nn.functional.normalize(x, dim=-1) if mixture.normalise else x
            expected = mixture.concentration * direction[:, :, None] * mean
    torch.testing.assert_close(found, expected.sum(-1))


@pytest.mark.parametrize("mixture", SAMPLES, ids=ids)
def test_a_description_makes_the_same_mixture(mixture: hemnet.Mixture) -> None:
    again = mixture_from(describe(mixture))
    assert repr(again) == repr(mixture)


@pytest.mark.parametrize(
    "given_,message",
    [
        ("Gauss", "mixture must be one of Gaussian"),
        ({"name": "VonMisesFisher", "kappa": 3}, "settings concentration, normalise"),
        ({"name": "VonMisesFisher", "concentration": -1}, "concentration must be one positive"),
        ({"name": "Bernoulli", "margin": 0.6}, "margin must lie between 0 and 0.5"),
    ],
)
def test_wrong_descriptions_are_named(given_: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixture_from(given_)


def test_wrong_uses_are_named() -> None:
    x, bases = problem(0)
    with pytest.raises(ValueError, match="short for a Gaussian"):
        hemnet.highway_em(x, bases, variance=2.0, mixture=hemnet.Bernoulli())
    with pytest.raises(TypeError, match=r"hemnet\.Mixture; got str"):
        hemnet.highway_em(x, bases, mixture="Bernoulli")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(0, 1\]; got 1.5"):
        hemnet.highway_em(x, bases, step_size=1.5, mixture=hemnet.Bernoulli())


def test_emanets_iteration_is_a_von_mises_fisher_mixture() -> None:
    """κ = 1, full steps, features as long as they are: written out here as its paper has it."""
    x, mu = problem(5)
    result = hemnet.highway_em(
        x, mu, 3, 1.0, backward="none", mixture=hemnet.VonMisesFisher(1.0, normalise=False)
    )
    for _ in range(3):
        z = (x @ mu.mT).softmax(-1)
        mu = torch.nn.functional.normalize((z / z.sum(1, keepdim=True)).mT @ x, dim=-1)
    torch.testing.assert_close(result.bases, mu)
    torch.testing.assert_close(result.responsibilities, z)


@pytest.mark.parametrize("mixture", SAMPLES, ids=ids)
def test_a_unit_with_any_mixture_trains_saves_and_evaluates(mixture: hemnet.Mixture) -> None:
    unit = hemnet.HighwayEMAttention(4, bases=3, gain=0.5, mixture=describe(mixture)).double()
    image = torch.rand(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    unit(image).square().sum().backward()
    assert bool(unit.conv_in.weight.grad.abs().sum() > 0)
    unit.eval()
    twin = hemnet.HighwayEMAttention(4, bases=3, mixture=mixture).double().eval()
    twin.load_state_dict(unit.state_dict())
    torch.testing.assert_close(twin(image), unit(image))
    assert unit.health().bases == 3
