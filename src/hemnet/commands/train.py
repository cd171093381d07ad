"""Train a segmentation model; every setting of the configuration is also a flag.

The run folder gets the complete configuration, checkpoints, metrics.jsonl, TensorBoard events and
the trained model. A run that was stopped or killed goes on with --resume and ends with the same
weights as one that was not. Ctrl-C and SIGTERM save before they stop.

examples:
  hemnet train --config configs/scenes.yaml --out runs/scenes
  hemnet train --config configs/camvid_resnet50.yaml --data.root CamVid --out runs/camvid
  hemnet train --config configs/folder.yaml --data.root DATA --optim.rate 0.01 --out runs/mine
  hemnet train --resume --out runs/mine
  torchrun --nproc-per-node 4 -m hemnet train --config configs/voc_resnet101.yaml --out runs/voc
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hemnet.errors import UserError
from hemnet.settings import help_text

HELP = "train a model on a data set, or resume a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "hemnet train --config FILE --out RUN [--resume] [--section.name VALUE ...]"
    parser.add_argument("--config", type=Path, metavar="FILE", help="a YAML file, see configs/")
    parser.add_argument("--out", type=Path, metavar="RUN", required=True, help="the run folder")
    parser.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    parser.add_argument(
        "--allow-changes", action="store_true", help="resume with another configuration"
    )
    parser.epilog = help_text()
    # The settings are jsonargparse's to read: whatever is not known here is kept for it.
    known = parser.parse_known_args

    def parse(*args: Any, **kwargs: Any) -> tuple[argparse.Namespace, list[str]]:
        namespace, namespace.settings = known(*args, **kwargs)
        return namespace, []

    parser.parse_known_args = parse  # type: ignore[assignment, method-assign]


def run(args: argparse.Namespace) -> None:
    from hemnet.engine.folder import CONFIG
    from hemnet.settings import read_config

    path, saved = args.config, args.out / CONFIG
    if args.allow_changes and not args.resume:
        raise UserError("--allow-changes belongs to --resume")
    if path is None and args.resume:
        if not saved.exists():
            raise UserError(f"{args.out} holds no run to resume: it has no {CONFIG}")
        path = saved
    if path is None:
        raise UserError("give a configuration with --config, such as configs/scenes.yaml")
    config = read_config(path, args.settings)

    from hemnet.engine.train import train

    result = train(config, args.out, args.resume, allow_changes=args.allow_changes)
    if result.stopped_by is not None:
        print(f"stopped at step {result.step}. Go on with: hemnet train --resume --out {args.out}")
        raise SystemExit(128 + result.stopped_by)
    summary = f"trained {result.step} steps"
    if result.best_miou is not None:
        summary += (
            f", mIoU {result.miou:.2f}, best mIoU {result.best_miou:.2f} at step {result.best_step}"
        )
    if result.main:
        from hemnet.report import write_report

        print(f"{summary}. The model is in {args.out / 'model'}")
        print(f"report: {write_report(args.out)}")
