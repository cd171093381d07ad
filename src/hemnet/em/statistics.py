"""The only work of EM that grows with the number of positions, with a backward pass by hand.

Everything that an iteration needs of the features x: B,N,D are the responsibilities' mass and
weighted sums, for logits that are linear in x:

    z_nk = x_n·ω_k + c_k     γ = softmax_k(z)     M_k = Σ_n w_n γ_nk     S_k = Σ_n w_n γ_nk x_n

Plain autograd would keep γ of every iteration. Here it is computed again, tile by tile: a tile of
positions is read once and used while it is in the cache. With G the gradients of M, S and γ,

    u_nk = γ_nk (w_n (G_M,k + G_S,k·x_n) + G_γ,nk)        d_nk = u_nk − γ_nk Σ_j u_nj
    ∂x_n = Σ_k w_n γ_nk G_S,k + d_nk ω_k      ∂ω_k = Σ_n d_nk x_n      ∂c_k = Σ_n d_nk

so that each direction is one product with 2K columns. `docs/method.md` derives it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hemnet.em.numeric import no_autocast, product, product_dtype, upcast

# Positions of a whole batch in one tile, at the most. On a CPU a tile of features (4352·512 floats)
# stays in the caches; a GPU wants few, large kernels instead.
CPU_TILE = 4352
GPU_TILE = 65536
SMALLEST = 128
FORWARD = 3  # times that in the forward pass, which needs fewer temporaries


class Statistics(NamedTuple):
    """What an iteration needs of the features."""

    mass: Tensor  # B,K
    sums: Tensor  # B,K,D
    responsibilities: Tensor | None  # B,N,K where asked for


def statistics(
    x: Tensor,
    projection: Tensor,
    bias: Tensor,
    weights: Tensor | None = None,
    *,
    responsibilities: bool = False,
    plain: bool = False,
    constant_responsibilities: bool = False,
    known: Statistics | None = None,
) -> Statistics:
    """Mass and weighted sums of the responsibilities softmax(x·projectionᵀ + bias).

    Args:
        x: features B,N,D.
        projection: ω, B,K,D.
        bias: c, B,K.
        weights: how much each position counts, B,N or 1,N; None: each once.
        responsibilities: return them, too.
        plain: leave the gradient to autograd, which keeps all responsibilities; can be
            differentiated twice.
        constant_responsibilities: no gradient goes through the softmax.
        known: the result, where it was computed before with the same values: only the gradient is.
    """
    if weights is not None:
        weights = weights.to(upcast(x[:0]).dtype).expand(x.shape[:2])
    if plain or torch.compiler.is_exporting():
        return _plain(x, projection, bias, weights, responsibilities, constant_responsibilities)
    if not torch.is_grad_enabled():
        return Statistics(*_forward(x, projection, bias, weights, responsibilities))
    given = (None,) * 3 if known is None else known
    options = responsibilities, constant_responsibilities
    found = _Statistics.apply(x, projection, bias, weights, *given, *options)
    return Statistics(found[0], found[1], found[2] if responsibilities else None)


def _plain(
    x: Tensor,
    projection: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    responsibilities: bool,
    constant: bool,
) -> Statistics:
    gamma = softmax_of(upcast(x), projection, bias)
    gamma = gamma.detach() if constant else gamma
    counted = gamma if weights is None else gamma * weights.unsqueeze(-1)
    sums = counted.mT @ upcast(x)
    return Statistics(counted.sum(dim=1), sums, gamma if responsibilities else None)


def softmax_of(x: Tensor, projection: Tensor, bias: Tensor) -> Tensor:
    """softmax(x·projectionᵀ + bias): B,N,K."""
    return (x @ projection.mT + bias.unsqueeze(-2)).softmax(dim=-1)


def tiles(x: Tensor, times: int = 1) -> Iterator[slice]:
    """Slices of the positions of x: B,N,D, `times` the usual size.

    One slice when compiling: the compiler tiles itself.
    """
    positions = x.shape[1]
    if torch.compiler.is_compiling():
        yield slice(None)
        return
    whole = CPU_TILE if x.device.type == "cpu" else GPU_TILE
    most = max(SMALLEST, times * whole // max(1, x.shape[0]))
    size = math.ceil(positions / math.ceil(positions / most))  # all of about the same size
    for start in range(0, positions, size):
        yield slice(start, min(start + size, positions))


class _Layout:
    """Products of a tile with small matrices, along whichever axis of x lies contiguous.

    Features of a contiguous B,C,H,W image lie C,N in memory. Their responsibilities are then
    computed K,N: as B,n,K tensors they are views with a transposed layout.
    """

    def __init__(self, x: Tensor) -> None:
        self.dtype = product_dtype(x)
        self.rows = x.stride(2) == 1 or x.stride(1) != 1  # N,C in memory

    def to_columns(self, x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
        """x: B,n,D times matrix: B,D,L plus bias: B,L  →  B,n,L."""
        if self.dtype is bias.dtype:
            if self.rows:
                return torch.baddbmm(bias.unsqueeze(1), x.to(self.dtype), matrix)
            return torch.baddbmm(bias.unsqueeze(2), matrix.mT, x.to(self.dtype).mT).mT
        if self.rows:
            return product(x, matrix, self.dtype) + bias.unsqueeze(1)
        return (product(matrix.mT, x.mT, self.dtype) + bias.unsqueeze(2)).mT

    def to_rows(self, columns: Tensor, x: Tensor) -> Tensor:
        """columns: B,n,L and x: B,n,D  →  Σ_n columns x: B,L,D."""
        return product(columns.mT, x, self.dtype)

    def spread(self, columns: Tensor, matrix: Tensor) -> Tensor:
        """columns: B,n,L times matrix: B,L,D  →  B,n,D."""
        if self.rows:
            return product(columns, matrix, self.dtype)
        return product(matrix.mT, columns.mT, self.dtype).mT


def _softmax_(logits: Tensor) -> Tensor:
    """In place, where `Tensor.softmax` of a strided half would take two more tiles."""
    logits -= logits.amax(dim=-1, keepdim=True)
    logits.exp_()
    logits /= logits.sum(dim=-1, keepdim=True)
    return logits


def _softmax(logits: Tensor) -> Tensor:
    """Over the last axis of B,n,K in either layout, without a copy."""
    if logits.stride(-1) == 1:
        return logits.softmax(dim=-1)
    return logits.mT.softmax(dim=1).mT


def _forward(
    x: Tensor, projection: Tensor, bias: Tensor, weights: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    layout = _Layout(x)
    # Laid out D,K: the product with a tile is a quarter faster than from K,D.
    matrix = projection.mT.contiguous() if layout.rows else projection.mT
    mass = sums = None
    kept: list[Tensor] = []
    with no_autocast(x):
        for tile in tiles(x, FORWARD):
            part = upcast(x[:, tile]) if layout.dtype is bias.dtype else x[:, tile]
            gamma = _softmax(layout.to_columns(part, matrix, bias))
            counted = gamma if weights is None else gamma * weights[:, tile, None]
            if mass is None or sums is None:
                mass, sums = counted.sum(dim=1), layout.to_rows(counted, part)
            else:
                mass = mass + counted.sum(dim=1)
                sums = sums + layout.to_rows(counted, part)
            if keep:
                kept.append(gamma)
    assert mass is not None
    assert sums is not None
    if not keep:
        return mass, sums, None
    if len(kept) == 1:
        return mass, sums, kept[0]
    joined = torch.cat(kept, 1) if layout.rows else torch.cat([g.mT for g in kept], 2).mT
    return mass, sums, joined


class _Statistics(torch.autograd.Function):
    """`statistics` with the gradient derived above."""

    @staticmethod
    def forward(
        x: Tensor,
        projection: Tensor,
        bias: Tensor,
        weights: Tensor | None,
        mass: Tensor | None,
        sums: Tensor | None,
        gamma: Tensor | None,
        responsibilities: bool,
        constant: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if mass is None or sums is None:
            mass, sums, gamma = _forward(x, projection, bias, weights, responsibilities)
        else:  # known; an output must be a tensor of its own
            mass, sums = mass.clone(), sums.clone()
            gamma = gamma.clone() if responsibilities and gamma is not None else None
        return mass, sums, mass.new_empty(x.shape[0], 0, 1) if gamma is None else gamma

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, projection, bias, weights, *_, responsibilities, constant = inputs
        gamma = output[2] if responsibilities else None
        ctx.constant, ctx.gives_responsibilities = constant, responsibilities and not constant
        ctx.save_for_backward(x, projection, bias, weights, gamma)
        ctx.set_materialize_grads(False)
        if not ctx.gives_responsibilities:
            ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        x, projection, bias, weights, gamma = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[:3])
        grads = (*grads[:2], grads[2] if ctx.gives_responsibilities else None)
        if not any(wanted) or all(grad is None for grad in grads):
            return (None,) * 9
        found = _Gradient.apply(x, projection, bias, weights, gamma, *grads, ctx.constant, wanted)
        return (*(g if w else None for g, w in zip(found, wanted, strict=True)), *(None,) * 6)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _folded(_Statistics, info.batch_size, in_dims, inputs)


class _Gradient(torch.autograd.Function):
    """The backward pass of `_Statistics`; there is none of its own."""

    @staticmethod
    def forward(
        x: Tensor,
        projection: Tensor,
        bias: Tensor,
        weights: Tensor | None,
        gamma: Tensor | None,
        grad_mass: Tensor | None,
        grad_sums: Tensor | None,
        grad_gamma: Tensor | None,
        constant: bool,
        wanted: tuple[bool, bool, bool],
    ) -> tuple[Tensor, Tensor, Tensor]:
        grad_mass = torch.zeros_like(bias) if grad_mass is None else grad_mass
        grad_sums = torch.zeros_like(projection) if grad_sums is None else grad_sums
        with no_autocast(x):
            if constant:
                return _highway(x, projection, bias, weights, gamma, grad_sums)
            given = x, projection, bias, weights, gamma, grad_mass, grad_sums, grad_gamma
            return _gradients(*given, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor | None) -> tuple[Any, ...]:
        raise RuntimeError(
            "a gradient of highway EM was differentiated again, and only backward='autograd' has "
            "second derivatives: ask for that mode"
        )

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return _folded(_Gradient, info.batch_size, in_dims, inputs)


def _gradients(
    x: Tensor,
    projection: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    gamma: Tensor | None,
    grad_mass: Tensor,
    grad_sums: Tensor,
    grad_gamma: Tensor | None,
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """∂x: B,N,D, ∂ω: B,K,D and ∂c: B,K, two products in one wherever possible.

    A product with K columns is bound by reading x, so logits and ∂L/∂γ share one with 2K columns;
    its result then becomes w γ and d in place, the left factor of the gradient of x.
    """
    k, layout = bias.shape[-1], _Layout(x)
    both_bias = torch.cat((bias, grad_mass), dim=-1)  # B,2K
    from_x = torch.cat((projection, grad_sums), dim=1).mT  # B,D,2K
    from_x = from_x.contiguous() if layout.rows else from_x
    to_x = torch.cat((grad_sums, projection), dim=1)  # B,2K,D
    grad_x = torch.empty_like(x) if wanted[0] else x.new_empty(x.shape[0], 0, 1)
    grad_projection, grad_bias = torch.zeros_like(projection), torch.zeros_like(bias)
    for tile in tiles(x):
        part = upcast(x[:, tile]) if layout.dtype is bias.dtype else x[:, tile]
        if gamma is None:
            both = layout.to_columns(part, from_x, both_bias)  # B,n,2K
            responsibilities, d = both[..., :k], both[..., k:]
            _softmax_(responsibilities)
        else:
            d = layout.to_columns(part, from_x[..., k:], grad_mass)
            both = _side_by_side(upcast(gamma[:, tile]), d)
            responsibilities, d = both[..., :k], both[..., k:]
        if weights is not None:
            d *= weights[:, tile, None]
        if grad_gamma is not None:
            d += upcast(grad_gamma[:, tile])
        d *= responsibilities
        d.addcmul_(responsibilities, d.sum(dim=-1, keepdim=True), value=-1)
        if wanted[1]:
            grad_projection += layout.to_rows(d, part)
        if wanted[2]:
            grad_bias += d.sum(dim=1)
        if wanted[0]:
            if weights is not None:
                responsibilities *= weights[:, tile, None]
            grad_x[:, tile] = layout.spread(both, to_x)
        del both, d, responsibilities  # before the next tile takes as much
    return grad_x, grad_projection, grad_bias


def _side_by_side(a: Tensor, b: Tensor) -> Tensor:
    """a and b: B,n,K  →  B,n,2K in the layout of b."""
    if b.stride(-1) == 1:
        return torch.cat((a, b), dim=-1)
    return torch.cat((a.mT, b.mT), dim=1).mT


def _highway(
    x: Tensor,
    projection: Tensor,
    bias: Tensor,
    weights: Tensor | None,
    gamma: Tensor | None,
    grad_sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with constant responsibilities: only their weighted sums have a gradient."""
    layout = _Layout(x)
    matrix = projection.mT.contiguous() if layout.rows else projection.mT
    grad_x = torch.empty_like(x)
    for tile in tiles(x):
        if gamma is None:
            part = upcast(x[:, tile]) if layout.dtype is bias.dtype else x[:, tile]
            responsibilities = _softmax(layout.to_columns(part, matrix, bias))
        else:
            responsibilities = upcast(gamma[:, tile])
        if weights is not None:
            responsibilities = responsibilities * weights[:, tile, None]
        grad_x[:, tile] = layout.spread(responsibilities, grad_sums)
    return grad_x, torch.zeros_like(projection), torch.zeros_like(bias)


def _folded(
    function: type[torch.autograd.Function], count: int, in_dims: Any, inputs: tuple[Any, ...]
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The rule for `torch.func.vmap`: the mapped axis becomes part of the batch."""
    folded = []
    for value, dim in zip(inputs, in_dims, strict=True):
        if isinstance(value, Tensor):
            rows = value.expand(count, *value.shape) if dim is None else value.movedim(dim, 0)
            folded.append(rows.flatten(0, 1))
        else:
            folded.append(value)
    found = function.apply(*folded)
    return tuple(t.unflatten(0, (count, -1)) for t in found), (0,) * len(found)
