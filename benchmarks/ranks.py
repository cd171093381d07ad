"""Highway EM over positions that no process holds alone: what is sent, and what it finds.

    python benchmarks/ranks.py [--ranks 4] [--positions 1000000]

Every rank has `positions` points of one image, made from its own seed; the bases have to be those
of all points together. Bytes are those that each rank hands to all-reduce in one iteration, and
one process with a hundredth of the points checks that the result is that of the whole.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import hemnet

CHANNELS, BASES, ITERATIONS = 16, 16, 3


def points(rank: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(rank)
    centres = torch.eye(BASES, CHANNELS) * 4
    which = torch.randint(BASES, (count,), generator=generator)
    return (centres[which] + torch.randn(count, CHANNELS, generator=generator))[None]


def start() -> Tensor:
    return torch.eye(BASES, CHANNELS) + 0.1


def run(rank: int, ranks: int, positions: int, meet: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meet}", rank=rank, world_size=ranks)
    sent, all_reduce = [], dist.all_reduce

    def counted(tensor: Tensor, *more: object, **named: object) -> object:
        sent.append(tensor.numel() * tensor.element_size())
        return all_reduce(tensor, *more, **named)

    dist.all_reduce = counted
    group = dist.group.WORLD
    for count in (positions // 100, positions):
        x = points(rank, count).requires_grad_()
        sent.clear()
        begin = time.perf_counter()
        found = hemnet.highway_em(x, start(), ITERATIONS, kernel="rbf", group=group)
        forward, bytes_sent = time.perf_counter() - begin, sum(sent)
        found.bases.sum().backward()
        both = time.perf_counter() - begin
        if rank == 0:
            print(
                f"{ranks} ranks × {count:,} positions: {bytes_sent // ITERATIONS:,} bytes an "
                f"iteration, forward {forward:.2f} s, with backward {both:.2f} s"
            )
        if count < positions and rank == 0:
            whole = torch.cat([points(r, count) for r in range(ranks)], 1)
            alone = hemnet.highway_em(whole, start(), ITERATIONS, kernel="rbf")
            gap = float((alone.bases - found.bases).detach().abs().max())
            print(f"largest difference from one process with all positions: {gap:.1e}")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--positions", type=int, default=1_000_000, help="of each rank")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(args.ranks, args.positions, f"{folder}/meet"), nprocs=args.ranks)


if __name__ == "__main__":
    main()
