"""The moving average of the bases: once per optimizer step, over all ranks, from one start."""

import copy
import gc
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn  # before any group is made: its functions would keep that one for ever
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import hemnet

UNITS: dict[str, Any] = {
    "highway": lambda: hemnet.HighwayEMAttention(8, bases=4, preset="paper"),
    "auto": lambda: hemnet.HighwayEMAttention(8, bases=4, preset="paper", variance="auto"),
    "recommended": lambda: hemnet.HighwayEMAttention(
        8, bases=4, gain=0.3, initial_bases="running_average"
    ),
    "emanet": lambda: hemnet.EMAttention(8, bases=4),
}


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> Any:
    return frozen_norm(UNITS[request.param]().double())


def frozen_norm(unit: Any) -> Any:
    """In training, but with batch norms that do not mix the images of a batch."""
    unit.train()
    unit.scale.eval()
    unit.norm.eval()
    return unit


def batches(steps: int, size: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(steps, size, 8, 5, 6, generator=generator, dtype=torch.float64)


def loss_of(out: Tensor) -> Tensor:
    return out.square().mean()


def state(unit: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in unit.state_dict().items() if "num_batches" not in k}


def train(unit: nn.Module, data: Tensor) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(unit.parameters(), lr=0.3, momentum=0.9)
    for batch in data:
        optimizer.zero_grad()
        loss_of(unit(batch)).backward()
        optimizer.step()
    return state(unit)


def test_moves_by_the_mean_of_the_batch(unit: Any) -> None:
    x = batches(1)[0]
    before = unit.bases.value.clone()
    images = [copy.deepcopy(unit) for _ in x]
    moved = []
    for twin, image in zip(images, x, strict=True):
        twin(image[None])
        moved.append((twin.bases.value - 0.9 * before) / 0.1)
    unit(x)
    torch.testing.assert_close(
        unit.bases.value, 0.9 * before + 0.1 * torch.stack(moved).mean(0), rtol=1e-9, atol=1e-9
    )


def test_forward_passes_alone_move_the_bases_each_time(unit: Any) -> None:
    x = batches(1)[0]
    unit(x)
    once = unit.bases.value.clone()
    with torch.no_grad():
        unit(x)
    assert not torch.allclose(unit.bases.value, once)


def test_update_does_not_disturb_the_graph(unit: Any) -> None:
    """Two passes before one backward: the first graph's bases must not change under it."""
    x, y = batches(2)
    alone = copy.deepcopy(unit)
    expected = torch.autograd.grad(loss_of(alone(x)), alone.conv_out.weight)
    first = loss_of(unit(x))
    unit(y)
    torch.testing.assert_close(torch.autograd.grad(first, unit.conv_out.weight), expected)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_gradient_accumulation_is_the_joined_batch(
    unit: Any, set_to_none: bool, late: bool
) -> None:
    """Gradients are zeroed before or after the forward pass, to None or to 0: all are in use."""
    expected = train(copy.deepcopy(unit), batches(4))
    optimizer = torch.optim.SGD(unit.parameters(), lr=0.3, momentum=0.9)
    for batch in batches(4):
        for i, part in enumerate(batch.chunk(2)):
            if i == 0 and not late:
                optimizer.zero_grad(set_to_none)
            out = unit(part)
            if i == 0 and late:
                optimizer.zero_grad(set_to_none)
            (loss_of(out) / 2).backward()
        optimizer.step()
    torch.testing.assert_close(state(unit), expected, rtol=1e-9, atol=1e-9)


def test_compiled_gradient_accumulation_is_the_joined_batch() -> None:
    unit = frozen_norm(UNITS["highway"]().double())
    expected = train(copy.deepcopy(unit), batches(3))
    compiled = torch.compile(unit, fullgraph=True, backend="aot_eager")
    optimizer = torch.optim.SGD(unit.parameters(), lr=0.3, momentum=0.9)
    for batch in batches(3):
        for i, part in enumerate(batch.chunk(2)):
            out = compiled(part)
            if i == 0:
                optimizer.zero_grad()
            (loss_of(out) / 2).backward()
        optimizer.step()
    torch.testing.assert_close(state(unit), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("parts", [1, 2])
def test_activation_checkpointing_changes_nothing(unit: Any, reentrant: bool, parts: int) -> None:
    expected = train(copy.deepcopy(unit), batches(3))
    optimizer = torch.optim.SGD(unit.parameters(), lr=0.3, momentum=0.9)
    for batch in batches(3):
        optimizer.zero_grad()
        for part in batch.chunk(parts):
            x = part.clone().requires_grad_()  # the reentrant variant needs such an input
            out = checkpoint(unit, x, use_reentrant=reentrant)
            (loss_of(out) / parts).backward()
        optimizer.step()
    torch.testing.assert_close(state(unit), expected, rtol=1e-9, atol=1e-9)


def test_a_bad_batch_shows_but_does_not_poison_the_bases(unit: Any) -> None:
    good, bad = batches(2)
    unit(good)
    before = unit.bases.value.clone()
    bad[1, 2, 3, 4] = math.nan
    assert bool(unit(bad)[1].isnan().all())
    torch.testing.assert_close(unit.bases.value, before)
    unit(good)
    assert bool(unit.bases.value.isfinite().all())
    assert not torch.allclose(unit.bases.value, before)


def test_empty_batch_leaves_the_bases(unit: Any) -> None:
    before = unit.bases.value.clone()
    assert unit(batches(1)[0][:0]).shape == (0, 8, 5, 6)
    torch.testing.assert_close(unit.bases.value, before)


PARALLEL = (("highway", 1), ("auto", 2), ("emanet", 1))  # unit, accumulated passes


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(rank)  # DistributedDataParallel hands rank 0's start to all
    for name, accumulate in PARALLEL:
        unit = frozen_norm(UNITS[name]().double())
        if rank == 0:
            unit.load_state_dict(torch.load(f"{folder}/{name}.pt"))
        parallel = DistributedDataParallel(unit)
        optimizer = torch.optim.SGD(unit.parameters(), lr=0.3, momentum=0.9)
        for batch in batches(4):
            optimizer.zero_grad()
            for part in batch.chunk(2)[rank].chunk(accumulate):
                (loss_of(parallel(part)) / accumulate).backward()
            optimizer.step()
        torch.save(state(unit), f"{folder}/{name}{rank}.pt")
    dist.barrier()  # neither hangs up while the other still listens
    del parallel
    gc.collect()
    dist.destroy_process_group()
    # Nothing holds the group any more, or its threads may abort the process when all is done.
    assert not [name for name in map(_name, Path("/proc/self/task").glob("*")) if "gloo" in name]


def _name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text()
    except OSError:  # it has just ended
        return ""


def test_two_processes_are_one_with_the_joined_batch(tmp_path: Path) -> None:
    units = {name: frozen_norm(UNITS[name]().double()) for name, _ in PARALLEL}
    for name, unit in units.items():
        torch.save(unit.state_dict(), tmp_path / f"{name}.pt")
    mp.spawn(_rank, args=(str(tmp_path),), nprocs=2)
    for name, unit in units.items():
        ranks = [torch.load(tmp_path / f"{name}{i}.pt") for i in range(2)]
        torch.testing.assert_close(ranks[0], ranks[1], rtol=0, atol=0)
        torch.testing.assert_close(ranks[0], train(unit, batches(4)), rtol=1e-9, atol=1e-9)
