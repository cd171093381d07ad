"""Every implementation's gradient agrees with finite differences and with the plain one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

import hemnet
from hemnet.em import statistics as tiles
from support.strategies import Problem, problems


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of a few positions, so that small problems are cut as large ones are."""
    monkeypatch.setattr(tiles, "CPU_TILE", 8)


def inputs(shared: bool, iterations: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (3, 5) if shared else (2, 3, 5)
    return (
        torch.randn(2, 11, 5, dtype=torch.float64, requires_grad=True),
        torch.randn(shape, dtype=torch.float64, requires_grad=True),
        torch.linspace(0.3, 0.95, iterations, dtype=torch.float64).requires_grad_(),
        torch.tensor(1.7, dtype=torch.float64, requires_grad=True),
    )


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("kernel", ["dot", "rbf"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("backward", ["exact", "autograd"])
def test_finite_differences(kernel: str, shared: bool, backward: str) -> None:
    def function(x: Tensor, bases: Tensor, steps: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        result = hemnet.highway_em(x, bases, 3, steps, variance, kernel, backward)
        rebuilt = hemnet.r_step(result.responsibilities, result.bases)
        return result.bases, result.responsibilities, rebuilt

    assert gradcheck(function, inputs(shared))


def gradients(p: Problem, backward: str, steps: Tensor, weights: Tensor) -> list[Tensor | None]:
    x, bases = p.x.clone().requires_grad_(), p.bases.clone().requires_grad_()
    steps = steps.clone().requires_grad_()
    variance = torch.tensor(p.variance, dtype=torch.float64, requires_grad=True)
    result = hemnet.highway_em(x, bases, len(steps), steps, variance, p.kernel, backward)
    loss = (hemnet.r_step(result.responsibilities, result.bases) * weights).sum()
    loss = loss + result.responsibilities.square().sum() + result.bases.sin().sum()
    leaves = (x, bases, steps, variance)
    return list(torch.autograd.grad(loss, leaves, allow_unused=True))


@given(problems(), st.integers(1, 5), st.integers(0, 2**31), st.sampled_from([4, 7, 1024]))
def test_exact_is_autograd(p: Problem, iterations: int, seed: int, tile: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    steps = torch.rand(iterations, generator=generator, dtype=torch.float64) * 0.95 + 0.05
    weights = torch.randn(p.x.shape, generator=generator, dtype=torch.float64)
    whole, tiles.CPU_TILE = tiles.CPU_TILE, tile
    try:
        exact = gradients(p, "exact", steps, weights)
    finally:
        tiles.CPU_TILE = whole
    for ours, reference in zip(exact, gradients(p, "autograd", steps, weights), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("kernel", ["dot", "rbf"])
@pytest.mark.parametrize("shared", [True, False])
def test_highway_is_autograd_with_constant_responsibilities(kernel: str, shared: bool) -> None:
    x, bases, steps, variance = inputs(shared)
    weights = torch.randn(2, 11, 5, dtype=torch.float64)

    moving = bases
    for step in steps:
        gamma = hemnet.e_step(x, moving, variance, kernel).detach()
        moving = hemnet.n_step(x, moving, gamma, step)
    loss = (hemnet.r_step(gamma, moving) * weights).sum()
    expected = torch.autograd.grad(loss, (x, bases, steps))

    result = hemnet.highway_em(x, bases, 3, steps, variance, kernel, "highway")
    assert not result.responsibilities.requires_grad
    loss = (hemnet.r_step(result.responsibilities, result.bases) * weights).sum()
    for ours, reference in zip(torch.autograd.grad(loss, (x, bases, steps)), expected, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-11)


def test_none_gives_constants() -> None:
    x, bases, *_ = inputs(True)
    result = hemnet.highway_em(x, bases, backward="none")
    assert not result.bases.requires_grad
    assert not result.responsibilities.requires_grad


@pytest.mark.parametrize("backward", ["exact", "autograd", "highway", "none"])
def test_all_modes_have_one_forward(backward: str) -> None:
    x, bases, *_ = inputs(True)
    plain = hemnet.highway_em(x, bases, 4, 0.4, 0.8, "rbf", "autograd")
    result = hemnet.highway_em(x, bases, 4, 0.4, 0.8, "rbf", backward)
    torch.testing.assert_close(result.bases, plain.bases)
    torch.testing.assert_close(result.responsibilities, plain.responsibilities)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x, bases, steps, variance = (t.detach() for t in inputs(True))
    for wanted in range(4):
        arguments = [x, bases, steps, variance]
        arguments[wanted] = arguments[wanted].clone().requires_grad_()
        grads = []
        for backward in ("exact", "autograd"):
            result = hemnet.highway_em(
                arguments[0], arguments[1], 3, arguments[2], arguments[3], backward=backward
            )
            loss = hemnet.r_step(result.responsibilities, result.bases).square().sum()
            grads += torch.autograd.grad(loss, arguments[wanted])
        torch.testing.assert_close(*grads)


def test_gradient_has_the_memory_layout_of_the_features() -> None:
    """Features that are a view of B,C,H,W need no copy on the way back."""
    image = torch.randn(2, 8, 5, 6, requires_grad=True)
    x = image.flatten(2).mT
    strides: list[tuple[int, ...]] = []
    x.register_hook(lambda grad: strides.append(grad.stride()))
    hemnet.highway_em(x, torch.randn(3, 8)).bases.sum().backward()
    assert strides == [x.stride()]


def test_twice_is_refused_not_wrong() -> None:
    x, bases, *_ = inputs(True)
    result = hemnet.highway_em(x, bases)
    (grad,) = torch.autograd.grad(result.bases.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backward='autograd'"):
        grad.sum().backward()


@pytest.mark.parametrize("backward", ["exact", "highway", "autograd"])
@pytest.mark.parametrize("kernel", ["dot", "rbf"])
def test_compiled_equals_eager(backward: str, kernel: str) -> None:
    def loss(x: Tensor, bases: Tensor) -> Tensor:
        result = hemnet.highway_em(x, bases, 3, 0.5, kernel=kernel, backward=backward)
        return hemnet.r_step(result.responsibilities, result.bases).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (loss, compiled):
        torch.manual_seed(1)
        x, bases = torch.randn(2, 9, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        grads.append(torch.autograd.grad(function(x, bases), (x, bases)))
    torch.testing.assert_close(*grads)
