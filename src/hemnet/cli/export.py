"""Export a model for use without hemnet, or without PyTorch: ONNX, torch.export or OpenVINO.

The file takes images of any number, height and width: float32 B,3,H,W, RGB in 0–1 minus mean,
divided by std. It gives logits B,classes,H,W. Batch norms are folded in; class names, palette,
mean, std, iterations and step size are in the file's metadata. The file is compared with the
model on several sizes and batches, and is there only if they agree.

--precision fp16 and bf16 store the weights in half precision. int8 also computes in it: ranges are
taken on images of --calibrate, the EM iterations, softmax and the classifier stay in float32, and
the file is there only if it loses at most --tolerance points of mIoU on held-out images, or of
agreement with the model where there are no labels. int8 needs the extra packages of [nncf].

examples:
  hemnet export runs/camvid --out camvid.onnx
  hemnet export runs/camvid --out camvid.onnx --iterations 6 --json parity.json
  hemnet export runs/camvid --format torch --out camvid.pt2
  hemnet export runs/camvid --format openvino --out camvid.xml       with camvid.bin beside it
  hemnet export runs/camvid --precision int8 --calibrate camvid --format openvino --out fast.xml
  hemnet export runs/mine --precision int8 --calibrate photos --tolerance 1 --out mine.onnx
  hemnet predict camvid.onnx photos --out found                      and `hemnet evaluate`
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hemnet.errors import UserError
from hemnet.files import check_output, write_json
from hemnet.inference.options import InferenceOptions

HELP = "write a model as ONNX, torch.export or OpenVINO file, checked"
FORMATS = ("onnx", "torch", "openvino")
PRECISIONS = ("fp32", "fp16", "bf16", "int8")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="run folder, saved model, camvid, hub id")
    parser.add_argument("--format", choices=FORMATS, default="onnx", help="(%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help=".onnx, .pt2, .xml")
    parser.add_argument("--iterations", type=int, help="of EM, instead of the model's own")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="of weights; int8: of all (fp32)"
    )
    int8 = parser.add_argument_group("int8")
    int8.add_argument(
        "--calibrate", metavar="DATA", help="a data set's name, or a folder or pattern of images"
    )
    int8.add_argument(
        "--data.root", dest="root", metavar="DIR", help="the data set's folder, if not the run's"
    )
    int8.add_argument("--images", type=int, default=32, help="to calibrate on, at most (32)")
    int8.add_argument("--held-out", type=int, default=100, help="to judge by, at most (100)")
    int8.add_argument(
        "--tolerance", type=float, default=0.5, metavar="POINTS", help="that may be lost (0.5)"
    )
    int8.add_argument(
        "--keep-float",
        nargs="+",
        default=[],
        metavar="MODULE",
        help="modules that stay in float32, such as 'head.*' or 'backbone.network.conv1*'",
    )
    int8.add_argument(
        "--accurate", action="store_true", help="return layers to float32 within tolerance; slow"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison")


def run(args: argparse.Namespace) -> None:
    InferenceOptions(iterations=args.iterations)  # refuses what cannot be
    if not 0 <= args.tolerance < 100:
        raise UserError(f"--tolerance {args.tolerance}: expected points from 0 to below 100.")
    int8 = args.precision == "int8"
    if int8 != (args.calibrate is not None):
        raise UserError("--precision int8 and --calibrate DATA belong together.")
    check_output(args.json)
    check_output(args.out)
    from dataclasses import asdict

    from hemnet.export.writers import export_model
    from hemnet.inference.open_model import load_model
    from hemnet.progress import progress_bar, telling

    model = load_model(args.model)
    data = None
    if int8:
        from hemnet.export.calibration import calibration_data

        data = calibration_data(
            model,
            args.calibrate,
            source=args.model,
            root=args.root,
            images=args.images,
            held_out=args.held_out,
        )
    with progress_bar() as bar, telling(lambda text: print(text, file=sys.stderr, flush=True)):
        bar.add_task(f"exporting to {args.format}", total=None)
        found = export_model(
            model,
            args.out,
            args.format,
            args.iterations,
            args.precision,
            data,
            args.tolerance,
            args.keep_float,
            args.accurate,
        )
    if found.parity:
        print(f"{'batch':>5}  {'size':>9}  {'largest difference':>18}  {'same class':>10}")
    for row in found.parity:
        size = f"{row.height}×{row.width}"
        print(f"{row.batch:>5}  {size:>9}  {row.difference:>18.1e}  {row.same_class:>10.3%}")
    if args.json is not None:
        content = {"model": args.model, "format": args.format, "file": str(args.out)}
        content |= {"precision": args.precision, "parity": [asdict(row) for row in found.parity]}
        if found.loss is not None:
            content["loss"] = asdict(found.loss)
        write_json(args.json, content)
    if found.loss is not None:
        print(f"{found.loss}; at most {args.tolerance:g} points may be lost")
        print(f"wrote {args.out}")
    else:
        print(f"wrote {args.out}, which agrees with the model")
