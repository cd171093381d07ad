"""Evaluate a model: mIoU, IoU per class and pixel accuracy, from one confusion matrix.

MODEL is a run folder, a folder that save_pretrained wrote, a file that `hemnet export` wrote, the
name of a model that comes with hemnet (camvid), or a hub id. A run folder remembers its data set,
so that `hemnet evaluate RUN` is enough.

examples:
  hemnet evaluate runs/camvid
  hemnet evaluate runs/voc --data.name voc --data.root VOCdevkit --split val
  hemnet evaluate runs/voc --scales 0.5 0.75 1 1.25 1.5 1.75 --flip --json voc.json
  hemnet evaluate user/model --data.name cityscapes --data.root data --window 768 --overlap 0.5
  hemnet evaluate runs/voc --iterations 6 --out pictures
  hemnet evaluate runs/voc --report                            a page to look at, in runs/voc
  torchrun --nproc-per-node 4 -m hemnet evaluate runs/voc      each GPU a part of the images
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemnet.cli.shared_flags import (
    DATA,
    add_data,
    add_options,
    chosen_device,
    given_data,
    given_options,
)
from hemnet.errors import UserError
from hemnet.files import check_output, write_json
from hemnet.inference.options import InferenceOptions

if TYPE_CHECKING:
    from hemnet.cli.parser import Parser
    from hemnet.data.dataset import SegmentationDataset
    from hemnet.inference.exported_model import ExportedModel
    from hemnet.inference.metrics import Evaluation
    from hemnet.models.segmenter import Segmenter

HELP = "mIoU and per-class IoU of a model on a data set"
SHOWN = 6  # best and worst images that are drawn


def add_arguments(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="run or model, see above")
    data = parser.add_argument_group("data", "where MODEL is a run folder: the run's own if left")
    part = "which part (default: the run's validation part, or val)"
    add_data(data, ("name", *DATA), split=part)
    parser.old_flags = {"--data.partial": "--data.skip_missing"}
    add_options(parser, InferenceOptions)
    result = parser.add_argument_group("results")
    result.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    result.add_argument(
        "--out", type=Path, metavar="DIR", help="write confusion.png, best.png and worst.png"
    )
    result.add_argument(
        "--report", action="store_true", help="write report.html into the run folder MODEL"
    )


def run(args: argparse.Namespace) -> None:
    options = InferenceOptions(**given_options(args, InferenceOptions))
    check_output(args.json)
    from hemnet.api import dataset_for, evaluate
    from hemnet.inference.evaluate import guessed
    from hemnet.inference.open_model import open_model
    from hemnet.run_folder import RunFolder

    model = open_model(args.model, args.trust)
    if args.report and not RunFolder(args.model).model.is_dir():
        raise UserError(f"--report is for run folders, and {args.model} is none.")
    dataset = dataset_for(args.model, model, given_data(args))
    if args.out is not None:
        try:
            args.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {args.out}: {error.strerror}") from None
    device, first = chosen_device(args.device)
    result = evaluate(
        model, dataset, options,
        workers=args.workers, device=device, progress=f"evaluating {dataset.info.name}",
    )  # fmt: skip
    if not first:
        return
    baseline = guessed(dataset)
    _print(result, dataset, baseline)
    if args.json is not None:
        write_json(args.json, _content(args, dataset, options, result, baseline))
        print(f"wrote {args.json}")
    if args.out is not None:
        _draw(model, dataset, result, args.out)
    if args.report:
        from hemnet.report import write_report

        print(f"wrote {write_report(args.model, dataset, result, device=device)}")


def _print(result: Evaluation, dataset: SegmentationDataset, baseline: Evaluation | None) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    labelled = result.confusion.sum(1)
    table = Table("class", box=None, pad_edge=False)
    table.add_column("IoU", justify="right")
    table.add_column("share of pixels", justify="right")
    for (name, value), count in zip(result.iou.items(), labelled.tolist(), strict=True):
        share = f"{count / int(labelled.sum()):.2%}"
        table.add_row(escape(name), "–" if value is None else f"{value:.2f}", share)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"[bold]mIoU {result.miou:.2f}[/]   pixel accuracy {result.pixel_accuracy:.2f}   "
        f"{len(result.images)} images of {escape(f'{dataset.info.name} {dataset.split}')}",
        soft_wrap=True,
    )
    if baseline is not None:
        console.print(
            f"mIoU {baseline.miou:.2f}   pixel accuracy {baseline.pixel_accuracy:.2f}   from "
            f"{dataset.info.baseline}",
            soft_wrap=True,
        )


def _content(
    args: argparse.Namespace,
    dataset: SegmentationDataset,
    options: InferenceOptions,
    result: Evaluation,
    baseline: Evaluation | None,
) -> dict[str, Any]:
    from dataclasses import asdict

    content = result.to_json()
    if baseline is not None:
        figures = {"miou": baseline.miou, "pixel_accuracy": baseline.pixel_accuracy}
        content["baseline"] = {"of": dataset.info.baseline, **figures}
    return content | {
        "model": args.model,
        "data": {"name": dataset.info.name, "split": dataset.split, "images": len(result.images)},
        "options": asdict(options),
    }


def _draw(
    model: Segmenter | ExportedModel,
    dataset: SegmentationDataset,
    result: Evaluation,
    out: Path,
) -> None:
    from hemnet.inspection.examples import draw_confusion, draw_examples, examples

    draw_confusion(result.confusion, result.classes, out / "confusion.png")
    ranked = result.ranked()
    for name, chosen in (("worst", ranked[:SHOWN]), ("best", ranked[::-1][:SHOWN])):
        found = examples(model, dataset, [image.id for image in chosen], result.options)
        captions = [f"{image.id}   mIoU {image.miou:.1f}" for image in chosen]
        draw_examples(found, captions, dataset.info, out / f"{name}.png")
    print(f"wrote {out / 'confusion.png'}, {out / 'best.png'} and {out / 'worst.png'}")
