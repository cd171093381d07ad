"""The primitive, the map in front of it, the backward modes, and what torch does with them."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import functional_call, grad, vmap

import hemnet
import hemnet.em.statistics
from support.mixtures import SAMPLES, ids, problem

core = sys.modules["hemnet.em.statistics"]
MODES = ("exact", "autograd", "highway", "implicit")


@pytest.fixture
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "CPU_TILE", 8)


def literal(
    x: Tensor,
    bases: Tensor,
    steps: Tensor,
    mixture: hemnet.Mixture,
    weights: Tensor | None,
    linear: tuple[Tensor, Tensor] | None,
    backward: str,
) -> tuple[hemnet.EMResult, Callable[[Tensor, list[Tensor]], tuple[Tensor, ...]]]:
    """The definition of every mode by plain autograd: the result, and how a loss is derived."""
    t = mixture.statistics(x if linear is None else x @ linear[0].T + linear[1])
    counts = torch.ones(x.shape[:2], dtype=x.dtype) if weights is None else weights

    def iteration(m: Tensor, step: Tensor | float) -> tuple[Tensor, Tensor]:
        weight, bias = mixture.logits(m)
        gamma = (t @ weight.mT + bias.unsqueeze(1)).softmax(-1)
        gamma = gamma.detach() if backward == "highway" else gamma
        counted = gamma * counts.unsqueeze(-1)
        means = counted.mT @ t / counted.sum(1).unsqueeze(-1)
        return gamma, mixture.move(m, means, step)

    m = mixture.start(bases).expand(len(x), -1, -1)
    *early, last = steps
    for step in early:
        m = iteration(m, step)[1]
    if backward != "implicit":
        gamma, m = iteration(m, last)
        return hemnet.EMResult(m, gamma), lambda loss, leaves: torch.autograd.grad(
            loss, leaves, allow_unused=True, materialize_grads=True
        )
    point = m.detach().requires_grad_()  # as if it were a fixed point of one more iteration
    gamma, moved = iteration(point, last)
    again = iteration(point, 1.0 if mixture.exact else last)[1]

    def derive(loss: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        (term,) = torch.autograd.grad(loss, point, retain_graph=True)
        series = torch.zeros_like(term)
        for _ in range(hemnet.em.solver.NEUMANN_TERMS):
            series = series + term
            (term,) = torch.autograd.grad(again, point, term, retain_graph=True)
        loss = loss + (again * series).sum()
        return torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)

    return hemnet.EMResult(moved, gamma), derive


def solved(backward: str, by_hand: bool = False, **case: Any) -> list[Tensor]:
    """Results and gradients with respect to everything of a loss on both results."""
    generator = torch.Generator().manual_seed(7)

    def leaf(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    channels = 6 if case.get("linear") else 4
    x = leaf(2, 30, 4)
    if case.get("columns"):  # as a contiguous B,C,H,W image lies in memory
        x = x.mT.contiguous().mT
    bases, steps, weight, bias = leaf(3, channels), leaf(3) * 0.8 + 0.1, leaf(6, 4) / 8, leaf(6) / 2
    for tensor in (x, bases, steps, weight, bias):
        tensor.requires_grad_()
    leaves = [x, bases, steps]
    weights = leaf(2, 30) if case.get("weighted") else None
    linear = (weight, bias) if case.get("linear") else None
    leaves += linear or ()
    mixture = case.get("mixture")
    if mixture is None:
        leaves.append(leaf(1).add(0.3).requires_grad_())
        mixture = hemnet.Gaussian(leaves[-1])
    if by_hand:
        result, derive = literal(x, bases, steps, mixture, weights, linear, backward)
    else:
        options: dict[str, Any] = {"weights": weights, "linear": linear, "mixture": mixture}
        result = hemnet.highway_em(x, bases, 3, steps, backward=backward, **options)
        derive = partial(torch.autograd.grad, allow_unused=True, materialize_grads=True)
    loss = result.bases.sin().sum() + result.responsibilities.square().sum()
    return [*result, *derive(loss, leaves)]


@pytest.mark.usefixtures("_small_tiles")
@pytest.mark.parametrize("backward", MODES)
@pytest.mark.parametrize("mixture", [None, *SAMPLES], ids=["variance", *ids])
@pytest.mark.parametrize("linear", [False, True])
def test_gradients_are_those_of_the_definition_in_every_combination(
    backward: str, mixture: hemnet.Mixture | None, linear: bool
) -> None:
    for weighted, columns in itertools.product((False, True), repeat=2):
        case = {"mixture": mixture, "linear": linear, "weighted": weighted, "columns": columns}
        ours, expected = solved(backward, **case), solved(backward, by_hand=True, **case)
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backward", MODES)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_map_may_be_applied_to_the_bases_or_to_the_positions(
    backward: str, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = sys.modules["hemnet.em.solver"]
    found = []
    for absorbed in (True, False):
        monkeypatch.setattr(solver, "pays_off", lambda *_, answer=absorbed: answer)
        found.append(solved(backward, linear=True, weighted=weighted))
    for absorbed_one, computed in zip(*found, strict=True):
        torch.testing.assert_close(absorbed_one, computed, rtol=1e-9, atol=1e-10)


def test_a_map_that_pays_off_is_not_computed_at_every_position() -> None:
    x, bases = torch.randn(1, 400, 8), torch.randn(4, 8)
    weight = torch.randn(8, 8)
    seen: list[tuple[int, ...]] = []
    linear = torch.nn.functional.linear

    def noted(given_x: Tensor, *rest: Any) -> Tensor:
        seen.append(tuple(given_x.shape))
        return linear(given_x, *rest)

    for positions, computed in ((400, 0), (20, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.nn.functional, "linear", noted)
            hemnet.highway_em(x[:, :positions], bases, linear=(weight, None))
        assert len(seen) == computed


@given(st.integers(0, 2**31))
def test_the_implicit_gradient_is_exact_once_the_bases_have_converged(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    centres = 6 * torch.eye(3, 4, dtype=torch.float64)
    noise = torch.randn(1, 30, 4, generator=generator, dtype=torch.float64)
    points = (centres.repeat(10, 1) + noise).requires_grad_()

    def gradient(backward: str) -> Tensor:
        result = hemnet.highway_em(points, centres, 40, 0.5, 1.0, "rbf", backward)
        loss = result.bases.sin().sum() + result.responsibilities.square().sum()
        return torch.autograd.grad(loss, points)[0]

    expected = gradient("exact")
    assert float((gradient("implicit") - expected).norm() / expected.norm()) < 1e-3


def test_the_implicit_gradient_differs_before_the_bases_have_converged() -> None:
    x, bases = problem(1)
    x.requires_grad_()
    found = []
    for backward in ("exact", "implicit"):
        result = hemnet.highway_em(x, bases, 1, 0.3, 0.1, "rbf", backward)
        found.append(torch.autograd.grad(result.bases.sin().sum(), x)[0])
    assert float((found[0] - found[1]).norm() / found[0].norm()) > 0.1


def kept_by(backward: str, iterations: int) -> int:
    """Numbers that the graph of a solution keeps, x itself left out."""
    x = torch.randn(1, 500, 16, requires_grad=True)
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hemnet.highway_em(x, torch.randn(4, 16), iterations, 0.5, backward=backward)
    return sum(sizes.values()) - x.numel()


def test_memory_is_flat_in_the_iterations() -> None:
    positions, small = 500 * 4, 40 * 4 * 16  # γ of one iteration; K·C numbers of each
    assert kept_by("exact", 10) - kept_by("exact", 2) < 8 * small
    assert kept_by("exact", 10) < 2 * positions + 10 * small
    assert kept_by("implicit", 30) == kept_by("implicit", 2)
    assert kept_by("autograd", 10) > 10 * positions


@pytest.mark.parametrize("backward", MODES)
def test_torch_func(backward: str) -> None:
    x, bases = problem(2, batch=3)

    def loss(one: Tensor) -> Tensor:
        result = hemnet.highway_em(one, bases, 3, 0.5, 0.7, "rbf", backward)
        return result.bases.sin().sum() + result.responsibilities.square().sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(grad(loss)(x), expected)
    torch.testing.assert_close(vmap(grad(lambda one: loss(one[None])))(x), expected)
    torch.testing.assert_close(grad(lambda y: vmap(lambda o: loss(o[None]))(y).sum())(x), expected)


def test_gradients_for_each_sample_of_a_unit() -> None:
    unit = hemnet.HighwayEMAttention(4, bases=3, preset="paper").double().eval()
    state = dict(unit.named_parameters()), dict(unit.named_buffers())
    images = torch.randn(3, 4, 6, 7, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(unit, (parameters, state[1]), (image[None],)).square().sum()

    each = vmap(grad(loss), (None, 0))(state[0], images)
    unit(images).square().sum().backward()
    for name, parameter in unit.named_parameters():
        torch.testing.assert_close(each[name].sum(0), parameter.grad)


@pytest.mark.parametrize("backward", ["exact", "highway", "implicit"])
def test_a_second_derivative_names_the_mode_that_has_one(backward: str) -> None:
    x, bases = problem(0)
    x.requires_grad_()
    result = hemnet.highway_em(x, bases, backward=backward)
    (first,) = torch.autograd.grad(result.bases.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backward='autograd'"):
        first.sum().backward()
    second = hemnet.highway_em(x, bases, backward="autograd").bases.square().sum()
    (first,) = torch.autograd.grad(second, x, create_graph=True)
    first.sum().backward()


@pytest.mark.parametrize("backward", MODES)
@pytest.mark.parametrize("columns", [False, True])
def test_compiled_is_eager_behind_a_map(backward: str, columns: bool) -> None:
    x, bases = torch.randn(2, 40, 4), torch.randn(3, 4)
    if columns:
        x = x.mT.contiguous().mT
    weight = torch.randn(4, 4)

    def loss(features: Tensor, matrix: Tensor) -> Tensor:
        result = hemnet.highway_em(
            features, bases, 2, 0.5, backward=backward, linear=(matrix, None)
        )
        return hemnet.r_step(result.responsibilities, result.bases).square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = []
    for function in (loss, compiled):
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        found.append(torch.autograd.grad(function(*leaves), leaves))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("linear", [False, True])
def test_half_precision_is_close_to_double(dtype: torch.dtype, linear: bool) -> None:
    """Inputs are rounded to half precision; nothing that is computed from them is."""
    torch.manual_seed(0)
    x, bases = torch.randn(2, 3000, 16).to(dtype), torch.randn(8, 16)
    options: dict[str, Any] = {"kernel": "rbf"}
    if linear:
        options["linear"] = torch.randn(16, 16) / 4, torch.randn(16)
    half = hemnet.highway_em(x, bases, 5, **options)
    if linear:
        options["linear"] = tuple(t.double() for t in options["linear"])
    double = hemnet.highway_em(x.double(), bases.double(), 5, **options)
    torch.testing.assert_close(half.bases.double(), double.bases, rtol=2e-5, atol=2e-5)
    eps = torch.finfo(dtype).eps  # of the responsibilities handed back
    gap = (half.responsibilities.double() - double.responsibilities).abs().max()
    assert float(gap) < eps


def half_precision_products(patch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """Compute as a GPU does under autocast: factors rounded to half, sums in float32."""
    bmm = torch.bmm

    def rounded(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
        return bmm(a, b) if out_dtype is None else bmm(a.to(out_dtype), b.to(out_dtype))

    patch.setattr(torch, "bmm", rounded)
    patch.setattr(sys.modules["hemnet.em.solver"], "product_dtype", lambda _: dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_products_of_half_precision_factors_are_close_to_double(
    dtype: torch.dtype, linear: bool, columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, bases = torch.randn(2, 3000, 16), torch.randn(8, 16)
    x = x.mT.contiguous().mT if columns else x
    matrix = torch.randn(16, 16) / 4

    def found(kind: torch.dtype) -> list[Tensor]:
        leaves = [t.to(kind).requires_grad_() for t in (x, bases, matrix)]
        map_ = (leaves[2], None) if linear else None
        result = hemnet.highway_em(leaves[0], leaves[1], 3, kernel="rbf", linear=map_)
        loss = result.bases.square().sum() + result.responsibilities.square().mean()
        return [*result, *torch.autograd.grad(loss, leaves[: 2 + linear])]

    expected = found(torch.float64)
    half_precision_products(monkeypatch, dtype)
    for ours, exact in zip(found(torch.float32), expected, strict=True):
        error = float(((ours - exact).norm() / exact.norm()).detach())
        assert 1e-6 < error < 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_half_precision_gradients_of_any_size(
    dtype: torch.dtype, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 ends at 65504 and at 6e-8; a basis that explains nothing has a gradient near 1e19."""
    torch.manual_seed(0)
    x, bases = torch.randn(1, 500, 8), torch.randn(4, 8)
    bases[0] += 300  # explains nothing

    def found(kind: torch.dtype) -> list[Tensor]:
        leaves = [t.to(kind).requires_grad_() for t in (x, bases)]
        result = hemnet.highway_em(*leaves, 3, kernel="rbf")
        loss = scale * (result.bases.sin().sum() + result.responsibilities.square().sum())
        return list(torch.autograd.grad(loss, leaves))

    expected = found(torch.float64)
    half_precision_products(monkeypatch, dtype)
    for ours, exact in zip(found(torch.float32), expected, strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_over_many_positions_stay_accurate(dtype: torch.dtype) -> None:
    x = torch.rand(1, 262_144, 2, dtype=dtype) + 1
    found = hemnet.highway_em(x, torch.zeros(1, 2, dtype=dtype), 1, 1.0).bases[0, 0]
    tolerance = 1e-4 if dtype is torch.float32 else 1e-12
    torch.testing.assert_close(found, x.mean((0, 1)), rtol=tolerance, atol=0)


def test_the_layout_of_the_features_comes_back() -> None:
    for x in (torch.randn(2, 30, 8), torch.randn(2, 8, 30).mT):
        result = hemnet.highway_em(x, torch.randn(3, 8))
        other = hemnet.highway_em(x.contiguous(), torch.randn(3, 8), 1)
        assert result.responsibilities.shape == other.responsibilities.shape
        leaf = x.detach().requires_grad_()
        hemnet.highway_em(leaf, torch.randn(3, 8)).bases.sum().backward()
        assert leaf.grad.stride() == leaf.stride()
