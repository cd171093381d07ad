"""The paper's tables and figures, each from one command, on any data set and backbone.

Without further settings a study runs on the built-in scenes. `--config FILE` takes the recipe of a
training run, and every setting of `hemnet train` is a flag here too. Each study writes JSON,
Markdown and pictures (PNG and SVG) into its folder.

examples:
  hemnet study ablation                              Table 1: iterations × step size, and EMANet
  hemnet study ablation --shard 1/2 --out a          half of it, on each of two machines …
  hemnet study ablation --merge b --out a            … and the table of both
  hemnet study iterations runs/studies/ablation      Table 2: iterations in evaluation
  hemnet study gradients                             Figure 3: what reaches x, and from where
  hemnet study attention runs/mine                   Figure 4: what the bases attend to
  hemnet study compare                               all heads under one budget
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemnet.errors import UserError

if TYPE_CHECKING:
    from hemnet.config import TrainConfig
    from hemnet.study.grid import Cell, Outcome

HELP = "the paper's tables and figures: ablation, iterations, gradients, attention, compare"
RECIPE = "recipe.yaml"
ALIASES = {"--backbone": "--model.backbone", "--weights": "--model.weights"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    studies = parser.add_subparsers(dest="study", metavar="STUDY", required=True)
    for name, (text, add) in _STUDIES.items():
        sub = studies.add_parser(name, help=text, description=text + ".")
        sub.add_argument(
            "--out",
            type=Path,
            metavar="DIR",
            default=Path("runs/studies") / name,
            help="folder of the study (%(default)s)",
        )
        add(sub)


def _trains(sub: argparse.ArgumentParser) -> None:
    """Arguments of a study that trains."""
    sub.add_argument("--config", type=Path, metavar="FILE", help="a recipe (default: the scenes')")
    sub.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="(default: 0 1 2)")
    sub.add_argument("--workers", type=int, help="runs at a time (default: one per core)")
    sub.add_argument("--backbone", help="short for --model.backbone")
    sub.add_argument("--weights", help="short for --model.weights")
    sub.epilog = "Every setting of `hemnet train` is a flag: --data.root DIR --optim.steps 1000 …"
    # The settings are jsonargparse's to read: whatever is not known here is kept for it.
    known = sub.parse_known_args

    def parse(*args: Any, **kwargs: Any) -> tuple[argparse.Namespace, list[str]]:
        namespace, namespace.settings = known(*args, **kwargs)
        return namespace, []

    sub.parse_known_args = parse  # type: ignore[assignment, method-assign]


def _ablation_arguments(sub: argparse.ArgumentParser) -> None:
    _grid_axes(sub, "1 2 3 4 6 8 12 16")
    _trains(sub)
    sub.add_argument("--shard", metavar="I/N", help="only every N-th run, from the I-th")
    sub.add_argument(
        "--merge", type=Path, nargs="+", default=[], metavar="DIR", help="grids of other shards"
    )
    sub.add_argument(
        "--baselines",
        nargs="*",
        default=["emanet", "fcn"],
        choices=["emanet", "fcn"],
        help="beside HEMNet (default: emanet fcn)",
    )


def _grid_axes(sub: argparse.ArgumentParser, iterations: str) -> None:
    sub.add_argument(
        "--iterations",
        type=int,
        nargs="+",
        default=[int(t) for t in iterations.split()],
        help=f"T (default: {iterations})",
    )
    sub.add_argument(
        "--step-sizes",
        type=float,
        nargs="+",
        default=[0.1, 0.2, 0.4, 0.8],
        help="η (default: 0.1 0.2 0.4 0.8)",
    )


def run(args: argparse.Namespace) -> None:
    for name, values in (("--iterations", getattr(args, "iterations", None) or [1]),):
        if min(values) < 1:
            raise UserError(f"{name}: expected whole numbers from 1; got {min(values)}")
    sizes = getattr(args, "step_sizes", None) or [1.0]
    if not all(0 < eta <= 1 for eta in sizes):
        raise UserError(f"--step-sizes: expected numbers above 0, at most 1; got {sizes}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}") from None
    globals()[f"_{args.study}"](args)


def _recipe(args: argparse.Namespace) -> TrainConfig:
    """The study's recipe; a folder that has one keeps it."""
    from hemnet.settings import differences, dump_config, read_config
    from hemnet.study.recipe import study_config

    flags = list(args.settings)
    for short, long in ALIASES.items():
        value = getattr(args, short[2:])
        flags += [] if value is None else [long, value]
    kept = args.out / RECIPE
    path = args.config or (kept if kept.exists() else None)
    config = study_config(path, flags)
    if kept.exists():
        changed = differences(read_config(kept), config)
        if changed:
            raise UserError(
                f"{args.out} was begun with another recipe:\n  " + "\n  ".join(changed) + "\n"
                "Leave these settings out to go on with it, or choose another --out"
            )
    kept.write_text(dump_config(config), encoding="utf-8")
    return config


def _train_cells(args: argparse.Namespace, cells: Sequence[Cell], **options: Any) -> Outcome:
    from hemnet.study.grid import run_grid

    if args.workers is not None and args.workers < 1:
        raise UserError(f"--workers {args.workers}: expected at least 1")
    outcome = run_grid(cells, args.out, workers=args.workers, **options)
    if outcome.stopped_by is not None:
        print(f"stopped. Go on with: hemnet study {args.study} --out {args.out}")
        raise SystemExit(128 + outcome.stopped_by)
    return outcome


def _ablation(args: argparse.Namespace) -> None:
    from hemnet.study import ablation, ablation_picture, tables
    from hemnet.study.grid import collect

    config = _recipe(args)
    cells = ablation.ablation_cells(
        config, args.iterations, args.step_sizes, args.seeds, args.baselines
    )
    outcome = _train_cells(args, cells, shard=args.shard)
    results = collect(cells, [args.out, *args.merge])
    summary = ablation.summarise(cells, results)
    printed = ablation.paper_summary()
    context = None
    if any(result.get("context_miou") is not None for result in results.values()):
        context = ablation.summarise(cells, results, "context_miou")
    if not summary["runs_done"]:
        raise UserError(f"none of the {len(cells)} runs in {args.out} is done")
    _write_json(args.out / "ablation.json", {
        "miou": summary, "context_miou": context, "paper": printed, "runs": list(results.values()),
    })  # fmt: skip
    text = tables.ablation_document(summary, context, tables.grid_table(printed))
    (args.out / "ablation.md").write_text(text, encoding="utf-8")
    title = f"{config.data.name}, {config.model.backbone}"
    ablation_picture.draw_heat(summary, printed, f"mIoU: {title}", args.out / "ablation")
    ablation_picture.draw_lines(summary, "validation mIoU (%)", args.out / "ablation_lines")
    if context is not None:
        ablation_picture.draw_lines(
            context, "mIoU of context classes (%)", args.out / "ablation_context"
        )
    print(text)
    _report(args.out, outcome)


def _report(out: Path, outcome: Outcome) -> None:
    print(f"wrote JSON, Markdown and pictures to {out}")
    if outcome.failed:
        names = ", ".join(outcome.failed)
        raise SystemExit(f"hemnet: {len(outcome.failed)} runs failed: {names}")


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


_STUDIES = {
    "ablation": ("Table 1: mIoU over iterations and step size in training", _ablation_arguments),
}
