"""Predict images: a class map, an overlay and a line of JSON for each.

INPUT is any number of image files, folders (with all below), patterns in quotes, and - for a list
of files on standard input. JPEG, PNG, WebP, TIFF and more; 16 bits, grey, CMYK, palettes, alpha
and rotation marks are taken care of; of a file with several pictures the first is used. MODEL is
a run folder, a folder that save_pretrained wrote, a file that `hemnet export` wrote, the name of a
model that comes with hemnet (camvid: streets, 11 classes), or a hub id.

In DIR: classes/NAME.png (palette PNG of the image's size, ids as in the model), overlays/NAME.jpg
and predictions.jsonl with size, time and the classes' shares. Inputs of the same name keep what
tells them apart.

A file that cannot be read is reported and left out, and everything else is written. The exit code
is 0 if every image was predicted, 1 if one was not or the disk is full, 2 after a mistake in the
command.

examples:
  hemnet predict camvid street.jpg --out found
  hemnet predict runs/mine photo.jpg --out found
  hemnet predict runs/camvid photos 'more/**/*.tif' --out found --scales 0.75 1 1.25 --flip
  find . -name '*.jpg' | hemnet predict user/model - --out found --no-overlays
  hemnet predict runs/fields mosaic.tif --out found --global-bases       12,000×12,000 and more
  sed 's|.*|VOC2012/JPEGImages/&.jpg|' VOC2012/ImageSets/Segmentation/test.txt |
      hemnet predict runs/voc - --out found --voc-server comp6           makes found/results.tgz
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hemnet.cli.flag_names import with_flags
from hemnet.cli.shared_flags import add_options, chosen_device, given_options
from hemnet.errors import UserError
from hemnet.inference.options import PredictOptions

if TYPE_CHECKING:
    from hemnet.inference.exported_model import ExportedModel
    from hemnet.inference.input_files import Source
    from hemnet.models.segmenter import Segmenter

HELP = "class maps and overlays for images, folders, lists"
VOC_TEST = 1456  # images of its test set


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="run or model, see above")
    parser.add_argument("inputs", metavar="INPUT", nargs="+", help="files, folders, patterns, or -")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where results go")
    parser.add_argument("--no-overlays", action="store_true", help="only class maps and JSON")
    parser.add_argument(
        "--voc-server",
        choices=("comp5", "comp6"),
        help="also write DIR/results.tgz, the archive that PASCAL VOC's evaluation server takes "
        "(results/VOC2012/Segmentation/comp6_test_cls/ID.png). comp5: trained on VOC's own "
        "images only; comp6: on others too",
    )
    add_options(parser, PredictOptions)


def run(args: argparse.Namespace) -> None:
    options = PredictOptions(**given_options(args, PredictOptions))
    from hemnet.api import predict_files
    from hemnet.inference.input_files import find_images
    from hemnet.inference.open_model import open_model
    from hemnet.inference.prediction_files import save_voc_archive
    from hemnet.inference.predictor import CLASSES, LINES

    listed = _standard_input() if "-" in args.inputs else ()
    sources = find_images([i for i in args.inputs if i != "-"], listed, leave_out=args.out)
    model = open_model(args.model, args.trust)
    if args.voc_server:
        _check_voc(model, sources)
    device, alone = chosen_device(args.device)
    if not alone:
        raise UserError("`hemnet predict` is one process: start it without torchrun.")
    try:
        lines = predict_files(
            model, sources, args.out, options,
            overlays=not args.no_overlays,
            upright=not args.voc_server,  # its labels know of no rotation
            workers=args.workers,
            device=device,
            tell=lambda text: print(with_flags(text), file=sys.stderr),
        )  # fmt: skip
        failed = sum("error" in line for line in lines)
        if args.voc_server and not failed:
            maps = {s.path.stem: args.out / CLASSES / f"{s.name}.png" for s in sources}
            save_voc_archive(maps, args.voc_server, args.out / "results.tgz")
    except OSError as error:  # of writing: what cannot be read has become its file's error
        print(f"hemnet: cannot write to {args.out}: {error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    print(f"{len(sources) - failed} of {len(sources)} images predicted: {args.out / LINES}")
    if args.voc_server and not failed:
        print(f"wrote {args.out / 'results.tgz'}")
        if len(sources) != VOC_TEST:
            print(f"note: the server expects {VOC_TEST} images, the archive has {len(sources)}")
    if failed:
        archive = ", and there is no archive for the VOC server" if args.voc_server else ""
        print(f"hemnet: {failed} images could not be predicted{archive}", file=sys.stderr)
        sys.exit(1)


def _standard_input() -> TextIO:
    if isinstance(sys.stdin, io.TextIOWrapper):  # names of files need not be text
        sys.stdin.reconfigure(encoding=sys.getfilesystemencoding(), errors="surrogateescape")
    return sys.stdin


def _check_voc(model: Segmenter | ExportedModel, sources: Sequence[Source]) -> None:
    from hemnet.data.datasets.voc import CLASSES as VOC

    names = model.config.classes
    if model.config.num_classes != len(VOC) or (names is not None and names != VOC):
        raise UserError("--voc-server: the classes of this model are not PASCAL VOC's.")
    ids = [source.path.stem for source in sources]
    twice = next((name for name in ids if ids.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--voc-server: two images are called {twice}.")
