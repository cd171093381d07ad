"""Highway EM over features that do not fit in memory: T passes over parts of them.

An iteration needs of the features only Σ_n γ x and Σ_n γ, which add up over parts. So the bases
are those of `highway_em` on all parts together, whatever the parts are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from hemnet.em.checks import Steps
from hemnet.em.steps import move, weighted_means, wide
from hemnet.em.tiles import EStep


class GlobalBases(NamedTuple):
    """Bases K,C before and after the last iteration: its E-step uses the first, the R-step both."""

    before: Tensor
    after: Tensor


@torch.no_grad()
def stream_em(
    parts: Callable[[], Iterable[Tensor]],
    bases: Tensor,
    steps: Steps,
    variance: float | Tensor,
    kernel: str = "dot",
    unit_length: bool = False,
) -> GlobalBases:
    """Bases fitted to all features; `parts()` gives them anew for each iteration, n,C at a time."""
    before = after = wide(bases)[None]  # 1,K,C
    for step in steps:
        before = after
        # Totals over millions of positions in float64; on the CPU, as not every device has it.
        mass = torch.zeros(before.shape[:2], dtype=torch.float64)
        sums = torch.zeros(before.shape, dtype=torch.float64)
        responsibilities_of = EStep(before, variance, kernel)
        for part in parts():
            x = wide(part)[None].to(before.device)
            gamma = responsibilities_of(x)
            mass += gamma.sum(dim=1).cpu()
            sums += torch.bmm(gamma.mT, x).cpu()
        means = weighted_means(sums.to(before), mass.to(before), before)
        after = move(before, means, step)
        if unit_length:
            after = torch.nn.functional.normalize(after, dim=-1)
    return GlobalBases(before[0], after[0])
