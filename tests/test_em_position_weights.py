"""Weights of positions: 1 changes nothing, 0 leaves out, a whole number repeats."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import hemnet
from hemnet.em import elbo, highway_em, log_likelihood, n_step, trace
from support.strategies import Problem, problems, step_sizes

CLOSE = {"atol": 1e-9, "rtol": 1e-9}
MODES = ("exact", "autograd", "highway")


def run(p: Problem, step: float, weights: Tensor | None, x: Tensor | None = None, **more: str):
    return highway_em(
        p.x if x is None else x, p.bases, 3, step, p.variance, p.kernel, weights=weights, **more
    )


def drawn(p: Problem, seed: int, low: int = 0, high: int = 3) -> Tensor:
    """The same whole weights for every image, at least one of them not 0."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(low, high + 1, (1, p.x.shape[1]), generator=generator).double()
    weights[0, 0] = max(1.0, float(weights[0, 0]))
    return weights


@given(problems(), step_sizes)
def test_weights_of_one_change_nothing(p: Problem, step: float) -> None:
    ones = torch.ones(p.x.shape[:2], dtype=p.x.dtype)
    torch.testing.assert_close(run(p, step, ones).bases, run(p, step, None).bases, **CLOSE)
    gamma = run(p, step, None).responsibilities
    args = (p.x, p.bases, gamma, p.variance)
    torch.testing.assert_close(elbo(*args, ones), elbo(*args), **CLOSE)
    torch.testing.assert_close(
        log_likelihood(p.x, p.bases, p.variance, ones),
        log_likelihood(p.x, p.bases, p.variance),
        **CLOSE,
    )


@given(problems(), step_sizes, st.integers(0, 2**31))
def test_weight_zero_equals_leaving_the_position_out(p: Problem, step: float, seed: int) -> None:
    weights = drawn(p, seed, high=1)
    kept = weights[0] > 0
    full, less = run(p, step, weights), run(p, step, None, p.x[:, kept])
    torch.testing.assert_close(full.bases, less.bases, **CLOSE)
    torch.testing.assert_close(full.responsibilities[:, kept], less.responsibilities, **CLOSE)
    # The positions left out are still explained by the bases.
    assert full.responsibilities.shape[1] == p.x.shape[1]


@given(problems(), step_sizes, st.integers(0, 2**31))
def test_a_whole_weight_equals_repeating_the_position(p: Problem, step: float, seed: int) -> None:
    weights = drawn(p, seed)
    repeated = p.x.repeat_interleave(weights[0].long(), dim=1)
    ours, theirs = run(p, step, weights), run(p, step, None, repeated)
    torch.testing.assert_close(ours.bases, theirs.bases, **CLOSE)
    torch.testing.assert_close(
        elbo(p.x, ours.bases, ours.responsibilities, p.variance, weights),
        elbo(repeated, theirs.bases, theirs.responsibilities, p.variance),
        atol=1e-7,
        rtol=1e-9,
    )


@given(problems(), step_sizes, st.integers(0, 2**31))
def test_every_step_raises_the_weighted_bound(p: Problem, step: float, seed: int) -> None:
    weights = torch.rand(p.x.shape[:2], generator=torch.Generator().manual_seed(seed)).double()
    gamma = hemnet.e_step(p.x, p.bases, p.variance, p.kernel)
    before = elbo(p.x, p.bases, gamma, p.variance, weights)
    moved = n_step(p.x, p.bases, gamma, step, weights)
    after = elbo(p.x, moved, gamma, p.variance, weights)
    assert (after >= before - 1e-9 * before.abs().clamp_min(1)).all()


@given(problems(), step_sizes, st.integers(0, 2**31))
def test_a_trace_has_the_weighted_bases(p: Problem, step: float, seed: int) -> None:
    weights = drawn(p, seed)
    *_, last = trace(p.x, p.bases, 3, step, p.variance, p.kernel, weights=weights)
    torch.testing.assert_close(last.bases, run(p, step, weights).bases, **CLOSE)


@pytest.mark.parametrize("kernel", ["dot", "rbf"])
@pytest.mark.parametrize("shared", [True, False])
def test_exact_gradients_are_autograds_with_weights(kernel: str, shared: bool) -> None:
    torch.manual_seed(0)
    weights = torch.rand(1 if shared else 2, 30).double()
    weights[:, 10:14] = 0

    def gradients(backward: str) -> list[Tensor]:
        torch.manual_seed(1)
        x = torch.randn(2, 30, 4).double().requires_grad_()
        bases = torch.randn(5, 4).double().requires_grad_()
        step = torch.tensor(0.4).double().requires_grad_()
        variance = torch.tensor(0.8).double().requires_grad_()
        result = highway_em(x, bases, 3, step, variance, kernel, backward, weights=weights)
        loss = result.bases.sin().sum() + result.responsibilities.square().sum()
        return list(torch.autograd.grad(loss, (x, bases, step, variance)))

    for ours, plain in zip(gradients("exact"), gradients("autograd"), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("backward", MODES)
def test_gradients_with_weight_zero_are_those_without_the_position(backward: str) -> None:
    torch.manual_seed(0)
    x, bases = torch.randn(2, 12, 3).double(), torch.randn(4, 3).double()
    kept = torch.arange(12) % 3 != 0

    def gradient(features: Tensor, weights: Tensor | None) -> list[Tensor]:
        leaf, start = features.clone().requires_grad_(), bases.clone().requires_grad_()
        found = highway_em(leaf, start, 3, 0.5, 1.0, "dot", backward, weights=weights)
        return list(torch.autograd.grad(found.bases.square().sum(), (leaf, start)))

    full, less = gradient(x, kept.double()[None]), gradient(x[:, kept], None)
    torch.testing.assert_close(full[0][:, kept], less[0], **CLOSE)
    assert (full[0][:, ~kept] == 0).all()
    torch.testing.assert_close(full[1], less[1], **CLOSE)


@pytest.mark.parametrize(
    "wrong",
    [torch.ones(3, 5), torch.ones(2, 6), torch.ones(5), torch.ones(2, 5).requires_grad_()],
)
def test_weights_that_do_not_fit_are_refused(wrong: Tensor) -> None:
    with pytest.raises(ValueError, match="weights"):
        highway_em(torch.randn(2, 5, 3), torch.randn(4, 3), weights=wrong)
