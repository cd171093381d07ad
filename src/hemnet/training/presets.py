"""Settings to begin with."""

from __future__ import annotations

from typing import Any

# Each is the defaults with these changes; a file, overrides and flags go before them.
PRESETS: dict[str, dict[str, Any]] = {
    # Hundreds of images and some cores: a small network whose early stages stay as they are.
    "cpu": {
        "model.backbone": "tf_efficientnet_lite0",
        "model.weights": "imagenet",
        "model.output_stride": 16,
        "model.channels": 128,
        "model.freeze_stages": 2,
        "data.name": "folder",
        "data.crop": [257, 257],
        "data.jitter": 0.2,
        "optim.name": "adamw",
        "optim.steps": 1500,
        "optim.batch_size": 4,
        "optim.lr": 0.0005,
        "optim.warmup": 50,
        "optim.weight_decay": 0.01,
        "optim.bias_lr_mult": 1.0,
        "optim.head_lr_mult": 2.0,
        "validation.every": 150,
        "run.log_every": 10,
    },
    # Thousands of images and a GPU with 12 GiB or more.
    "gpu": {
        "model.backbone": "resnet50",
        "model.weights": "imagenet",
        "model.output_stride": 16,
        "model.channels": 256,
        "data.name": "folder",
        "data.crop": [513, 513],
        "data.jitter": 0.2,
        "data.workers": 8,
        "optim.name": "sgd",
        "optim.steps": 20000,
        "optim.batch_size": 16,
        "optim.accumulate": "auto",
        "optim.lr": 0.009,
        "optim.warmup": 200,
        "validation.every": 1000,
        "run.precision": "bf16",
    },
}
