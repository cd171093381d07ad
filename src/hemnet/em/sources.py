"""Where an iteration's features are: in a tensor, behind a linear map, on several devices, on disk.

EM needs of them only mass and weighted sums, which add up over parts. So the loop in
`hemnet.em.solver` is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from hemnet.em.numeric import upcast
from hemnet.em.statistics import Statistics, statistics

Linear = tuple[Tensor, Tensor | None]  # weight D,C and bias D


def apply_linear(x: Tensor, linear: Linear | None) -> Tensor:
    """x: …,C behind the map, …,D; x itself where there is none."""
    if linear is None:
        return x
    weight, bias = linear
    return F.linear(x, weight.to(x), None if bias is None else bias.to(x))


@dataclass
class Features:
    """t(x): B,N,C in memory, or the part of it that this rank of a process group has.

    Attributes:
        linear: a map D,C in front of EM. From (Wx + b)·ω = x·(Wᵀω) + b·ω and
            Σ γ(Wx + b) = W Σ γx + b Σ γ: it is applied to K rows instead of N.
        group: the ranks that have the other positions.
        weights, backward, dtype, known: see `statistics`.
        seen: what `statistics` found last.
    """

    x: Tensor
    weights: Tensor | None = None
    linear: Linear | None = None
    group: ProcessGroup | None = None
    backward: str = "exact"
    dtype: torch.dtype | None = None
    known: Statistics | None = None
    seen: Statistics | None = None

    def __call__(self, weight: Tensor, bias: Tensor, keep: bool) -> Statistics:
        matrix, shift = (None if t is None else upcast(t) for t in self.linear or (None, None))
        if shift is not None:
            bias = bias + weight @ shift
        if matrix is not None:
            weight = weight @ matrix
        if self.backward == "highway":
            weight, bias = weight.detach(), bias.detach()
        self.seen = mass, sums, gamma = statistics(
            self.x, weight, bias, self.weights, keep, self.backward, self.dtype, self.known
        )
        if self.group is not None:
            mass, sums = all_reduce(mass, self.group), all_reduce(sums, self.group)
        if matrix is not None:
            sums = sums @ matrix.mT
        if shift is not None:
            sums = sums + mass.unsqueeze(-1) * shift
        return Statistics(mass, sums, gamma)


@dataclass
class Parts:
    """Features that do not fit in memory, a single image's: parts n,C, anew for each iteration."""

    parts: Callable[[], Iterable[Tensor]]

    @torch.no_grad()
    def __call__(self, weight: Tensor, bias: Tensor, keep: bool) -> Statistics:
        # Totals over millions of positions in float64; on the CPU, as not every device has it.
        mass = torch.zeros(bias.shape, dtype=torch.float64)
        sums = torch.zeros(weight.shape, dtype=torch.float64)
        for part in filter(len, self.parts()):
            found = statistics(upcast(part)[None].to(weight), weight, bias)
            mass += found.mass.cpu()
            sums += found.sums.cpu()
        return Statistics(mass.to(bias), sums.to(weight), mass.new_empty(1, 0, 0))


def all_reduce(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """The sum over the ranks of a group, whose gradient is a sum over them, too.

    By hand: importing torch.distributed.nn, which has one, keeps process groups alive for ever.
    """
    total: Tensor = _AllReduce.apply(tensor, group)
    return total


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        total = tensor.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, ctx.group), None
