"""What a run writes down: metrics.jsonl, TensorBoard, and Weights & Biases when asked for.

After a resume metrics.jsonl is cut back to the checkpoint's step, so no step is in it twice.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch

from hemnet.errors import UserError
from hemnet.files import write_text
from hemnet.run_folder import RunFolder, is_number
from hemnet.training.config import TrainConfig
from hemnet.version import __version__


class RunLog:
    """Of the first process only; the others have none."""

    def __init__(self, folder: RunFolder, config: TrainConfig, step: int) -> None:
        folder.cut_metrics(step)
        self.file = open(folder.metrics, "a", encoding="utf-8")  # noqa: SIM115
        self.board: Any = None
        if config.run.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            purge = step + 1 if step else None
            self.board = SummaryWriter(str(folder.tensorboard), purge_step=purge)
        self.wandb: Any = None
        if config.run.wandb is not None:
            import wandb

            run_id = _run_id(folder)
            self.wandb = wandb.init(
                project=config.run.wandb,
                name=folder.path.name,
                id=run_id,
                resume="allow",
                dir=str(folder.path),
                config=asdict(config),
            )

    def write(self, kind: str, step: int, **values: Any) -> None:
        self.file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self.file.flush()
        numbers = {f"{kind}/{name}": value for name, value in numbers_of(values)}
        if self.board is not None:
            for name, value in numbers.items():
                self.board.add_scalar(name, value, step)
        if self.wandb is not None:
            self.wandb.log(numbers, step=step)

    def sync(self) -> None:
        """Everything so far reaches the disk: a checkpoint must not be ahead of its metrics."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()
        if self.wandb is not None:
            self.wandb.finish()


def _run_id(folder: RunFolder) -> str:
    found = folder.read_environment().get("run_id")
    if not isinstance(found, str):
        raise UserError(f"{folder.environment} does not say the run's id")
    return found


def numbers_of(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Nested numbers with names like iou/sky."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from numbers_of(value, f"{prefix}{name}/")
        elif is_number(value):
            yield f"{prefix}{name}", value


def check_wandb(config: TrainConfig) -> None:
    if config.run.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "run.wandb is set, but wandb is not installed: `pip install wandb`, or set it to null"
        )


def write_environment(folder: RunFolder, device: torch.device, processes: int) -> None:
    """What the run ran on, and the run's own id; written once."""
    content = {
        "run_id": secrets.token_hex(6),
        "hemnet": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        "threads": torch.get_num_threads(),
        "processes": processes,
    }
    write_text(folder.environment, json.dumps(content, indent=2) + "\n", durable=True)
