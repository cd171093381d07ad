"""Engines for one trained network: PyTorch eager, fused, compiled, onnxruntime, OpenVINO.

HEMNet on ResNet-50 at 513×513, batch 1, float32 on a CPU, beside torchvision's DeepLabV3 and
segmentation-models-pytorch's DeepLabV3+ (which takes multiples of the stride: 512×512), exported
the same way, with free batch, height and width; HEMNet also in int8, calibrated on the timed images
(its time does not depend on the weights, and its accuracy is not measured here). All take turns in
every round; ratios are medians of per-round ratios. Before anything is timed, every float32 engine
has given the eager model's logits.

    python benchmarks/inference.py --json benchmarks/results/inference.json
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import hemnet
from common import arguments, console, interleave, parse, save, show
from hemnet.export.quantise import Calibration, float_nodes, quantise
from hemnet.export.writers import capture, make_onnx, save_onnx, write_onnx
from models import CLASSES, SIZE, peers, settle_norms

BAR = 0.75
Engine = Callable[[Tensor], Tensor]


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--stride", type=int, default=8, choices=(8, 16))
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    args = parse(parser)
    torch.manual_seed(0)

    ours = hemnet.create_model("hemnet", CLASSES, "resnet50", args.stride, zero_init=False).eval()
    # What is judged, what is exported of it, and the side of its images.
    networks: dict[str, tuple[nn.Module, nn.Module, int]] = {}
    others, notes = peers(args.stride) if args.peers else ({}, [])
    for name, (model, side) in {"hemnet": (ours, SIZE), **others}.items():
        settle_norms(model)
        networks[name] = (model, ours.fuse() if model is ours else model, side)
    engines: dict[str, tuple[Engine, Tensor]] = {}
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name, (model, fused, side) in networks.items():
            images = torch.randn(1, 3, side, side)
            expected = model(images)
            found = variants(name, model, fused, images, Path(folder), notes)
            for engine, (run, given) in found.items():
                engines[f"{name} {engine}"] = (run, given)
                difference = (run(given) - expected).abs().max() / expected.abs().max()
                errors[f"{name} {engine}"] = float(difference)
        work = {n: (lambda run=run, x=x: run(x)) for n, (run, x) in engines.items()}
        times = interleave(work, args.rounds, "engines", warm_up=1)
    wrong = [n for n, error in errors.items() if not n.endswith("int8") and not error < 1e-3]
    if wrong:
        raise SystemExit(f"these engines do not agree with the eager model: {wrong}")
    rows = {
        f"{name} {engine}": {
            "seconds": times.median(f"{name} {engine}"),
            "time_over_eager_hemnet": times.ratio(f"{name} {engine}", "hemnet eager"),
            "time_over_own_eager": times.ratio(f"{name} {engine}", f"{name} eager"),
            "largest_difference": errors[f"{name} {engine}"],
        }
        for name in networks
        for engine in [e.removeprefix(f"{name} ") for e in engines if e.startswith(f"{name} ")]
    }
    own = {n: row["time_over_eager_hemnet"] for n, row in rows.items() if n.startswith("hemnet")}
    best = min(own, key=lambda name: own[name])
    show(
        f"ResNet-50, stride {args.stride}, {SIZE}×{SIZE}, batch 1, float32, {args.threads} "
        f"threads, {args.rounds} rounds",
        ("network and engine", "ms", "of eager HEMNet", "of its own eager", "difference"),
        [
            (name, f"{1000 * row['seconds']:.0f}", f"{row['time_over_eager_hemnet']:.3f}",
             f"{row['time_over_own_eager']:.3f}", f"{row['largest_difference']:.0e}")
            for name, row in rows.items()
        ],
    )  # fmt: skip
    console.print(f"best HEMNet engine: {best}, {own[best]:.3f} of eager (bar {BAR})")
    for note in notes:
        console.print(f"[yellow]{note}[/]")
    result = {
        "rounds": args.rounds,
        "stride": args.stride,
        "engines": rows,
        "best": {"engine": best, "time_over_eager": own[best], "bar": BAR},
        "notes": notes,
    }
    save(args.json, result)


def variants(
    name: str, model: nn.Module, fused: nn.Module, images: Tensor, folder: Path, notes: list[str]
) -> dict[str, tuple[Engine, Tensor]]:
    """Engine → how it runs, and the images as it likes them."""
    found: dict[str, tuple[Engine, Tensor]] = {"eager": (model, images)}
    if name == "hemnet":
        last = images.contiguous(memory_format=torch.channels_last)
        fast = model.fuse().to(memory_format=torch.channels_last)  # type: ignore[operator]
        found["fused"] = (fused, images)
        found["fused, NHWC"] = (fast, last)
        try:
            compiled = torch.compile(fast)
            compiled(last)
            found["fused, NHWC, compiled"] = (compiled, last)
        except Exception as error:  # no C++ compiler
            notes.append(f"torch.compile does not work here: {str(error).splitlines()[0]}")
    path = folder / f"{name.split()[0]}.onnx"
    size = tuple(images.shape[-2:])
    try:
        write_onnx(capture(fused, (size[0], size[1])), {}, path)
    except Exception as error:
        notes.append(f"{name} cannot be exported: {str(error).splitlines()[0]}")
        return found
    found["onnxruntime"] = (onnxruntime_engine(path), images)
    try:
        found["openvino"] = (openvino_engine(path), images)
    except ImportError:
        notes.append("openvino is not installed and was left out")
        return found
    if name == "hemnet":
        found |= int8_engines(fused, images, folder, notes)
    return found


def int8_engines(
    fused: nn.Module, images: Tensor, folder: Path, notes: list[str]
) -> dict[str, tuple[Engine, Tensor]]:
    """The files that `hemnet export --precision int8` would write of these images."""
    try:
        import nncf  # noqa: F401
    except ImportError:
        notes.append("nncf is not installed and int8 was left out")
        return {}
    found: dict[str, tuple[Engine, Tensor]] = {}
    data = Calibration([images], [images], None, "the timed images")
    for engine, signed in (("onnxruntime", True), ("openvino", False)):
        path = folder / f"int8-{engine}.onnx"
        made = make_onnx(capture(fused, (images.shape[-2], images.shape[-1]), modules=True))
        ignored = float_nodes(made.model.graph.all_nodes(), fused)
        save_onnx(made, {}, path)
        quantise(path, ignored, data, signed)
        run = onnxruntime_engine(path) if signed else openvino_engine(path)
        found[f"{engine} int8"] = (run, images)
    return found


def onnxruntime_engine(path: Path) -> Engine:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


def openvino_engine(path: Path) -> Engine:
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


if __name__ == "__main__":
    main()
