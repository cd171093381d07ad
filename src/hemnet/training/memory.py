"""How many passes a step needs, so that one pass fits into the memory there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hemnet.errors import UserError
from hemnet.models.costs import on_meta, peak_bytes
from hemnet.training.config import TrainConfig
from hemnet.training.setup import create_network

GIB = 2**30
BACKWARD = 1.5  # of what the forward pass keeps: gradients, and workspaces of kernels
STATES = {"sgd": 3, "adafactor": 3}  # copies of the weights; of most 4
SHARE = 0.8  # of the free memory


@dataclass(frozen=True)
class Need:
    """Bytes of training: of weights, gradients and optimizer, and of each crop."""

    fixed: int
    crop: int

    def of(self, crops: int) -> int:
        return self.fixed + crops * self.crop


def need(config: TrainConfig, num_classes: int) -> Need:
    """Counted on a model without memory, as `hemnet costs` does."""
    model = on_meta(lambda: create_network(config, num_classes)).train()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    one, two = (peak_bytes(model, config.data.crop, n, training=True) for n in (2, 3))
    half = 0.6 if config.run.precision != "float32" else 1.0
    return Need(weights * STATES.get(config.optim.name, 4), int((two - one) * BACKWARD * half))


def free_bytes(device: torch.device) -> int:
    """What a run may fill."""
    if device.type == "cuda":
        return int(SHARE * torch.cuda.mem_get_info(device)[0])
    for line in _meminfo():
        if line.startswith("MemAvailable:"):
            return int(SHARE * int(line.split()[1]) * 1024)
    return 4 * GIB


def _meminfo() -> list[str]:
    try:
        return Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return []


def passes(
    config: TrainConfig, num_classes: int, world: int, device: torch.device
) -> tuple[int, str]:
    """The fewest passes of a step whose crops fit, and why."""
    optim = config.optim
    budget = int(optim.memory_gib * GIB) if optim.memory_gib is not None else free_bytes(device)
    if device.type == "cpu":
        budget //= world  # which share it
    wanted = need(config, num_classes)
    if optim.batch_size % world:
        raise UserError(
            f"optim.batch_size {optim.batch_size} cannot be split into {world} processes"
        )
    share = optim.batch_size // world
    for count in range(1, share + 1):
        crops = share // count
        if share % count == 0 and wanted.of(crops) <= budget:
            return count, (
                f"{crops} crops a pass need about {wanted.of(crops) / GIB:.2f} of "
                f"{budget / GIB:.2f} GiB"
            )
    raise UserError(
        f"one crop of {config.data.crop[0]}×{config.data.crop[1]} needs about "
        f"{wanted.of(1) / GIB:.2f} GiB, and there are {budget / GIB:.2f} (optim.memory_gib). Use a "
        "smaller data.crop, model.backbone, or model.output_stride 16 or 32"
    )
