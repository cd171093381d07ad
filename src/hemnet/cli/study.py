"""The paper's tables and figures, each from one command, on any data set and backbone.

Without further settings a study runs on the built-in scenes. `--config FILE` takes the recipe of a
training run, and every setting of `hemnet train` is a flag here too. Each study writes JSON,
Markdown and pictures (PNG and SVG) into its folder, and goes on where it stopped.

examples:
  hemnet study ablation                              Table 1: iterations × step size, and EMANet
  hemnet study ablation --shard 1/2 --out a          half of it, on each of two machines …
  hemnet study ablation --merge b --out a            … and the table of both
  hemnet study iterations runs/studies/ablation      Table 2: iterations in evaluation
  hemnet study gradients                             Figure 3: what reaches x, and from where
  hemnet study attention runs/mine                   Figure 4: what the bases attend to
  hemnet study compare                               all heads under one budget
  hemnet study ablation --config configs/camvid_frozen.yaml --data.root CamVid \\
      --iterations 2 3 6 --step-sizes 0.2 0.5 1 --baselines emanet plain --out runs/camvid
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hemnet.errors import UserError
from hemnet.limits import MAX_ITERATIONS

if TYPE_CHECKING:
    from hemnet.cli.parser import Parser

HELP = "the paper's tables and figures: ablation, iterations, gradients, attention, compare"
STEP_SIZES = [0.1, 0.2, 0.4, 0.8]


def add_arguments(parser: Parser) -> None:
    studies = parser.add_subparsers(dest="study", metavar="STUDY", required=True)
    for name, (text, add) in STUDIES.items():
        sub = studies.add_parser(name, help=text, description=text + ".", allow_abbrev=False)
        default = Path("runs/studies") / name
        sub.add_argument(
            "--out", type=Path, metavar="DIR", default=default, help="its folder (%(default)s)"
        )
        add(sub)
        sub.epilog = "Settings of `hemnet train` are flags too: --data.root DIR --optim.steps 1000"
        sub.takes_settings = True


def _trains(sub: argparse.ArgumentParser, seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Arguments of a study that trains."""
    shown = " ".join(map(str, seeds))
    sub.add_argument("--config", type=Path, metavar="FILE", help="a recipe (default: the scenes')")
    sub.add_argument(
        "--seeds", type=int, nargs="+", default=list(seeds), help=f"(default: {shown})"
    )
    sub.add_argument("--workers", type=int, help="runs at a time (default: one per core)")
    sub.add_argument("--backbone", help="short for --model.backbone")
    sub.add_argument("--weights", help="short for --model.weights")


def _numbers(
    sub: argparse.ArgumentParser, flag: str, kind: type, default: Sequence[float], meaning: str
) -> None:
    shown = " ".join(f"{value:g}" for value in default)
    text = f"{meaning} (default: {shown})"
    sub.add_argument(flag, type=kind, nargs="+", default=list(default), help=text)


def _ablation_arguments(sub: argparse.ArgumentParser) -> None:
    _numbers(sub, "--iterations", int, (1, 2, 3, 4, 6, 8, 12, 16), "T in training")
    _numbers(sub, "--step-sizes", float, STEP_SIZES, "η")
    _trains(sub)
    sub.add_argument(
        "--summary", action="store_true", help="no training: the table of what is done so far"
    )
    sub.add_argument("--shard", metavar="I/N", help="only every N-th run, from the I-th")
    sub.add_argument(
        "--merge", type=Path, nargs="+", default=[], metavar="DIR", help="grids of other shards"
    )
    sub.add_argument(
        "--baselines",
        nargs="*",
        default=["emanet", "fcn"],
        choices=["emanet", "fcn", "plain"],
        help="beside HEMNet (default: emanet fcn); plain is its head without the unit",
    )


def _iterations_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "models",
        type=Path,
        nargs="+",
        metavar="GRID|MODEL",
        help="folders of an ablation (the best of each column), or trained models",
    )
    _numbers(sub, "--iterations", int, (1, 2, 3, 4, 6, 8, 12, 16), "T in evaluation")


def _gradients_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", type=Path, nargs="?", metavar="MODEL", help="measure it as it is")
    sub.add_argument("--iterations", type=int, default=8, help="T (%(default)s)")
    _numbers(sub, "--step-sizes", float, [*STEP_SIZES, 1.0], "η")
    sub.add_argument("--every", type=int, help="steps between measurements (a tenth of all)")
    sub.add_argument("--samples", type=int, default=96, help="fixed samples (%(default)s)")
    _trains(sub, seeds=(0,))


def _attention_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", type=Path, metavar="MODEL", help="run folder, saved model or hub id")
    sub.add_argument("--image", type=Path, help="a picture of your own, without a label")
    sub.add_argument("--index", type=int, default=0, help="which of the data set (%(default)s)")
    sub.add_argument("--bases", type=int, nargs="+", help="numbers from 1 (default: most distinct)")
    sub.add_argument("--count", type=int, default=4, help="most distinct bases (%(default)s)")
    sub.add_argument("--iterations", type=int, help="T (default: the model's own)")
    sub.add_argument("--limit", type=int, help="images for the classes of bases (default: all)")


def _compare_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--heads", nargs="+", help="(default: all)")
    _trains(sub)


def run(args: argparse.Namespace) -> None:
    if importlib.util.find_spec("scipy") is None:  # before hours of training
        raise UserError(
            "`hemnet study` needs scipy: install the extra packages with "
            "pip install 'hemnet-torch[study]'."
        )
    from hemnet.cli import study_runners

    if not all(0 < eta <= 1 for eta in getattr(args, "step_sizes", ())):
        raise UserError(f"--step-sizes: expected above 0, at most 1; got {args.step_sizes}")
    given = getattr(args, "iterations", None)
    wanted = given if isinstance(given, list | tuple) else [given or 1]
    if not all(1 <= number <= MAX_ITERATIONS for number in wanted):
        raise UserError(f"--iterations: expected whole numbers, 1 to {MAX_ITERATIONS}; got {given}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}") from None
    getattr(study_runners, args.study)(args)


STUDIES = {
    "ablation": ("Table 1: mIoU over iterations and step size in training", _ablation_arguments),
    "iterations": ("Table 2: mIoU over the iterations in evaluation", _iterations_arguments),
    "gradients": ("Figure 3: the bound and the gradients, by iteration", _gradients_arguments),
    "attention": ("Figure 4: what the bases attend to", _attention_arguments),
    "compare": ("All heads under one budget, beside Table 3", _compare_arguments),
}
