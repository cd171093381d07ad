"""Bases to start EM from that are the image's own: features far apart from each other.

Bases shared by all images have to be near every image's clusters before EM has seen it. Where what
ties positions together is drawn anew in each image, no shared bases are, and a moving average of
what EM makes of them goes to the mean of the features (`docs/method.md`). Features of the image
itself are near its clusters whatever these are, need no state between images, and as many as K
clusters are all met if each is the one farthest from those before it: the start of k-means in
Gonzalez, "Clustering to Minimize the Maximum Intercluster Distance" (1985).
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from hemnet.em.numeric import no_autocast, upcast
from hemnet.em.sources import Linear, apply_linear

CANDIDATES = 256  # positions of an image that are looked at, or four for each basis
# Distances this close are equal, whatever the rounding, and the first of them counts: relatively,
# and to the features' squares, which is all that is left where every distinct position is chosen.
TIE, NOISE = 1e-4, 1e-5


@torch.no_grad()
def farthest_points(
    x: Tensor,
    count: int,
    weights: Tensor | None = None,
    linear: Linear | None = None,
    group: ProcessGroup | None = None,
) -> Tensor:
    """`count` positions of each image of x: B,N,C, far apart from each other: B,count,C.

    The first is farthest from the mean, each further one from its nearest predecessor. Positions
    with weight 0 in B,N are not chosen. They are constants: no gradient goes through them. An
    image's points do not depend on the batch.

    Args:
        x: features B,N,C.
        count: K.
        weights: of the positions, B,N or 1,N.
        linear: a map in front, whose results are wanted.
        group: the ranks that have the other positions; all get the same points.
    """
    wanted = candidates_for(count)
    valid = None if weights is None else weights.expand(x.shape[:2]) > 0
    if group is None:
        seen = spread_positions(x.shape[1], wanted, x.device)
        x, valid = x[:, seen], None if valid is None else valid[:, seen]
        if torch.compiler.is_exporting():  # those that occur again count once
            first = torch.cat((seen[:1] >= 0, seen[1:] > seen[:-1])).expand(x.shape[:2])
            valid = first if valid is None else valid & first
    else:
        x, valid = _gathered(x, wanted, valid, group)
    candidates = apply_linear(upcast(x), linear)
    index = _farthest(candidates, count, valid)
    return candidates.gather(1, index.unsqueeze(-1).expand(-1, -1, candidates.shape[2]))


def _gathered(
    x: Tensor, wanted: int, valid: Tensor | None, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """The candidates that one process with the positions of all ranks would look at."""
    counts = torch.zeros(dist.get_world_size(group), dtype=torch.long, device=x.device)
    rank = dist.get_rank(group)
    counts[rank] = x.shape[1]
    dist.all_reduce(counts, group=group)
    before, total = int(counts[:rank].sum()), int(counts.sum())
    seen = spread_positions(total, wanted, x.device) - before
    mine = (seen >= 0) & (seen < x.shape[1])
    here = seen.clamp(0, x.shape[1] - 1)
    usable = torch.ones_like(x[..., 0], dtype=torch.bool) if valid is None else valid
    rows = torch.cat((upcast(x), usable.to(upcast(x[:0]).dtype).unsqueeze(-1)), dim=-1)
    found = (rows[:, here] * mine.to(rows).unsqueeze(-1)).contiguous()
    dist.all_reduce(found, group=group)
    return found[..., :-1], found[..., -1] > 0.5


def candidates_for(count: int) -> int:
    """How many positions of an image are looked at for so many bases."""
    return max(CANDIDATES, 4 * count)


def spread_positions(positions: int, wanted: int, device: torch.device) -> Tensor:
    """`wanted` of N positions in rising order, one of each of as many equal stretches.

    Which one of its stretch follows the golden ratio, so that no column of an image is preferred,
    whatever its width. With N below `wanted` each position occurs: once, but in an exported file,
    whose N is not known, some more often.
    """
    if not torch.compiler.is_exporting() and positions <= wanted:
        return torch.arange(positions, device=device)
    number = torch.arange(wanted, device=device, dtype=torch.float32)
    golden = (math.sqrt(5) - 1) / 2
    within = (number * golden).frac() * (positions // wanted)
    return (number * (positions / wanted)).long() + within.long()


@torch.no_grad()
def _farthest(x: Tensor, count: int, valid: Tensor | None) -> Tensor:
    """Numbers B,count of positions of x: B,n,C."""
    with no_autocast(x):
        share = torch.ones_like(x[..., :1]) if valid is None else valid.to(x).unsqueeze(-1)
        mean = (share * x).sum(1, keepdim=True) / share.sum(1, keepdim=True).clamp_min(1)
        x = x - mean
        squares = x.square().sum(-1)
        gap = squares if valid is None else squares.masked_fill(~valid, -math.inf)
        noise = NOISE * gap.amax(1, keepdim=True).clamp_min(0)
        # Distances to the chosen points alone: K products with n rows, not n.
        away, squares = -2 * x, squares.unsqueeze(-1)
        chosen = []
        for _ in range(count):
            best = gap.amax(1, keepdim=True)
            equal = gap >= best - TIE * best.abs() - noise
            nearest = equal.to(torch.int32).argmax(1, keepdim=True)
            chosen.append(nearest)  # B,1
            point = x.gather(1, nearest.unsqueeze(-1).expand(-1, -1, x.shape[2]))
            distance = torch.baddbmm(squares, away, point.mT).squeeze(-1)  # but for ‖point‖²
            gap = torch.minimum(gap, distance + squares.squeeze(-1).gather(1, nearest))
    return torch.cat(chosen, 1)
