"""Runs of seconds, and what two of them must agree in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hemnet.run_folder import RunFolder
from hemnet.training.checkpoints import read_checkpoint
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import read_config

TIMING = ("images_per_second", "data_wait", "seconds")
# Batch norm and dropout aside, whatever is computed is a sum over the images of both processes.
FOR_SEVERAL = ["--model.freeze_norm", "true", "--model.options.dropout", "0"]
FOR_SEVERAL += ["--optim.accumulate", "1", "--optim.steps", "6", "--optim.ema_decay", "0.9"]


def tiny_config(*flags: str) -> TrainConfig:
    """A run of seconds that uses everything with a state: moving averages, momentum, dropout."""
    settings = {
        "model.backbone": "test_resnet",
        "model.output_stride": 16,
        "model.channels": 16,
        "model.options": "{bases: 8, variance: auto, dropout: 0.2, initial_bases: running_average}",
        "data.size": 48,
        "data.crop": "[48, 48]",
        "data.length": 10,
        "data.val_length": 3,
        "data.workers": 0,
        "optim.batch_size": 4,
        "optim.steps": 8,
        "validation.every": 4,
        "run.log_every": 3,
        "run.health_every": 3,
        "run.checkpoint_every": 1,
        "run.tensorboard": "false",
        "run.device": "cpu",
    }
    given = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    return read_config(None, [*given, *flags])


def outcome(out: Path) -> dict[str, Any]:
    """Everything of a run that must not depend on kills."""
    tensors, progress = read_checkpoint(out / "checkpoints" / "last.safetensors")
    best, best_progress = read_checkpoint(out / "checkpoints" / "best.safetensors")
    lines = RunFolder(out).read_metrics()
    return {
        "last": tensors,
        "best": best,
        "model": load_file(out / "model" / "model.safetensors"),
        "progress": progress,
        "best progress": best_progress,
        "metrics": [{k: v for k, v in line.items() if k not in TIMING} for line in lines],
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part, value in one.items():
        if not isinstance(value, dict):
            assert value == other[part], f"{part}: {value} and {other[part]}"
            continue
        assert value.keys() == other[part].keys(), part
        for name, tensor in value.items():
            same = torch.equal(tensor, other[part][name])
            assert same, f"{part}: {name} differs"
