"""Edges of highway EM: number types, extreme values, degenerate shapes, wrong arguments."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import hemnet

MODES = ["exact", "autograd", "highway"]
KERNELS = ["dot", "rbf"]


def run(
    x: Tensor, bases: Tensor, autocast: bool = False, **options: Any
) -> tuple[hemnet.EMResult, list[Tensor]]:
    """Result and gradients at x and bases of a loss that uses everything."""
    x, bases = x.clone().requires_grad_(), bases.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        result = hemnet.highway_em(x, bases, **options)
        rebuilt = hemnet.r_step(result.responsibilities, result.bases)
    loss = rebuilt.float().square().mean() + result.responsibilities.float().square().mean()
    loss.backward()
    assert x.grad is not None
    assert bases.grad is not None
    return result, [x.grad, bases.grad]


def assert_finite(result: hemnet.EMResult, grads: list[Tensor]) -> None:
    for tensor in (*result, *grads):
        assert bool(tensor.isfinite().all())


@pytest.mark.parametrize("backward", MODES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "batch,positions,count", [(0, 5, 3), (2, 2, 7), (2, 1, 3), (2, 9, 1), (1, 1, 1), (3, 300, 4)]
)
def test_shapes(backward: str, kernel: str, batch: int, positions: int, count: int) -> None:
    result, grads = run(
        torch.randn(batch, positions, 4), torch.randn(count, 4), backward=backward, kernel=kernel
    )
    assert result.bases.shape == (batch, count, 4)
    assert result.responsibilities.shape == (batch, positions, count)
    torch.testing.assert_close(
        result.responsibilities.sum(-1), torch.ones(batch, positions), rtol=1e-5, atol=1e-5
    )
    if batch:
        assert_finite(result, grads)


@pytest.mark.parametrize("backward", MODES)
@pytest.mark.parametrize("kernel", KERNELS)
class TestExtremes:
    def test_huge_logits(self, backward: str, kernel: str) -> None:
        x = torch.randn(2, 50, 16)
        bases = torch.randn(8, 16)
        bases *= 1e4 * 4 / float((x @ bases.T).abs().max())  # σ² = √16
        assert_finite(*run(x, bases, backward=backward, kernel=kernel))

    def test_bases_far_from_everything(self, backward: str, kernel: str) -> None:
        x = torch.randn(2, 50, 16)
        x[..., 0] += 30
        bases = torch.randn(8, 16)
        bases[0, 0], bases[1] = -1e3, 1e3
        result, grads = run(x, bases, backward=backward, kernel=kernel)
        assert_finite(result, grads)
        # N_0 underflows: the basis stays instead of becoming 0/0.
        torch.testing.assert_close(result.bases[:, 0], bases[0].expand(2, -1))

    def test_duplicated_bases_stay_equal(self, backward: str, kernel: str) -> None:
        bases = torch.randn(1, 16).expand(4, 16)
        result, grads = run(torch.randn(2, 50, 16), bases, backward=backward, kernel=kernel)
        assert_finite(result, grads)
        torch.testing.assert_close(result.responsibilities, torch.full((2, 50, 4), 0.25))

    def test_zero_features(self, backward: str, kernel: str) -> None:
        bases = torch.randn(4, 16)
        assert_finite(*run(torch.zeros(2, 50, 16), bases, backward=backward, kernel=kernel))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision(self, backward: str, kernel: str, dtype: torch.dtype) -> None:
        x, bases = torch.randn(2, 200, 16, dtype=dtype), torch.randn(8, 16)
        half, half_grads = run(x, bases, backward=backward, kernel=kernel)
        single, single_grads = run(x.float(), bases, backward=backward, kernel=kernel)
        assert half.responsibilities.dtype == dtype
        assert half.bases.dtype == torch.float32
        assert half_grads[0].dtype == dtype
        assert_finite(half, half_grads)
        torch.testing.assert_close(half.bases, single.bases, rtol=1e-2, atol=1e-2)
        for ours, reference in zip(half_grads, single_grads, strict=True):
            scale = float(reference.abs().max())
            torch.testing.assert_close(ours.float(), reference, rtol=0.1, atol=0.05 * scale)

    def test_autocast_changes_nothing(self, backward: str, kernel: str) -> None:
        """Softmax and N_k are in float32 whatever the autocast type."""
        x, bases = torch.randn(2, 200, 16), torch.randn(8, 16)
        plain, plain_grads = run(x, bases, backward=backward, kernel=kernel)
        cast, cast_grads = run(x, bases, autocast=True, backward=backward, kernel=kernel)
        torch.testing.assert_close(cast, plain)
        torch.testing.assert_close(cast_grads, plain_grads)

    def test_nan_stays_visible_and_in_its_image(self, backward: str, kernel: str) -> None:
        x = torch.randn(2, 50, 16)
        x[1, 7, 3] = math.nan
        result = hemnet.highway_em(x, torch.randn(4, 16), backward=backward, kernel=kernel)
        rebuilt = hemnet.r_step(result.responsibilities, result.bases)
        assert bool(rebuilt[1].isnan().all())
        assert bool(rebuilt[0].isfinite().all())


def test_many_positions_in_half_precision_do_not_overflow() -> None:
    x = torch.full((1, 70_000, 2), 3.0, dtype=torch.float16)  # Σ x is beyond float16's range
    result = hemnet.highway_em(x, torch.randn(2, 2), step_size=1)
    # To what a float32 sum of a tile's positions, one after the other as some CPUs do, leaves.
    torch.testing.assert_close(result.bases, torch.full((1, 2, 2), 3.0), rtol=1e-3, atol=0)


def test_default_variance_is_root_channels() -> None:
    x, bases = torch.randn(2, 9, 16), torch.randn(4, 16)
    torch.testing.assert_close(hemnet.highway_em(x, bases), hemnet.highway_em(x, bases, variance=4))
    torch.testing.assert_close(hemnet.e_step(x, bases), (x @ bases.T / 4).softmax(-1))


def test_step_size_as_number_sequence_or_tensor() -> None:
    x, bases = torch.randn(2, 9, 16), torch.randn(4, 16)
    expected = hemnet.highway_em(x, bases, 2, 0.3)
    for step_size in ([0.3, 0.3], (0.3, 0.3), torch.tensor(0.3), torch.tensor([0.3, 0.3])):
        torch.testing.assert_close(hemnet.highway_em(x, bases, 2, step_size), expected)
    changing = hemnet.highway_em(x, bases, 2, [0.3, 0.9])
    first = hemnet.highway_em(x, bases, 1, 0.3)
    torch.testing.assert_close(changing, hemnet.highway_em(x, first.bases, 1, 0.9))


X, MU, GAMMA = torch.randn(2, 9, 4), torch.randn(3, 4), torch.rand(2, 9, 3)


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: hemnet.highway_em(X[0], MU), r"\(batch, positions, channels\); got x \(9, 4\)"),
        (lambda: hemnet.highway_em(X, MU[0]), r"bases must have the shape .* bases \(4,\)"),
        (
            lambda: hemnet.highway_em(X, MU[:, :3]),
            r"\(bases, channels\).* bases \(3, 3\)",
        ),
        (
            lambda: hemnet.highway_em(X, MU.expand(5, 3, 4)),
            r"\(batch, bases, .* \(5, 3, 4\)",
        ),
        (lambda: hemnet.highway_em(X, MU[:0]), r"bases must have the shape .* \(0, 4\)"),
        (lambda: hemnet.highway_em(X.int(), MU), r"x must be a floating tensor; got torch.int32"),
        (lambda: hemnet.highway_em([1.0], MU), r"x must be a floating tensor; got list"),
        (lambda: hemnet.highway_em(X, MU, 0), r"iterations must be .* got 0"),
        (lambda: hemnet.highway_em(X, MU, 2.5), r"iterations must be .* got 2.5"),
        (lambda: hemnet.highway_em(X, MU, step_size=0), r"step_size must lie in \(0, 2\); got 0"),
        (lambda: hemnet.highway_em(X, MU, step_size=2.0), r"got 2.0"),
        (lambda: hemnet.highway_em(X, MU, step_size=math.nan), r"got nan"),
        (
            lambda: hemnet.highway_em(X, MU, step_size=[0.5, 0.5]),
            r"iteration \(3\); got \[0.5, ",
        ),
        (
            lambda: hemnet.highway_em(X, MU, step_size=torch.tensor([0.5, 2.0, 0.5])),
            r"got \[0.5, 2",
        ),
        (
            lambda: hemnet.highway_em(X, MU, step_size=torch.ones(2)),
            r"per iteration \(3\); got \[1.0, 1.0\]",
        ),
        (lambda: hemnet.highway_em(X, MU, variance=0), r"variance must be one positive, .* got 0"),
        (lambda: hemnet.highway_em(X, MU, variance=torch.tensor(-1.0)), r"positive, .* got -1.0"),
        (
            lambda: hemnet.highway_em(X, MU, variance=torch.ones(2)),
            r"positive, .* got \[1.0, 1",
        ),
        (lambda: hemnet.highway_em(X, MU, kernel="cos"), r"one of 'dot', 'rbf'; got 'cos'"),
        (lambda: hemnet.highway_em(X, MU, backward="fast"), r"'none'; got 'fast'"),
        (lambda: hemnet.e_step(X, MU, 1.0, "cos"), r"got 'cos'"),
        (
            lambda: hemnet.n_step(X, MU, GAMMA[..., :2], 0.5),
            r"positions, bases\);.* \(2, 9, 2\)",
        ),
        (lambda: hemnet.n_step(X, MU, GAMMA[:, :4], 0.5), r"positions, bases\); .*\(2, 4, 3\)"),
        (lambda: hemnet.r_step(GAMMA[..., :2], MU), r"bases must .* got .*\(2, 9, 2\)"),
        (lambda: hemnet.elbo(X, MU, GAMMA, -1.0), r"got -1.0"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
