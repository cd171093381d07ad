"""Fit highway EM to a photograph and draw what happens.

Writes to the output folder:
  iterations.png   what each basis attends to after every iteration, and the image rebuilt
  elbo.png         the likelihood bound over the iterations for several step sizes
  elbo.json        the same as numbers

example:
  hemnet demo --out runs/demo
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HELP = "fit highway EM to a photograph and draw each iteration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("runs/demo"), help="folder to write to (%(default)s)"
    )
    parser.add_argument("--bases", type=int, default=6, help="number of bases (%(default)s)")
    parser.add_argument(
        "--step-size", type=float, default=0.5, help="of the drawn iterations (%(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    import hemnet
    from hemnet.errors import UserError
    from hemnet.study import image as study

    if not 1 <= args.bases <= 32:
        raise UserError(f"--bases must lie between 1 and 32; got {args.bases}")
    if not 0 < args.step_size <= 1:
        raise UserError(f"--step-size must lie in (0, 1]; got {args.step_size}")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {args.out}: {error.strerror}") from error
    picture = study.sample_image()
    x = study.features_of(picture)
    bases = study.initial_bases(x, args.bases)
    steps = enumerate(hemnet.trace(x, bases, 8, args.step_size, study.VARIANCE, "rbf"), start=1)
    shown = {t: step for t, step in steps if t in (1, 2, 4, 8)}
    study.draw_iterations(picture, shown, args.out / "iterations.png")
    curves = study.bound_curves(x, bases, 12, study.STEP_SIZES)
    study.draw_bounds(curves, args.out / "elbo.png")
    text = json.dumps({str(eta): values for eta, values in curves.items()}, indent=1)
    (args.out / "elbo.json").write_text(text + "\n")

    console = Console()
    table = Table(title="ELBO per position: every iteration raises it")
    table.add_column("iteration", justify="right")
    for eta in curves:
        table.add_column(f"η = {eta:g}", justify="right")
    for t in (0, 1, 2, 3, 5, 7, 11):
        table.add_row(str(t + 1), *(f"{values[t]:.4f}" for values in curves.values()))
    console.print(table)
    for name in ("iterations.png", "elbo.png", "elbo.json"):
        console.print(f"wrote {args.out / name}", highlight=False, soft_wrap=True)
