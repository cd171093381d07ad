"""Train and evaluate HEMNet on the built-in scenes, and write a report to look at.

Takes about two minutes on two cores; nothing is downloaded. The classes of the scenes cannot all
be told from near pixels: whether a thing is lit depends on a lamp far away. The run folder is like
that of any training run; report.html in it shows how the network learned, what it sees, and what
its attention does.

examples:
  hemnet demo
  hemnet demo --out runs/mine
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hemnet.errors import UserError

if TYPE_CHECKING:
    from hemnet.training.config import TrainConfig

HELP = "train HEMNet on the built-in scenes and write a report"
SIZE = 96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="RUN",
        default=Path("runs/demo"),
        help="run folder (%(default)s)",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="of training (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order (%(default)s)")


STEPS = 800


def demo_config(steps: int = STEPS, seed: int = 0) -> TrainConfig:
    """A network small enough for a CPU, and a recipe that learns the context in minutes."""
    from hemnet.data.scenes import SCENES
    from hemnet.training.config import (
        DataConfig,
        LossConfig,
        NetworkConfig,
        OptimConfig,
        RunConfig,
        TrainConfig,
        ValidationConfig,
    )

    # Things cover a tenth of a scene, the rest is ground: without weights the network is slow to
    # care about them. The paper's start: from scratch there is nothing yet that it could drown.
    weights = [4.0 if k in SCENES.context_classes else 1.0 for k in range(len(SCENES.classes))]
    return TrainConfig(
        model=NetworkConfig(
            backbone="test_resnet",
            output_stride=8,
            channels=64,
            options={"bases": 32, "preset": "paper"},
        ),
        data=DataConfig(
            name="scenes",
            size=SIZE,
            length=16 * max(steps, 1),  # no scene twice
            val_length=100,
            crop=(SIZE, SIZE),
            scale=(1.0, 1.0),
        ),
        optim=OptimConfig(
            name="adamw",
            steps=steps,
            batch_size=16,
            lr=3e-3,
            warmup=min(50, steps // 4),
            bias_lr_mult=1.0,
        ),
        loss=LossConfig(class_weights=weights),
        validation=ValidationConfig(every=max(1, steps // 8), batch_size=10),
        run=RunConfig(seed=seed, log_every=10, health_every=50, checkpoint_every=200),
    )


def run(args: argparse.Namespace) -> None:
    if args.steps < 1:
        raise UserError(f"--steps {args.steps}: expected at least 1.")
    from hemnet.api import evaluate, train
    from hemnet.data import Scenes
    from hemnet.inference.metrics import subset_miou
    from hemnet.report import write_report
    from hemnet.run_folder import RunFolder

    # A demo that was interrupted goes on; one that is complete is shown again.
    again = RunFolder(args.out).holds_run
    result = train(demo_config(args.steps, args.seed), args.out, resume=again)
    if result.stopped_by is not None:
        print(f"stopped at step {result.step}. Go on with: hemnet demo --out {args.out}")
        raise SystemExit(128 + result.stopped_by)
    scenes = Scenes("val", size=SIZE, length=200)
    found = evaluate(result, scenes, batch_size=10)
    report = write_report(args.out, scenes, found)
    context = subset_miou(found, scenes.info.context_classes)
    print(f"mIoU {found.miou:.1f} on {len(scenes)} scenes it never saw.")
    print(f"mIoU {context:.1f} of the classes that depend on a lamp far away.")
    print(f"report: {report}")
    print("next, a photograph of a street: hemnet predict camvid PHOTO --out found")
