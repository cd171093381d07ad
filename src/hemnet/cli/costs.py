"""Parameters, multiply-adds, FLOPs and memory of a model, without running it.

Nothing is allocated: a ResNet-152 at 4096×4096 is measured in seconds on any machine.

examples:
  hemnet costs --model hemnet
  hemnet costs --model hemnet emanet deeplabv3plus --backbone resnet50 --size 1024x2048
  hemnet costs --model hemnet nonlocal --option decoder=128
  hemnet costs --paper --json table3.json        our figures beside the paper's Table 3
"""

from __future__ import annotations

import argparse
import inspect
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemnet.errors import UserError
from hemnet.files import check_output, write_json

if TYPE_CHECKING:
    from rich.table import Table

HELP = "parameters, FLOPs and memory of a model; the paper's Table 3"

_NOTE = """\
✓ agrees with the paper: parameters as printed, the rest within 1% (first row 0.1%).
≠ differs: no counting rule that was tried gives the printed figure; ours follows the layers.
Rows after the first are increments. The paper's count, at 512×512: FLOPs are 2 × (convolution
multiply-adds + 2 × batch-norm elements + ReLU elements) + matrix-product multiply-adds; memory
is parameters, input, and every module's output twice."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", nargs="+", metavar="NAME", help="models (default: hemnet)")
    parser.add_argument("--backbone", default="resnet101s", help="any suitable timm name")
    parser.add_argument("--output-stride", type=int, default=8, help="8, 16 or 32 (default 8)")
    parser.add_argument("--channels", type=int, help="width of the head")
    parser.add_argument(
        "--option",
        nargs="+",
        metavar="NAME=VALUE",
        help="of the head, such as decoder=128 or bases=16",
    )
    parser.add_argument("--num-classes", type=int, default=21, help="default 21")
    parser.add_argument("--size", default="513x513", help="HEIGHTxWIDTH (default 513x513)")
    parser.add_argument("--batch", type=int, default=1, help="images at once (default 1)")
    parser.add_argument("--paper", action="store_true", help="the paper's Table 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table here too")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    if args.paper and (args.model or args.option):
        raise UserError("--paper has its own models: leave out --model and --option")
    check_output(args.json)
    console = Console()
    if not console.is_terminal:
        console.width = 100  # a file has no width of its own
    with console.status("measuring"):  # shows only on a terminal
        result, table = _paper() if args.paper else _models(args)
    console.print(table)
    if args.paper:
        console.print(_NOTE, highlight=False, soft_wrap=True)
    if args.json:
        write_json(args.json, result)


def _models(args: argparse.Namespace) -> tuple[dict[str, Any], Table]:
    from rich.table import Table

    from hemnet.models.costs import MI, count, on_meta, peak_bytes
    from hemnet.models.registry import create_model

    size = _size(args.size)
    if args.batch < 1:
        raise UserError(f"--batch must be at least 1, not {args.batch}")
    options = dict(_option(text) for text in args.option or ())
    chosen = "".join(f", {name}={value}" for name, value in options.items())
    table = Table(
        title=f"{args.backbone}, stride {args.output_stride}{chosen}, "
        f"{args.batch}×3×{size[0]}×{size[1]}, {args.num_classes} classes, float32"
    )
    for column in ("model", "params (M)", "multiply-adds (G)", "FLOPs (G)"):
        table.add_column(column, justify="left" if column == "model" else "right")
    table.add_column("activations (MiB)\ninference", justify="right")
    table.add_column("\ntraining", justify="right")
    result = {}
    for name in args.model or ["hemnet"]:
        make = partial(
            create_model,
            name,
            args.num_classes,
            args.backbone,
            args.output_stride,
            args.channels,
            **options,
        )
        model = on_meta(make)
        costs = count(model, size, args.batch)
        inference = peak_bytes(model, size, args.batch)
        training = peak_bytes(model, size, args.batch, training=True)
        result[name] = {
            "params": costs.params,
            "multiply_adds": costs.multiply_adds,
            "flops": costs.flops,
            "inference_activation_bytes": inference,
            "training_activation_bytes": training,
        }
        table.add_row(
            name,
            f"{costs.params / 1e6:.2f}",
            f"{costs.multiply_adds / 1e9:.1f}",
            f"{costs.flops / 1e9:.1f}",
            f"{inference / MI:,.0f}",
            f"{training / MI:,.0f}",
        )
    return result, table


def _paper() -> tuple[dict[str, Any], Table]:
    from rich.table import Table

    from hemnet.models.costs import paper_table

    table = Table(title="Table 3 of the paper: ResNet-101, stride 8, 21 classes")
    table.add_column("row")
    columns = (
        ("params", "params_mi", "params (2^20)", "{:.3f}"),
        ("gflops", "gflops", "FLOPs (G)", "{:.2f}"),
        ("memory", "memory_mib", "memory (MiB)", "{:.0f}"),
    )
    for _, _, title, _ in columns:
        table.add_column(title, justify="right")
        table.add_column("paper", justify="right")
    result = paper_table()
    for row in result.values():
        cells = []
        for name, key, _, form in columns:
            mark = "[green]✓[/]" if row[f"{name}_agree"] else "[yellow]≠[/]"
            cells += [form.format(row[key]), f"{row[f'paper_{name}_printed']} {mark}"]
        table.add_row(row["title"], *cells)
    return result, table


def _option(text: str) -> tuple[str, Any]:
    """`name=value`, the value as a configuration file has it."""
    import yaml

    from hemnet.models.registry import create_model

    name, given, value = text.partition("=")
    reserved = set(inspect.signature(create_model).parameters) - {"options"}
    try:
        if not given or not name.isidentifier() or name in reserved:
            raise ValueError
        return name, yaml.safe_load(value)
    except (ValueError, yaml.YAMLError):
        raise UserError(
            f"--option is NAME=VALUE of the head, such as decoder=128, not {text!r}"
        ) from None


def _size(text: str) -> tuple[int, int]:
    try:
        sides = [int(part) for part in text.lower().replace("×", "x").split("x")]
        height, width = sides * 2 if len(sides) == 1 else sides
    except ValueError:
        expected = "HEIGHTxWIDTH such as 513x513, or one side of a square"
        raise UserError(f"--size is {expected}, not {text!r}") from None
    if height < 1 or width < 1:
        raise UserError(f"--size must be at least 1x1, not {text}")
    return height, width
