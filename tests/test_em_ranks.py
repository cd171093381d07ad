"""Positions of an image spread over processes: values and gradients are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import hemnet

MODES = ("exact", "autograd", "highway", "implicit", "none")
CUTS = {2: (13, 17), 3: (4, 20, 6)}  # rows of the image, or positions, of each rank


def solved(x: Tensor, backward: str, group: Any = None) -> list[Tensor]:
    """Results, and gradients of a loss that counts the bases once for each position."""
    generator = torch.Generator().manual_seed(3)
    bases = torch.randn(4, 5, generator=generator, dtype=torch.float64).requires_grad_()
    matrix = torch.randn(5, 6, generator=generator, dtype=torch.float64).requires_grad_()
    leaf = x.clone().requires_grad_()
    result = hemnet.highway_em(
        leaf, bases, 3, 0.4, 0.9, "rbf", backward, linear=(matrix, None), group=group
    )
    rebuilt = hemnet.r_step(result.responsibilities, result.bases)
    found = [result.bases, result.responsibilities]
    if backward != "none":
        loss = rebuilt.sin().sum()
        grads = torch.autograd.grad(loss, (leaf, bases, matrix), allow_unused=True)
        found += [torch.zeros(()) if g is None else g for g in grads]
    return found


def features() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 30, 6, generator=generator, dtype=torch.float64)


def unit_pass(x: Tensor, group: Any = None) -> dict[str, Tensor]:
    """One training pass of a unit on rows of x: B,C,H,W, and what it changed."""
    torch.manual_seed(5)
    unit = (
        hemnet.HighwayEMAttention(6, bases=4, gain=0.5, variance=2.0, group=group).double().train()
    )
    leaf = x.clone().requires_grad_()
    y = unit(leaf)
    y.sin().sum().backward()
    found = {"y": y.detach(), "x": leaf.grad, **unit.state_dict()}
    for name, parameter in unit.named_parameters():
        found[f"grad {name}"] = parameter.grad
    return found


def rank_of(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    group = dist.group.WORLD
    mine = features().split(CUTS[world], 1)[rank]
    found: dict[str, Any] = {mode: solved(mine, mode, group) for mode in MODES}
    image = features().unflatten(1, (30, 1)).permute(0, 3, 1, 2)
    found["unit"] = unit_pass(image.split(CUTS[world], 2)[rank], group)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.barrier()  # neither hangs up while the other still listens
    dist.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_have_the_values_and_gradients_of_one(world: int, tmp_path: Path) -> None:
    mp.spawn(rank_of, args=(world, str(tmp_path)), nprocs=world)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(world)]
    close = {"rtol": 1e-9, "atol": 1e-10}
    for mode in MODES:
        whole = solved(features(), mode)
        for found in ranks:
            torch.testing.assert_close(found[mode][0], whole[0], **close)
        for index in (1, 2)[: 1 if mode == "none" else 2]:  # of positions: each rank has its own
            joined = torch.cat([found[mode][index] for found in ranks], 1)
            torch.testing.assert_close(joined, whole[index], **close)
        for index in () if mode == "none" else (3, 4):  # of shared weights: the ranks' sum
            total = sum(found[mode][index] for found in ranks)
            torch.testing.assert_close(total, whole[index], **close)
    image = features().unflatten(1, (30, 1)).permute(0, 3, 1, 2)
    whole_unit, units = unit_pass(image), [found["unit"] for found in ranks]
    for name, value in whole_unit.items():
        if name in ("x", "y"):
            torch.testing.assert_close(torch.cat([u[name] for u in units], 2), value, **close)
        elif name.startswith("grad"):
            torch.testing.assert_close(sum(u[name] for u in units), value, **close)
        elif "num_batches" not in name:
            for unit in units:
                torch.testing.assert_close(unit[name], value, **close)
