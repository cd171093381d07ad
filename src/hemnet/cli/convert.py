"""Convert published weights of other projects to a model of ours, layer by layer.

--from emanet takes EMANet's own checkpoints. --from mmseg takes mmsegmentation's EMANet, PSPNet,
DANet, non-local and FCN networks on its ResNets. Every tensor must find its place: a name left
over or missing is an error that lists it. Nothing in the file is executed, and whatever it holds
besides tensors and the text of its configuration is ignored. OUT is a folder that every command
and `--model.init_from` takes.

examples:
  hemnet convert emanet101.pth --from emanet --classes voc --out models/emanet
  hemnet convert emanet_r50-d8_769x769.pth --from mmseg --out models/emanet_cityscapes
  hemnet convert weights.pth --from mmseg --config work_dirs/run/config.py --out models/mine
  hemnet evaluate models/emanet --data.name voc --data.root VOCdevkit
  hemnet train --config configs/voc_resnet101.yaml --model.init_from models/emanet --out runs/hemnet
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hemnet.errors import UserError

if TYPE_CHECKING:
    from hemnet.models.convert import Conversion

HELP = "make a model of published weights of EMANet or mmsegmentation"
SOURCES = ("emanet", "mmseg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the checkpoint")
    parser.add_argument("--from", dest="source", choices=SOURCES, required=True)
    parser.add_argument("--out", type=Path, metavar="MODEL", required=True, help="a new folder")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="NAME",
        help="leave tensors out: a name, or a pattern such as 'loss.*'; may be repeated",
    )  # fmt: skip
    facts = parser.add_argument_group("what a file may not say", "for mmseg, the file's own first")
    facts.add_argument("--config", type=Path, metavar="FILE", help="mmsegmentation's, complete")
    facts.add_argument("--classes", help="names: a data set of hemnet, a file, or a,b,c")
    facts.add_argument("--output-stride", type=int, choices=(8, 16, 32), help="(8)")
    facts.add_argument("--align-corners", choices=("true", "false"), help="of the up-sampling")
    facts.add_argument(
        "--multi-grid", nargs=3, type=int, metavar="N", help="of the last stage (emanet: 1 2 4)"
    )


def run(args: argparse.Namespace) -> None:
    from hemnet.models.convert import convert

    if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
        raise UserError(f"{args.out} exists already: give --out a new folder.")
    config = None
    if args.config is not None:
        try:
            config = args.config.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {args.config}: {error}") from None
    classes, palette = _classes(args.classes)
    found = convert(
        args.file,
        args.source,
        config=config,
        ignore=args.ignore,
        classes=classes,
        palette=palette,
        output_stride=args.output_stride,
        align_corners=None if args.align_corners is None else args.align_corners == "true",
        multi_grid=args.multi_grid,
    )
    found.model.save_pretrained(args.out)
    _print(found)
    print(f"wrote {args.out}")


def _classes(
    text: str | None,
) -> tuple[tuple[str, ...] | None, tuple[tuple[int, int, int], ...] | None]:
    """Names, and a data set's colours."""
    if text is None:
        return None, None
    from hemnet.data.catalog import dataset_info, list_datasets
    from hemnet.data.class_lists import find_classes

    info = dataset_info(text) if text in list_datasets() else None
    if info is not None and info.classes:
        return info.classes, info.palette
    names, colours, _ = find_classes(Path(), text)
    return names, colours or None


def _print(found: Conversion) -> None:
    config = found.model.config
    rows = {
        "network": f"{config.model} on {config.backbone}, output stride {config.output_stride}",
        "multi-grid": config.multi_grid or "none",
        "align_corners": str(config.align_corners).lower(),
        "head": ", ".join(f"{k} {v}" for k, v in config.options.items()),
        "classes": f"{config.num_classes}, {'named' if config.classes else 'without names'}",
        "images": f"RGB, mean {_short(config.mean)}, std {_short(config.std)}",
    }
    if found.dropped:
        rows["left out"] = ", ".join(found.dropped)
    for name, text in rows.items():
        print(f"{name:<14} {text}")


def _short(values: tuple[float, ...] | None) -> str:
    return " ".join(f"{v:.4g}" for v in values or ())
