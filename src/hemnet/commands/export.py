"""Export a model for use without hemnet, or without PyTorch: ONNX, torch.export or OpenVINO.

The file takes images of any number, height and width: float32 B,3,H,W, RGB in 0–1 minus mean,
divided by std. It gives logits B,classes,H,W. Batch norms are folded in; class names, palette,
mean, std, iterations and step size are in the file's metadata. The file is compared with the
model on several sizes and batches, and is there only if they agree.

examples:
  hemnet export runs/camvid --out camvid.onnx
  hemnet export runs/camvid --out camvid.onnx --iterations 6 --json parity.json
  hemnet export runs/camvid --format torch --out camvid.pt2
  hemnet export runs/camvid --format openvino --out camvid.xml       with camvid.bin beside it
  hemnet predict camvid.onnx photos --out found                      and `hemnet evaluate`
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hemnet.commands.looking import MAX_ITERATIONS
from hemnet.errors import UserError

HELP = "write a model as ONNX, torch.export or OpenVINO file, checked"
FORMATS = ("onnx", "torch", "openvino")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="run folder, saved model or hub id")
    parser.add_argument("--format", choices=FORMATS, default="onnx", help="(%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", required=True, help=".onnx, .pt2, .xml")
    parser.add_argument("--iterations", type=int, help="of EM, instead of the model's own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison")


def run(args: argparse.Namespace) -> None:
    if args.iterations is not None and not 1 <= args.iterations <= MAX_ITERATIONS:
        raise UserError(f"--iterations {args.iterations}: expected 1 to {MAX_ITERATIONS}.")
    from dataclasses import asdict

    from hemnet.engine.load import load_model
    from hemnet.engine.maps import replacing
    from hemnet.export import export_model
    from hemnet.progress import progress_bar, telling

    model = load_model(args.model)
    with progress_bar() as bar, telling(lambda text: print(text, file=sys.stderr, flush=True)):
        bar.add_task(f"exporting to {args.format}", total=None)
        found = export_model(model, args.out, args.format, args.iterations)
    print(f"{'batch':>5}  {'size':>9}  {'largest difference':>18}  {'same class':>10}")
    for row in found:
        size = f"{row.height}×{row.width}"
        print(f"{row.batch:>5}  {size:>9}  {row.difference:>18.1e}  {row.same_class:>10.3%}")
    if args.json is not None:
        content = {"model": args.model, "format": args.format, "file": str(args.out)}
        rows = [asdict(row) for row in found]
        with replacing(args.json) as file:
            file.write(json.dumps(content | {"parity": rows}, indent=1).encode() + b"\n")
    print(f"wrote {args.out}, which agrees with the model")
