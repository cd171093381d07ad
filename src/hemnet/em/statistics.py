"""The only work of EM that grows with the number of positions, with a backward pass by hand.

Everything that an iteration needs of the features x: B,N,D are the responsibilities' mass and
weighted sums, for logits that are linear in x:

    z_nk = x_n·ω_k + c_k     γ = softmax_k(z)     M_k = Σ_n w_n γ_nk     S_k = Σ_n w_n γ_nk x_n

Plain autograd would keep γ of every iteration. Here it is computed again, tile by tile: a tile of
positions is read once and used while it is in the cache. With G the gradients of M, S and γ,

    u_nk = γ_nk (w_n (G_M,k + G_S,k·x_n) + G_γ,nk)        d_nk = u_nk − γ_nk Σ_j u_nj
    ∂x_n = Σ_k w_n γ_nk G_S,k + d_nk ω_k      ∂ω_k = Σ_n d_nk x_n      ∂c_k = Σ_n d_nk

and d = 0 for constant responsibilities. `docs/method.md` derives it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hemnet.em.numeric import no_autocast, product, product_dtype, upcast

# Positions in one tile, at the most: what is computed of a tile stays in a CPU's cache; a GPU
# wants few, large kernels instead.
CPU_TILE, GPU_TILE = 2176, 65536


class Statistics(NamedTuple):
    """What an iteration needs of the features."""

    mass: Tensor  # B,K
    sums: Tensor  # B,K,D
    responsibilities: Tensor  # B,N,K; empty unless asked for


def statistics(
    x: Tensor,
    projection: Tensor,
    bias: Tensor,
    weights: Tensor | None = None,
    keep: bool = False,
    backward: str = "exact",
    dtype: torch.dtype | None = None,
    known: Statistics | None = None,
) -> Statistics:
    """Mass and weighted sums of the responsibilities softmax(x·projectionᵀ + bias).

    Args:
        x: features B,N,D.
        projection: ω, B,K,D.
        bias: c, B,K.
        weights: how much each position counts, B,N or 1,N; None: each once.
        keep: return the responsibilities, too.
        backward: "autograd" leaves the gradient to autograd, which keeps all responsibilities;
            "highway" lets none through the softmax; any other is the full one.
        dtype: of the factors of all products; None for `product_dtype`.
        known: the result, where it was computed before with the same values: only the gradient is.
    """
    if weights is not None:
        weights = weights.to(upcast(x[:0]).dtype).expand(x.shape[:2])
    constant = backward == "highway"
    if backward != "autograd" and not torch.compiler.is_exporting():
        options = dtype or product_dtype(x), keep, constant
        return Statistics(*_Tiled.apply(options, x, projection, bias, weights, *(known or ())))
    gamma = softmax_of(upcast(x), projection, bias)
    gamma = gamma.detach() if constant else gamma
    counted = gamma if weights is None else gamma * weights.unsqueeze(-1)
    return Statistics(counted.sum(dim=1), counted.mT @ upcast(x), gamma)


def softmax_of(x: Tensor, projection: Tensor, bias: Tensor) -> Tensor:
    """softmax(x·projectionᵀ + bias): B,N,K."""
    return (x @ projection.mT + bias.unsqueeze(-2)).softmax(dim=-1)


class _Tiled(torch.autograd.Function):
    """`statistics`, whose gradient is `_Gradient`."""

    @staticmethod
    def forward(
        options: tuple[torch.dtype, bool, bool],
        x: Tensor,
        projection: Tensor,
        bias: Tensor,
        weights: Tensor | None,
        *known: Tensor,
    ) -> tuple[Tensor, ...]:
        if known:
            return tuple(t.view_as(t) for t in known)
        dtype, keep, _ = options
        mass, sums = torch.zeros_like(bias), torch.zeros_like(projection)
        # Responsibilities lie K,N in memory: a softmax over few bases is many times as fast.
        kept = bias.new_empty(len(bias), bias.shape[1] if keep else 0, x.shape[1])
        with no_autocast(x):
            for some, tile in tiles(x):
                part = x[some, tile].to(dtype)
                gamma = product(projection[some], part.mT, dtype, bias[some]).softmax(dim=1)
                if keep:
                    kept[some, :, tile] = gamma
                if weights is not None:
                    gamma *= weights[some, None, tile]
                mass[some] += gamma.sum(dim=2)
                sums[some] += product(gamma, part, dtype)
        return mass, sums, kept.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.options = _, keep, constant = inputs[0]
        ctx.save_for_backward(*inputs[1:5], output[2] if keep else None)
        ctx.set_materialize_grads(False)
        if constant or not keep:
            ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, mass: Tensor | None, sums: Tensor | None, gamma: Tensor | None) -> Any:
        (_, keep, constant), wanted = ctx.options, tuple(ctx.needs_input_grad[1:4])
        gamma = gamma if keep and not constant else None  # a compiler makes up zeros
        found = _Gradient.apply((*ctx.options, *wanted), *ctx.saved_tensors, mass, sums, gamma)
        grads = (g if w else None for g, w in zip(found, wanted, strict=True))
        return (None, *grads, *(None,) * (len(ctx.needs_input_grad) - 4))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _folded(_Tiled, info.batch_size, in_dims, inputs)


class _Gradient(torch.autograd.Function):
    """∂x: B,N,D, ∂ω: B,K,D and ∂c: B,K of `_Tiled`, not to be differentiated again.

    From its options and whether each of the three is wanted; its inputs; γ where it was kept; and
    the gradients of M, S and γ.
    """

    @staticmethod
    def forward(
        options: tuple[Any, ...],
        x: Tensor,
        projection: Tensor,
        bias: Tensor,
        weights: Tensor | None,
        gamma: Tensor | None,
        of_mass: Tensor | None,
        of_sums: Tensor | None,
        of_gamma: Tensor | None,
    ) -> tuple[Tensor, ...]:
        dtype, _, constant, wants_x, *wants_logits = options
        # A basis that explains little has a gradient far beyond float16's range.
        dtype = torch.float32 if dtype is torch.float16 else dtype
        of_mass = torch.zeros_like(bias) if of_mass is None else of_mass
        of_sums = torch.zeros_like(projection) if of_sums is None else of_sums
        factors = of_sums if constant else torch.cat((of_sums, projection), dim=1)
        grad_x = torch.empty_like(x) if wants_x else x.new_empty(len(x), 0, 0)
        columns = x.stride(1) == 1 != x.stride(2)  # D,N in memory, as a contiguous image's
        grad_projection, grad_bias = torch.zeros_like(projection), torch.zeros_like(bias)
        with no_autocast(x):
            for some, tile in tiles(x):
                part = x[some, tile].to(dtype)
                if gamma is None:
                    share = product(projection[some], part.mT, dtype, bias[some]).softmax(dim=1)
                else:
                    share = gamma[some, tile].mT
                counts = None if weights is None else weights[some, None, tile]
                counted = share if counts is None else share * counts
                if not constant:
                    d = product(of_sums[some], part.mT, dtype, of_mass[some])
                    if counts is not None:
                        d *= counts
                    if of_gamma is not None:
                        d += of_gamma[some, tile].mT
                    d *= share
                    d.addcmul_(share, d.sum(dim=1, keepdim=True), value=-1)
                    if any(wants_logits):
                        grad_projection[some] += product(d, part, dtype)
                        grad_bias[some] += d.sum(dim=2)
                    counted = torch.cat((counted, d), dim=1)
                if wants_x and columns:
                    grad_x[some, tile] = product(factors[some].mT, counted, dtype).mT
                elif wants_x:
                    grad_x[some, tile] = product(counted.mT, factors[some], dtype)
        return grad_x, grad_projection, grad_bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept: there is no second gradient."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise RuntimeError(
            "a gradient of highway EM was differentiated again, and only backward='autograd' "
            "has second derivatives: ask for that mode"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _folded(_Gradient, info.batch_size, in_dims, inputs)


def _folded(
    function: Any, count: int, in_dims: tuple[Any, ...], inputs: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The rule for `torch.func.vmap`: the mapped axis becomes part of the batch."""

    def rows(value: Any, dim: int | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        each = value.expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
        return each.flatten(0, 1)

    found = function.apply(*map(rows, inputs, in_dims))
    return tuple(t.unflatten(0, (count, -1)) for t in found), (0,) * len(found)


def tiles(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Images and positions of x: B,N,D in parts: some of one image, or all of some images.

    One part when compiling: the compiler tiles itself.
    """
    images, positions = x.shape[:2]
    if torch.compiler.is_compiling():
        yield slice(None), slice(None)
        return
    most = CPU_TILE if x.device.type == "cpu" else GPU_TILE
    together = max(1, most // positions)
    size = math.ceil(positions / math.ceil(positions / most))  # all of about the same size
    for image in range(0, images, together):
        for first in range(0, positions, size):
            yield slice(image, image + together), slice(first, first + size)
