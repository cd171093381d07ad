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

from hemnet.em.numeric import folded, no_autocast, product, product_dtype, upcast

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
    *,
    keep: bool = False,
    plain: bool = False,
    constant: bool = False,
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
        plain: leave the gradient to autograd, which keeps all responsibilities; can be
            differentiated twice.
        constant: responsibilities are constants: no gradient goes through the softmax.
        dtype: of the factors of all products; None for `product_dtype`.
        known: the result, where it was computed before with the same values: only the gradient is.
    """
    if weights is not None:
        weights = weights.to(upcast(x[:0]).dtype).expand(x.shape[:2])
    if not plain and not torch.compiler.is_exporting():
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
    """`statistics` and their gradient, which has none of its own.

    Inputs: options, x, projection, bias, weights, then what is known of the result, or, for the
    gradient (`options` has which of the first three are wanted, too), γ and the gradients of M, S
    and γ.
    """

    @staticmethod
    def forward(options: tuple[Any, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
        with no_autocast(tensors[0]):
            if len(options) > 3:
                return _gradients(options, *tensors)
            known = tuple(t.view_as(t) for t in tensors[4:])
            return known or _measure(options, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.options = _, keep, constant, *gradient = inputs[0]
        ctx.save_for_backward(*inputs[1:5], output[2] if keep else None)
        ctx.set_materialize_grads(False)
        if not gradient and (constant or not keep):
            ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        if len(ctx.options) > 3:
            raise RuntimeError(
                "a gradient of highway EM was differentiated again, and only backward='autograd' "
                "has second derivatives: ask for that mode"
            )
        _, keep, constant = ctx.options
        of_gamma = grads[2] if keep and not constant else None  # a compiler makes up zeros
        wanted = tuple(ctx.needs_input_grad[1:4])
        found = _Tiled.apply((*ctx.options, wanted), *ctx.saved_tensors, *grads[:2], of_gamma)
        grads = tuple(g if w else None for g, w in zip(found, wanted, strict=True))
        return (None, *grads, *(None,) * (len(ctx.needs_input_grad) - 4))

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return folded(_Tiled.apply, info, in_dims, inputs)


def _measure(
    options: tuple[Any, ...], x: Tensor, projection: Tensor, bias: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    (dtype, keep, _), rows = options, _rows(x)
    mass, sums = torch.zeros_like(bias), torch.zeros_like(projection)
    kept = _empty(x, bias.shape[1] if keep else 0, bias.dtype)
    for some, tile in tiles(x):
        part = _part(x, some, tile, dtype, rows)
        gamma = _softmax(_times(part, projection[some].mT, dtype, rows, bias[some]), rows)
        if keep:
            kept[some, tile] = gamma
        if weights is not None:
            gamma = gamma * weights[some, tile, None]
        mass[some] += gamma.sum(dim=1)
        sums[some] += _times(gamma.mT, part, dtype, rows)
    return mass, sums, kept


def _gradients(
    options: tuple[Any, ...],
    x: Tensor,
    projection: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    gamma: Tensor | None,
    grad_mass: Tensor | None,
    grad_sums: Tensor | None,
    grad_gamma: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """∂x: B,N,D, ∂ω: B,K,D and ∂c: B,K; empty or 0 where not wanted."""
    (dtype, _, constant, (of_x, *of_logits)), rows = options, _rows(x)
    grad_mass = torch.zeros_like(bias) if grad_mass is None else grad_mass
    grad_sums = torch.zeros_like(projection) if grad_sums is None else grad_sums
    factors = grad_sums if constant else torch.cat((grad_sums, projection), dim=1)
    grad_x = _empty(x, x.shape[2] if of_x else 0, x.dtype)
    grad_projection, grad_bias = torch.zeros_like(projection), torch.zeros_like(bias)
    for some, tile in tiles(x):
        part = _part(x, some, tile, dtype, rows)
        if gamma is None:
            share = _softmax(_times(part, projection[some].mT, dtype, rows, bias[some]), rows)
        else:
            share = gamma[some, tile]
        counted = share if weights is None else share * weights[some, tile, None]
        if not constant:
            d = _times(part, grad_sums[some].mT, dtype, rows, grad_mass[some])
            if weights is not None:
                d *= weights[some, tile, None]
            if grad_gamma is not None:
                d += grad_gamma[some, tile]
            d *= share
            d.addcmul_(share, d.sum(dim=-1, keepdim=True), value=-1)
            if any(of_logits):
                grad_projection[some] += _times(d.mT, part, dtype, rows)
                grad_bias[some] += d.sum(dim=1)
            counted = torch.cat((counted, d), 2) if rows else torch.cat((counted.mT, d.mT), 1).mT
        if of_x:
            grad_x[some, tile] = _times(counted, factors[some], dtype, rows)
    return grad_x, grad_projection, grad_bias


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


def _rows(x: Tensor) -> bool:
    """Whether x: B,N,D lies N,D in memory, not D,N as a contiguous B,C,H,W image does.

    B,N,K tensors then lie the same way, so that nothing of a tile is transposed.
    """
    return x.stride(2) == 1 or x.stride(1) != 1


def _empty(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """B,N,width that lies as x does."""
    sizes = (x.shape[0], x.shape[1], width)
    if _rows(x):
        return x.new_empty(sizes, dtype=dtype)
    return x.new_empty((sizes[0], width, sizes[1]), dtype=dtype).mT


def _part(x: Tensor, some: slice, tile: slice, dtype: torch.dtype, rows: bool) -> Tensor:
    """A tile without gaps in memory, which one of an image's columns has."""
    part = x[some, tile].to(dtype)
    return part if rows else part.mT.contiguous().mT


def _times(
    a: Tensor, b: Tensor, dtype: torch.dtype, rows: bool, bias: Tensor | None = None
) -> Tensor:
    """a: B,I,J times b: B,J,L plus bias: B,L, as I,L in memory or as L,I."""
    if rows:
        return product(a, b, dtype, bias)
    found = product(b.mT, a.mT, dtype).mT
    return found if bias is None else found.add_(bias.unsqueeze(1))


def _softmax(logits: Tensor, rows: bool) -> Tensor:
    return logits.softmax(dim=-1) if rows else logits.mT.softmax(dim=1).mT
