"""Explore a model in the browser.

Drop an image or take one of the samples (of a run: images that it validates on): its segmentation
appears, and below it what the EM unit does with it, iteration by iteration: what the bases attend
to, the features rebuilt, and the likelihood bound for any number of iterations and step size. MODEL
is a run folder, a folder that save_pretrained wrote, a file that `hemnet export` wrote, the name of
a model that comes with hemnet (camvid), or a hub id; without one it is the demo's.

The page is served to this computer only, unless --host says otherwise.

examples:
  hemnet demo && hemnet app --open
  hemnet app camvid --port 8000
  hemnet app mine.onnx --host 0.0.0.0          everyone in the network can use it
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hemnet.errors import UserError

if TYPE_CHECKING:
    from hemnet.app.limits import Limits

HELP = "explore a model in the browser"
DEMO = "runs/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default=DEMO, help=f"what to look into ({DEMO})"
    )
    parser.add_argument("--open", action="store_true", help="open the browser")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, help="to listen on (the first free one from 7860)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (auto)")
    parser.add_argument(
        "--trust", action="store_true", help="load a .pt2 file, which could run any program"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-upload", type=float, default=20.0, metavar="MB", help="of an image (%(default)g)"
    )
    limits.add_argument(
        "--max-pixels",
        type=float,
        default=50.0,
        metavar="MP",
        help="megapixels of an image; larger ones are refused before they are decoded "
        "(%(default)g)",
    )
    limits.add_argument(
        "--side",
        type=int,
        default=1024,
        metavar="N",
        help="images are made smaller until no side is longer (%(default)s pixels)",
    )


def run(args: argparse.Namespace) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise UserError(
            "`hemnet app` needs starlette and uvicorn: install the extra packages with "
            "pip install 'hemnet-torch[app]'."
        )
    if args.model == DEMO and not Path(DEMO).exists():
        raise UserError(
            f"there is no {DEMO} here: make it with `hemnet demo` (about two minutes), or give a "
            "model: hemnet app MODEL, such as hemnet app camvid."
        )
    limits = _limits(args)
    from hemnet.app.guard import is_loopback
    from hemnet.app.server import listen, serve
    from hemnet.cli.shared_flags import chosen_device

    place = listen(args.host, args.port)
    with place, tempfile.TemporaryDirectory(prefix="hemnet-app-") as name:
        from hemnet.app.answers import Answers
        from hemnet.app.explore import Explorer
        from hemnet.app.routes import make_app
        from hemnet.app.samples import samples_of_run
        from hemnet.inference.open_model import open_model

        device, _ = chosen_device(args.device)
        explorer = Explorer(open_model(args.model, args.trust).to(device))
        own = samples_of_run(args.model, limits.side)
        answers = Answers(explorer, limits, Path(name), own)
        serve(make_app(answers, is_loopback(args.host)), place, args.open)


def _limits(args: argparse.Namespace) -> Limits:
    from hemnet.app.limits import MEGA, Limits

    for name in ("max_upload", "max_pixels", "side"):
        value = getattr(args, name)
        if not 0 < value < 1e6:
            option = name.replace("_", "-")
            raise UserError(f"--{option} {value:g}: expected a number above 0.")
    return Limits(int(args.max_upload * MEGA), int(args.max_pixels * MEGA), args.side)
