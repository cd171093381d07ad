"""The forward pass in tiles: T iterations that keep only the bases of each.

A tile of positions is read once and used twice while it is in the cache: for its responsibilities
and for its share of the weighted sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hemnet.em.checks import Steps
from hemnet.em.steps import move, offset, scaled, weighted_means, wide

# Positions of a whole batch in one tile, at the most. On a CPU a tile of features (4352·512 floats)
# stays in the caches; a GPU wants few, large kernels instead.
CPU_TILE = 4352
GPU_TILE = 65536
SMALLEST = 128
FORWARD = 3  # times that in the forward pass, which needs fewer temporaries


class Solution(NamedTuple):
    bases: Tensor  # T+1,B,K,C: before the first and after every iteration
    mass: Tensor  # T,B,K: N_k of every iteration
    responsibilities: Tensor  # B,N,K: of the last E-step


def tiles(x: Tensor, times: int = 1) -> Iterator[slice]:
    """Slices of the positions of x: B,N,C, `times` the usual size.

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


class EStep:
    """The E-step with given bases: B,K,C, prepared once and applied to every tile."""

    def __init__(self, bases: Tensor, variance: float | Tensor, kernel: str) -> None:
        # Laid out C,K: the product with a tile is a quarter faster than from K,C.
        self.weights = scaled(bases, variance).mT.contiguous()
        self.bias = offset(bases, variance, kernel)

    def __call__(self, x: Tensor) -> Tensor:
        """Responsibilities B,n,K of a tile B,n,C."""
        if self.bias is None:
            logits = torch.bmm(x, self.weights)
        else:
            logits = torch.baddbmm(self.bias, x, self.weights)
        return logits.softmax(dim=-1)


def weighted(gamma: Tensor, weights: Tensor | None, tile: slice = slice(None)) -> Tensor:
    """w·γ: B,n,K of a tile of positions with weights: B,N; γ itself where there are none."""
    return gamma if weights is None else gamma * weights[:, tile, None].to(gamma.dtype)


def solve(
    x: Tensor,
    bases: Tensor,
    steps: Steps,
    variance: float | Tensor,
    kernel: str,
    unit_length: bool = False,
    weights: Tensor | None = None,
) -> Solution:
    """T = len(steps) iterations. `unit_length` scales the bases after each (EMANet's variant)."""
    current = wide(bases).expand(x.shape[0], *bases.shape[-2:]).to(wide(x[:0]).dtype)
    all_bases, all_mass = [current], []
    last: list[Tensor] = []
    for t, step in enumerate(steps):
        sums = mass = None
        responsibilities_of = EStep(current, variance, kernel)
        for tile in tiles(x, FORWARD):
            part = wide(x[:, tile])
            gamma = responsibilities_of(part)
            counted = weighted(gamma, weights, tile)
            if sums is None or mass is None:
                mass, sums = counted.sum(dim=1), torch.bmm(counted.mT, part)
            else:
                mass += counted.sum(dim=1)
                sums.baddbmm_(counted.mT, part)
            if t == len(steps) - 1:
                last.append(gamma)
        assert sums is not None
        assert mass is not None
        current = move(current, weighted_means(sums, mass, current), step)
        if unit_length:
            current = torch.nn.functional.normalize(current, dim=-1)
        all_bases.append(current)
        all_mass.append(mass)
    responsibilities = last[0] if len(last) == 1 else torch.cat(last, dim=1)
    return Solution(torch.stack(all_bases), torch.stack(all_mass), responsibilities)
