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
    """The studies' recipe, which learns the context in minutes on a CPU, on larger scenes."""
    from hemnet.study.recipe import scenes_config
    from hemnet.training.config import RunConfig

    config = scenes_config(steps, SIZE)
    config.model.backbone, config.model.options["bases"] = "test_resnet", 32
    config.data.val_length, config.data.workers = 100, 2
    config.optim.warmup = min(50, steps // 4)
    config.validation.every, config.validation.batch_size = max(1, steps // 8), 10
    config.run = RunConfig(seed=seed, log_every=10, health_every=50, checkpoint_every=200)
    return config


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
