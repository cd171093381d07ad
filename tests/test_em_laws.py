"""The laws of highway EM (docs/method.md) as properties, in float64."""

import itertools
import math

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import hemnet
from support.strategies import Problem, problems, step_sizes

iteration_counts = st.integers(1, 6)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def solve(p: Problem, iterations: int, step_size: float, **options: object) -> hemnet.EMResult:
    return hemnet.highway_em(p.x, p.bases, iterations, step_size, p.variance, p.kernel, **options)


def plain_em(p: Problem, iterations: int) -> tuple[Tensor, Tensor]:
    """EM for a mixture of Gaussians, image by image and basis by basis, sharing no code of ours."""
    all_bases, all_gamma = [], []
    for b, x in enumerate(p.x):
        mu = p.bases if p.bases.ndim == 2 else p.bases[b]
        for _ in range(iterations):
            if p.kernel == "dot":
                logits = torch.stack([(x * m).sum(-1) for m in mu], dim=-1) / p.variance
            else:
                logits = torch.stack([-(x - m).square().sum(-1) for m in mu], -1) / (2 * p.variance)
            gamma = torch.exp(logits - logits.logsumexp(-1, keepdim=True))
            mu = torch.stack(
                [(gamma[:, [k]] * x).sum(0) / gamma[:, k].sum() for k in range(len(mu))]
            )
        all_bases.append(mu)
        all_gamma.append(gamma)
    return torch.stack(all_bases), torch.stack(all_gamma)


@given(problems(), iteration_counts)
def test_full_steps_are_plain_em(p: Problem, iterations: int) -> None:
    result = solve(p, iterations, 1.0)
    bases, gamma = plain_em(p, iterations)
    assume(bool(gamma.sum(1).min() > 1e-100))  # beyond that, plain EM itself divides 0 by 0
    close(result.bases, bases, 1e-7)
    close(result.responsibilities, gamma, 1e-7)


@given(problems(), iteration_counts, step_sizes)
def test_closed_form_of_the_paper(p: Problem, iterations: int, eta: float) -> None:
    states = [p.bases.expand(p.x.shape[0], *p.bases.shape[-2:])]
    states += [
        step.bases for step in hemnet.trace(p.x, p.bases, iterations, eta, p.variance, p.kernel)
    ]
    expected = (1 - eta) ** iterations * states[0]
    for i, mu in enumerate(states[:-1]):
        em = hemnet.highway_em(p.x, mu, 1, 1.0, p.variance, p.kernel).bases  # F(μ⁽ⁱ⁾, x)
        expected = expected + eta * (1 - eta) ** (iterations - i - 1) * em
    close(solve(p, iterations, eta).bases, expected, 1e-8)


@given(problems(), step_sizes, st.integers(0, 2**31))
def test_n_step_raises_the_bound_for_any_responsibilities(
    p: Problem, eta: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (*p.x.shape[:2], p.bases.shape[-2])
    gamma = torch.randn(shape, generator=generator, dtype=torch.float64).mul(3).softmax(-1)
    before = hemnet.elbo(p.x, p.bases, gamma, p.variance)
    moved = hemnet.n_step(p.x, p.bases, gamma, eta)
    after = hemnet.elbo(p.x, moved, gamma, p.variance)
    # Proposition 1 with its size: the bound is a parabola in η with its top at the weighted mean.
    means = hemnet.n_step(p.x, p.bases, gamma, 1.0)
    distance = (gamma.sum(1) * (means - p.bases).square().sum(-1)).sum(-1)
    gain = (1 - (1 - eta) ** 2) * distance / (2 * p.variance)
    assert bool((gain >= 0).all())
    close(after - before, gain, 1e-6)


@given(problems(kernels=("rbf",)), iteration_counts, step_sizes)
def test_rbf_sequence_never_lowers_bound_or_likelihood(
    p: Problem, iterations: int, eta: float
) -> None:
    bounds, likelihoods = [], [hemnet.log_likelihood(p.x, p.bases, p.variance)]
    bases = p.bases
    for step in hemnet.trace(p.x, p.bases, iterations, eta, p.variance, "rbf"):
        after_e = hemnet.elbo(p.x, bases, step.responsibilities, p.variance)
        close(after_e, likelihoods[-1], 1e-8)  # the bound is tight at the exact posterior
        bounds += [after_e, step.elbo]
        bases = step.bases
        likelihoods.append(hemnet.log_likelihood(p.x, bases, p.variance))
    for values in (bounds, likelihoods):
        for earlier, later in itertools.pairwise(values):
            assert bool((later >= earlier - 1e-9 * (1 + earlier.abs())).all())


@given(problems(), step_sizes, step_sizes)
def test_fixed_points_do_not_depend_on_the_step_size(p: Problem, eta: float, other: float) -> None:
    converged = solve(p, 150, max(eta, 0.3)).bases
    residual = hemnet.highway_em(p.x, converged, 1, 1.0, p.variance, p.kernel).bases - converged
    assume(bool(residual.abs().max() < 1e-9))
    moved = hemnet.highway_em(p.x, converged, 3, other, p.variance, p.kernel).bases
    close(moved, converged, 1e-7)


@given(problems(), iteration_counts, step_sizes, st.randoms(use_true_random=False))
def test_permutations(p: Problem, iterations: int, eta: float, random: object) -> None:
    result = solve(p, iterations, eta)
    rows = list(range(p.x.shape[1]))
    columns = list(range(p.bases.shape[-2]))
    random.shuffle(rows)
    random.shuffle(columns)
    positions = hemnet.highway_em(p.x[:, rows], p.bases, iterations, eta, p.variance, p.kernel)
    close(positions.bases, result.bases, 1e-8)
    close(positions.responsibilities, result.responsibilities[:, rows], 1e-8)
    swapped = hemnet.highway_em(
        p.x, p.bases[..., columns, :], iterations, eta, p.variance, p.kernel
    )
    close(swapped.bases, result.bases[:, columns], 1e-8)
    close(swapped.responsibilities, result.responsibilities[..., columns], 1e-8)


@given(problems(), st.floats(0.05, 1.0), st.integers(0, 2**31))
def test_growth_of_a_small_disturbance(p: Problem, eta: float, seed: int) -> None:
    """Differences between nearly equal bases grow by (1−η) + ηλ/σ² along λ's direction."""
    x = p.x[:1] - p.x[:1].mean(1, keepdim=True)
    if p.kernel == "rbf":
        x = x + 0.7  # rbf compares distances: where the mean lies does not matter
    covariance = torch.cov(x[0].T, correction=0).reshape(x.shape[-1], -1)
    values, vectors = torch.linalg.eigh(covariance)
    assume(float(values[-1]) > 1e-3)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(4, 1, generator=generator, dtype=torch.float64)
    delta = 1e-5 * (weights - weights.mean()) * vectors[:, -1]
    mean = x.mean(1)
    moved = hemnet.highway_em(x, mean + delta, 1, eta, p.variance, p.kernel).bases[0]
    growth = (moved - moved.mean(0)).norm() / delta.norm()
    expected = (1 - eta) + eta * float(values[-1]) / p.variance
    assert math.isclose(float(growth), expected, rel_tol=0.01)


@given(problems(), iteration_counts, step_sizes)
def test_trace_is_highway_em_seen_from_inside(p: Problem, iterations: int, eta: float) -> None:
    result = solve(p, iterations, eta)
    steps = list(hemnet.trace(p.x, p.bases, iterations, eta, p.variance, p.kernel))
    assert len(steps) == iterations
    close(steps[-1].bases, result.bases)
    close(steps[-1].responsibilities, result.responsibilities)
    close(steps[-1].elbo, hemnet.elbo(p.x, result.bases, result.responsibilities, p.variance))


def test_bound_and_likelihood_by_hand() -> None:
    x = torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    bases = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    gamma = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]], dtype=torch.float64)

    def density(d: float) -> float:
        return -d * d / (2 * 0.5) - 0.5 * math.log(2 * math.pi * 0.5)

    elbo = density(0) + 0.25 * density(1) + 0.75 * density(1)
    elbo -= 0.25 * math.log(0.25) + 0.75 * math.log(0.75)
    likelihood = math.log(math.exp(density(0)) + math.exp(density(2)))
    likelihood += math.log(math.exp(density(1)) + math.exp(density(1)))
    assert math.isclose(float(hemnet.elbo(x, bases, gamma, 0.5)), elbo, rel_tol=1e-12)
    assert math.isclose(float(hemnet.log_likelihood(x, bases, 0.5)), likelihood, rel_tol=1e-12)
