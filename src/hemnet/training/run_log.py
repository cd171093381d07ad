"""What a run writes down: metrics.jsonl, TensorBoard, and Weights & Biases when asked for.

`metrics.jsonl` has one JSON object per line, "kind" being "train" or "validation". After a
resume it is cut back to the checkpoint's step, so no step is in it twice.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hemnet.errors import UserError
from hemnet.training.checkpoints import write_atomically
from hemnet.training.config import TrainConfig
from hemnet.version import __version__

METRICS, ENVIRONMENT = "metrics.jsonl", "environment.json"


class RunLog:
    """Of the first process only; the others have none."""

    def __init__(self, out: Path, config: TrainConfig, step: int) -> None:
        self.path = out / METRICS
        cut_back(self.path, step)
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115
        self.board: Any = None
        if config.run.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            purge = step + 1 if step else None
            self.board = SummaryWriter(str(out / "tensorboard"), purge_step=purge)
        self.wandb: Any = None
        if config.run.wandb is not None:
            import wandb

            run_id = _run_id(out)
            self.wandb = wandb.init(
                project=config.run.wandb,
                name=out.name,
                id=run_id,
                resume="allow",
                dir=str(out),
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


def _run_id(out: Path) -> str:
    try:
        return str(json.loads((out / ENVIRONMENT).read_text(encoding="utf-8"))["run_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{out / ENVIRONMENT} does not say the run's id: {error!r}") from None


def numbers_of(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Nested numbers with names like iou/sky."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from numbers_of(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; one that was cut short or damaged is left out."""
    if not path.is_file():
        return []
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if is_metrics(content):
            found.append(content)
    return found


def is_metrics(line: Any) -> bool:
    """Whether a value is a line as `RunLog.write` makes them."""
    if not isinstance(line, dict) or not _is(line.get("step"), int) or line["step"] < 0:
        return False
    if line.get("kind") == "train":
        return _is(line.get("loss"), int | float) and isinstance(line.get("health", {}), dict)
    if line.get("kind") != "validation" or not isinstance(line.get("iou"), dict):
        return False
    scores = (line.get("miou"), line.get("pixel_accuracy"))
    iou = (value for value in line["iou"].values() if value is not None)  # of absent classes
    return all(_is(value, int | float) for value in (*scores, *iou))


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def cut_back(path: Path, step: int) -> None:
    """Drop everything after a step."""
    kept = [line for line in read_metrics(path) if line["step"] <= step]
    text = "".join(json.dumps(line) + "\n" for line in kept)
    if not path.exists() or text != path.read_text(encoding="utf-8", errors="replace"):
        write_atomically(path, text.encode())


def check_wandb(config: TrainConfig) -> None:
    if config.run.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise UserError(
            "run.wandb is set, but wandb is not installed: `pip install wandb`, or set it to null"
        )


def write_environment(out: Path, device: torch.device, processes: int) -> None:
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
    write_atomically(out / ENVIRONMENT, (json.dumps(content, indent=2) + "\n").encode())
