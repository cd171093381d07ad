"""Options that `evaluate` and `predict` share: how a model looks at an image, and where."""

from __future__ import annotations

import argparse
import atexit
import os
from typing import TYPE_CHECKING, Any

from hemnet.errors import UserError
from hemnet.limits import MAX_ITERATIONS

if TYPE_CHECKING:
    import torch

    from hemnet.inference.options import EvaluationOptions


TIMEOUT = 1800  # seconds that a process waits for slower ones, at the end


def add_looking(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to look")
    how.add_argument("--scales", nargs="+", default=["1"], metavar="S", help="averaged (default 1)")
    how.add_argument("--flip", action="store_true", help="also mirrored, averaged")
    how.add_argument(
        "--window", nargs="+", type=int, metavar="N", help="sliding window: a side, or height width"
    )
    how.add_argument(
        "--overlap", type=float, help="of windows, a share of the window (default: 1/3)"
    )
    how.add_argument("--iterations", type=int, help="of EM, instead of the model's own")
    how.add_argument("--batch", type=int, default=1, help="images at once, if of one size (1)")
    how.add_argument("--workers", type=int, default=2, help="processes that read images (2)")
    how.add_argument(
        "--trust", action="store_true", help="load a .pt2 file, which could run any program"
    )
    how.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (auto)")


def looking_options(args: argparse.Namespace) -> EvaluationOptions:
    from hemnet.inference.options import EvaluationOptions

    try:
        scales = tuple(float(s) for text in args.scales for s in text.split(",") if s)
    except ValueError:
        raise UserError(
            f"--scales {' '.join(args.scales)}: expected numbers, such as 0.5 1 1.5."
        ) from None
    if args.iterations is not None and args.iterations > MAX_ITERATIONS:
        raise UserError(f"--iterations {args.iterations}: expected 1 to {MAX_ITERATIONS}.")
    window = args.window
    if window is not None and len(window) > 2:
        raise UserError("--window: expected a side, or height and width.")
    extra: dict[str, Any] = {} if args.overlap is None else {"overlap": args.overlap}
    try:
        return EvaluationOptions(
            scales=scales,
            flip=args.flip,
            window=None if window is None else window[0] if len(window) == 1 else tuple(window),
            iterations=args.iterations,
            batch=args.batch,
            workers=args.workers,
            **extra,
        )
    except ValueError as error:
        raise UserError(f"--{error}") from None


def chosen_device(name: str) -> tuple[torch.device, bool]:
    """Where to compute, and whether this process is the one that speaks."""
    import torch

    if name not in ("auto", "cpu", "cuda", "mps"):
        raise UserError(f"--device {name}: expected auto, cpu, cuda or mps.")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available[name]:
        raise UserError(f"--device {name}: this machine has none. Use --device auto.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # started by torchrun or accelerate
        from hemnet.training.distributed import join

        # A GPU is the process's own; without one it has to be said that they talk all the same.
        state = join(cpu=name == "cpu", timeout=TIMEOUT)
        atexit.register(state.destroy_process_group)
        return state.device, state.is_main_process
    return torch.device(name), True
