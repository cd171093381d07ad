"""Networks in every engine: PyTorch eager, fused, compiled, onnxruntime, OpenVINO, int8.

HEMNet beside EMANet (its first convolution computed, as its own code does), DeepLabV3+ and PSPNet
of the same backbone, stride and width (512), and beside torchvision's DeepLabV3 and
segmentation-models-pytorch's DeepLabV3+ (which takes multiples of the stride: 512×512), exported
the usual way. ResNet-50 at 513×513, batch 1, free batch, height and width, float32; int8 is
calibrated on the timed images (its time does not depend on the weights, and its accuracy is not
measured here). All take turns in every round; ratios are medians of per-round ratios, and a share
is of the fastest 3×3 convolution of the same round. How far each engine is from the eager model's
logits is measured first.

    python benchmarks/inference.py --json benchmarks/results/inference.json

Exporting and quantising take minutes. `--files DIR` keeps the files and uses those that are there,
`--rounds 0` only makes them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hemnet
from common import Times, arguments, console, interleave, parse, save, show
from hemnet.export.quantise import Calibration, float_nodes, quantise
from hemnet.export.writers import capture, make_onnx, save_onnx, write_onnx
from hemnet.nn.em_unit import em_units
from models import CLASSES, SIZE, convolutions, flops_of, peers, settle_norms

Engine = Callable[[Tensor], Tensor]
OTHERS = ("deeplabv3plus", "pspnet")
OURS = ("hemnet", "emanet", *OTHERS)
WIDTH = 512


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--stride", type=int, default=8, choices=(8, 16))
    parser.add_argument("--size", type=int, default=SIZE, help="(%(default)s)")
    parser.add_argument("--backbone", default="resnet50", help="of our networks (%(default)s)")
    parser.add_argument(
        "--others", nargs="*", choices=OURS[1:], default=list(OURS[1:]), help="beside HEMNet"
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--files", type=Path, metavar="DIR", help="keep exported files here")
    args = parse(parser)
    torch.manual_seed(0)
    networks, notes = make_networks(args)
    engines: dict[str, tuple[Engine, Tensor]] = {}
    errors: dict[str, float] = {}
    flops: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.files or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, (model, side) in networks.items():
            images = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(0))
            count = flops_of(model, images)
            with torch.inference_mode():
                expected = model(images)
                for engine, (run, given) in variants(name, model, images, folder, notes).items():
                    both = f"{name} {engine}"
                    engines[both], flops[both] = (run, given), count
                    difference = (run(given) - expected).abs().max() / expected.abs().max()
                    errors[both] = float(difference)
                    console.print(f"{both}: differs by {errors[both]:.0e}", highlight=False)
        wrong = [n for n, error in errors.items() if not n.endswith("int8") and not error < 1e-3]
        if wrong:
            notes.append(f"more than 1e-3 of the largest logit from the eager model: {wrong}")
        if not args.rounds:
            return
        work: dict[str, Callable[[], object]] = {
            n: (lambda run=run, x=x: run(x)) for n, (run, x) in engines.items()
        }
        for name, (run_four, count) in convolutions().items():
            work[name], flops[name] = run_four, count
        with torch.inference_mode():
            times = interleave(work, args.rounds, "engines", warm_up=1)
    rates = {n: [flops[n] / t for t in times.rounds[n]] for n in work}
    best = [max(rates[n][i] for n in work if n not in engines) for i in range(args.rounds)]
    rows = {}
    for name in networks:
        for both in (e for e in engines if e.startswith(f"{name} ")):
            engine = both.removeprefix(f"{name} ")
            shares = [rate / b for rate, b in zip(rates[both], best, strict=True)]
            rows[both] = {
                "network": name,
                "engine": engine,
                "seconds": times.median(both),
                "gflops": flops[both] / 1e9,
                "share_of_best_convolution": statistics.median(shares),
                "time_over_eager_hemnet": times.ratio(both, "hemnet eager"),
                "time_over_own_eager": times.ratio(both, f"{name} eager"),
                "largest_difference": errors[both],
            }
    show(
        f"{args.backbone}, stride {args.stride}, {args.size}×{args.size}, batch 1, float32, "
        f"{args.threads} threads, {args.rounds} rounds",
        ("network and engine", "ms", "of eager HEMNet", "of its own eager", "of best 3×3 conv",
         "difference"),
        [
            (name, f"{1000 * row['seconds']:.0f}", f"{row['time_over_eager_hemnet']:.3f}",
             f"{row['time_over_own_eager']:.3f}", f"{row['share_of_best_convolution']:.3f}",
             f"{row['largest_difference']:.0e}")
            for name, row in rows.items()
        ],
    )  # fmt: skip
    result = {
        "rounds": args.rounds,
        "stride": args.stride,
        "best_convolution_gflops_per_second": statistics.median(best) / 1e9,
        "engines": rows,
        "bars": bars(times),
        "notes": notes,
    }
    for note in notes:
        console.print(f"[yellow]{note}[/]")
    save(args.json, result)


def make_networks(args: argparse.Namespace) -> tuple[dict[str, tuple[nn.Module, int]], list[str]]:
    """Networks with the side of their images, and what could not be had."""
    networks: dict[str, tuple[nn.Module, int]] = {}
    for name in (OURS[0], *args.others):
        model = hemnet.create_model(name, CLASSES, args.backbone, args.stride, WIDTH)
        for unit in em_units(model):
            unit.absorbs = name == "hemnet"
            nn.init.ones_(unit.norm.weight)  # a unit that adds nothing would hide errors
        networks[name] = (model.eval(), args.size)
    others, notes = peers(args.stride, args.size) if args.peers else ({}, [])
    networks |= others
    for model, _ in networks.values():
        settle_norms(model)
    return networks, notes


def bars(times: Times) -> list[dict[str, Any]]:
    """What was promised, beside what was measured."""
    names = list(times.rounds)
    int8 = min((n for n in names if n.startswith("hemnet") and n.endswith("int8")), default="",
               key=times.median)  # fmt: skip
    exported = [n for n in names if "DeepLab" in n and n.endswith(("onnxruntime", "openvino"))]
    own = [n for n in names if n.startswith("hemnet ")]
    pairs = [(int8, "hemnet eager", 0.35), *((int8, peer, 0.5) for peer in exported)]
    pairs += [(name, name.replace("hemnet", "emanet", 1), 0.97) for name in own]
    found = [
        {"what": f"{a} of {b}", "measured": times.ratio(a, b), "bar": f"≤ {bar}",
         "met": times.ratio(a, b) <= bar}
        for a, b, bar in pairs
        if a in times.rounds and b in times.rounds
    ]  # fmt: skip
    rows = [
        (str(r["what"]), f"{r['measured']:.3f}", r["bar"], "yes" if r["met"] else "no")
        for r in found
    ]
    show("Bars", ("what", "measured", "bar", "met"), rows)
    return found


def variants(
    name: str, model: nn.Module, images: Tensor, folder: Path, notes: list[str]
) -> dict[str, tuple[Engine, Tensor]]:
    """Engine → how it runs, and the images as it likes them."""
    found: dict[str, tuple[Engine, Tensor]] = {"eager": (model, images)}
    ours = isinstance(model, hemnet.Segmenter)
    fused = model.fuse() if ours else model  # type: ignore[operator]
    if ours:
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
    path = folder / f"{name.replace(' ', '_')}.onnx"
    size = images.shape[-2], images.shape[-1]
    try:
        if not path.exists():
            write_onnx(capture(fused, size), {}, path)
    except Exception as error:
        notes.append(f"{name} cannot be exported: {str(error).splitlines()[0]}")
        return found
    found["onnxruntime"] = (onnxruntime_engine(path), images)
    try:
        found["openvino"] = (openvino_engine(path), images)
    except ImportError:
        notes.append("openvino is not installed and was left out")
        return found
    if not ours:
        return found
    engines = ["openvino"] if name in OTHERS else ["onnxruntime", "openvino"]
    return found | int8_engines(fused, images, path, engines, notes)


def int8_engines(
    fused: nn.Module, images: Tensor, float32: Path, engines: Sequence[str], notes: list[str]
) -> dict[str, tuple[Engine, Tensor]]:
    """The files that `hemnet export --precision int8` would write of these images."""
    try:
        import nncf  # noqa: F401
    except ImportError:
        if (note := "nncf is not installed and int8 was left out") not in notes:
            notes.append(note)
        return {}
    found: dict[str, tuple[Engine, Tensor]] = {}
    data = Calibration([images], [images], None, "the timed images")
    for engine in engines:
        signed = engine == "onnxruntime"
        path = float32.with_name(f"{float32.stem}-int8-{engine}.onnx")
        if not path.exists():
            made = make_onnx(capture(fused, (images.shape[-2], images.shape[-1]), modules=True))
            ignored = float_nodes(made.model.graph.all_nodes(), fused)
            draft = path.with_name(f"draft-{path.name}")
            save_onnx(made, {}, draft)
            quantise(draft, ignored, data, signed)
            draft.rename(path)
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
