"""Train a segmentation model; every setting of the configuration is also a flag.

The run folder gets the complete configuration, checkpoints, metrics.jsonl, TensorBoard events and
the trained model. A run that was stopped or killed goes on with --resume and ends with the same
weights as one that was not. Ctrl-C and SIGTERM save before they stop.

examples:
  hemnet train --config configs/scenes.yaml --out runs/scenes
  hemnet train --config configs/camvid_resnet50.yaml --data.root CamVid --out runs/camvid
  hemnet train --config configs/folder.yaml --data.root DATA --optim.lr 0.01 --out runs/mine
  hemnet train --preset cpu --data.root DATA --out runs/mine --until-plateau
  hemnet train --preset gpu --data.root DATA --dry-run          cost, memory and time first
  hemnet train --resume --out runs/mine
  torchrun --nproc-per-node 4 -m hemnet train --config configs/voc_resnet101.yaml --out runs/voc
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hemnet.errors import UserError
from hemnet.run_folder import RunFolder
from hemnet.training.config_parser import help_text
from hemnet.training.presets import PRESETS

if TYPE_CHECKING:
    from hemnet.cli.parser import Parser
    from hemnet.training.config import TrainConfig

HELP = "train a model on a data set, or resume a run"


def add_arguments(parser: Parser) -> None:
    parser.usage = (
        "hemnet train (--config FILE | --preset cpu|gpu) --out RUN [--resume] [--dry-run] "
        "[--section.name VALUE ...]"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a YAML file, see configs/")
    parser.add_argument("--out", type=Path, metavar="RUN", help="the run folder")
    parser.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    parser.add_argument(
        "--allow-changes", action="store_true", help="resume with another configuration"
    )
    parser.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        help="settings to begin with: cpu for hundreds of images and some cores, gpu for thousands "
        "and a GPU; --config and flags go before them",
    )
    parser.add_argument(
        "--until-plateau",
        action="store_true",
        help="until mIoU no longer rises, at most optim.steps: optim.plateau_patience 5",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="build everything, train some steps, say cost, memory and time; write nothing",
    )
    parser.add_argument(
        "--find-lr",
        action="store_true",
        help="try rising learning rates on this data and propose one; write nothing",
    )
    parser.epilog = f"{help_text()}\n\nmodels: {{models}}\ndata sets: {{datasets}}"
    parser.takes_settings = True
    parser.old_flags = {"--find-rate": "--find-lr"}


def run(args: argparse.Namespace) -> None:
    config = _config(args)
    if args.dry_run or args.find_lr:
        if args.resume:
            raise UserError("--resume goes on with a run, and a trial leaves none")
        _trial(args, config)
        return

    from hemnet.api import train

    result = train(config, args.out, resume=args.resume, allow_changes=args.allow_changes)
    folder = RunFolder(args.out)
    if result.stopped_by is not None:
        print(f"stopped at step {result.step}. Go on with: hemnet train --resume --out {args.out}")
        raise SystemExit(128 + result.stopped_by)
    summary = f"trained {result.step} steps"
    if result.best_miou is not None:
        summary += (
            f", mIoU {result.miou:.2f}, best mIoU {result.best_miou:.2f} at step {result.best_step}"
        )
    if result.main:
        print(f"{summary}. The model is in {folder.model}")
        print(f"report: {folder.report}")


def _config(args: argparse.Namespace) -> TrainConfig:
    from hemnet.training.config_parser import read_config
    from hemnet.training.resume import base_config

    trial = args.dry_run or args.find_lr
    source = base_config(
        args.config, args.out or (Path() if trial else None),
        preset=args.preset, resume=args.resume, allow_changes=args.allow_changes,
    )  # fmt: skip
    changes = {"optim.plateau_patience": 5} if args.until_plateau else {}
    return read_config(source, args.settings, overrides=changes, preset=args.preset)


def _trial(args: argparse.Namespace, config: TrainConfig) -> None:
    from hemnet.training.trial import dry_run, find_lr

    if args.dry_run:
        for line in dry_run(config):
            print(line)
    if args.find_lr:
        found = find_lr(config)
        print(
            f"proposed: --optim.lr {found.best:g} (for {config.optim.name}, batches of "
            f"{config.optim.batch_size})"
        )
