"""The studies' training configuration: learns the scenes' context in half a minute on one core.

Any configuration of `hemnet train` can take its place, and every setting is a flag.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

from hemnet.data.scenes import SCENES
from hemnet.errors import UserError
from hemnet.models.registry import head_options
from hemnet.training.config import (
    DataConfig,
    LossConfig,
    NetworkConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    ValidationConfig,
)
from hemnet.training.config_parser import read_config

STEPS, BATCH, SIZE = 400, 16, 64


def scenes_config(steps: int = STEPS, size: int = SIZE) -> TrainConfig:
    """The paper's unit in a small network, from scratch, on scenes of `size` pixels.

    From scratch there is nothing yet that the unit, as the paper starts it, could drown.
    """
    things = SCENES.context_classes
    return TrainConfig(
        model=NetworkConfig(
            backbone="test_byobnet",
            output_stride=8,
            channels=64,
            options={"bases": 16, "preset": "paper"},
        ),
        data=DataConfig(
            name="scenes",
            size=size,
            length=max(steps, 1) * BATCH,  # no scene twice
            val_length=200,
            crop=(size, size),
            scale=(1.0, 1.0),
            workers=0,
        ),
        optim=OptimConfig(
            name="adamw", steps=steps, batch_size=BATCH, lr=3e-3, warmup=50, bias_lr_mult=1.0
        ),
        # Things cover a tenth of a scene: without weights the network is slow to care about them.
        loss=LossConfig(class_weights=[4.0 if k in things else 1.0 for k in range(11)]),
        validation=ValidationConfig(every=steps, batch_size=20),
        run=RunConfig(checkpoint_every=steps, health_every=steps, log_every=50, tensorboard=False),
    )


def photograph_config(name: str) -> TrainConfig:
    """A short schedule for any other data set, meant for pretrained weights (`--weights`)."""
    return TrainConfig(
        model=NetworkConfig(backbone="resnet50", output_stride=16, options={"preset": "paper"}),
        data=DataConfig(name=name, crop=(257, 257), workers=0),
        optim=OptimConfig(steps=1000, batch_size=8, warmup=50, head_lr_mult=4.0, lr=4e-3),
        validation=ValidationConfig(batch_size=4),
        run=RunConfig(checkpoint_every=500, health_every=100, tensorboard=False),
    )


def study_config(path: Path | None, flags: Sequence[str]) -> TrainConfig:
    """A recipe above or the user's file, changed by `--section.name value` flags."""
    name = _given(flags, "data.name") or "scenes"
    own = scenes_config() if name == "scenes" else photograph_config(name)
    config = read_config(path or own, flags)
    if config.data.val_split is None:
        raise UserError("a study compares models on data they have not seen: set data.val_split")
    # Validated once, at the end: the best of many would be selected on its own test data.
    config.validation.every = config.optim.steps
    config.data.workers = 0  # a worker process of the grid is one core's work
    return config


def _given(flags: Sequence[str], key: str) -> str | None:
    for number, flag in enumerate(flags):
        if flag.startswith(f"--{key}="):
            return flag.split("=", 1)[1]
        if flag == f"--{key}" and number + 1 < len(flags):
            return flags[number + 1]
    return None


def for_head(config: TrainConfig, name: str) -> TrainConfig:
    """The same for another head, with the network's options that it shares."""
    config = copy.deepcopy(config)
    known, width = head_options(name)
    network = config.model
    network.name = name
    network.options = {key: v for key, v in network.options.items() if key in known}
    if width is None:
        network.channels = None
    return config
