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
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

import hemnet
from common import console, interleave, save
from hemnet.export.quantise import Calibration, float_nodes, quantise
from hemnet.export.writers import make_onnx, save_onnx, trace, write_onnx
from models import CLASSES, SIZE, settle

BAR = 0.75
Run = Callable[[Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--stride", type=int, default=8, choices=(8, 16))
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    notes: list[str] = []
    engines: dict[str, tuple[Run, Tensor]] = {}
    errors: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, fused, size) in networks(args.stride, args.peers, notes).items():
            images = torch.randn(1, 3, size, size)
            with torch.inference_mode():
                expected = model(images)
                for engine, (run, given) in variants(
                    name, model, fused, images, Path(folder), notes
                ).items():
                    engines[f"{name} {engine}"] = (run, given)
                    difference = (run(given) - expected).abs().max() / expected.abs().max()
                    errors[f"{name} {engine}"] = float(difference)
        with torch.inference_mode():
            work = {n: (lambda run=run, x=x: run(x)) for n, (run, x) in engines.items()}
            times = interleave(work, args.rounds, "engines", warm_up=1)
    wrong = [n for n, error in errors.items() if not n.endswith("int8") and not error < 1e-3]
    if wrong:
        raise SystemExit(f"these engines do not agree with the eager model: {wrong}")
    rows = {
        name: {
            "seconds": times.median(name),
            "time_over_eager_hemnet": times.ratio(name, "hemnet eager"),
            "time_over_own_eager": times.ratio(name, f"{name.rsplit(' ', 1)[0]} eager")
            if not name.startswith("hemnet")
            else times.ratio(name, "hemnet eager"),
            "largest_difference": errors[name],
        }
        for name in engines
    }
    ours = {n: row["time_over_eager_hemnet"] for n, row in rows.items() if n.startswith("hemnet")}
    best = min(ours, key=lambda name: ours[name])
    result = {
        "rounds": args.rounds,
        "stride": args.stride,
        "engines": rows,
        "best": {"engine": best, "time_over_eager": ours[best], "bar": BAR},
        "notes": notes,
    }
    show(result)
    save(args.json, result)


def networks(
    stride: int, peers: bool, notes: list[str]
) -> dict[str, tuple[nn.Module, nn.Module, int]]:
    """Name → model, what is exported of it, and the side of its images."""
    ours = hemnet.create_model("hemnet", CLASSES, "resnet50", stride, zero_init=False).eval()
    settle(ours)
    found: dict[str, tuple[nn.Module, nn.Module, int]] = {"hemnet": (ours, ours.fuse(), SIZE)}
    if not peers:
        return found
    if stride == 8:  # the only one it has
        from torchvision.models.segmentation import deeplabv3_resnet50

        peer = Logits(deeplabv3_resnet50(weights_backbone=None, num_classes=CLASSES).eval())
        found["torchvision DeepLabV3"] = (peer, peer, SIZE)
    try:
        import segmentation_models_pytorch as smp

        peer = smp.DeepLabV3Plus(
            "resnet50", encoder_weights=None, classes=CLASSES, encoder_output_stride=stride
        ).eval()
        name = f"smp {version('segmentation-models-pytorch')} DeepLabV3+"
        found[name] = (peer, peer, SIZE - 1)
    except ImportError:
        notes.append(
            "segmentation-models-pytorch is not installed and was left out: "
            "pip install --no-deps segmentation-models-pytorch"
        )
    for peer, _, _ in list(found.values())[1:]:
        settle(peer)
    return found


class Logits(nn.Module):
    """torchvision's models give a dictionary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)["out"]


def variants(
    name: str, model: nn.Module, fused: nn.Module, images: Tensor, folder: Path, notes: list[str]
) -> dict[str, tuple[Run, Tensor]]:
    """Engine → how it runs, and the images as it likes them."""
    found: dict[str, tuple[Run, Tensor]] = {"eager": (model, images)}
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
        write_onnx(trace(fused, (size[0], size[1])), {}, path)
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
) -> dict[str, tuple[Run, Tensor]]:
    """The files that `hemnet export --precision int8` would write of these images."""
    try:
        import nncf  # noqa: F401
    except ImportError:
        notes.append("nncf is not installed and int8 was left out")
        return {}
    found: dict[str, tuple[Run, Tensor]] = {}
    data = Calibration([images], [images], None, "the timed images")
    for engine, signed in (("onnxruntime", True), ("openvino", False)):
        path = folder / f"int8-{engine}.onnx"
        made = make_onnx(trace(fused, (images.shape[-2], images.shape[-1]), modules=True))
        ignored = float_nodes(made.model.graph.all_nodes(), fused)
        save_onnx(made, {}, path)
        quantise(path, ignored, data, signed)
        run = onnxruntime_engine(path) if signed else openvino_engine(path)
        found[f"{engine} int8"] = (run, images)
    return found


def onnxruntime_engine(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(None, {"images": x.numpy()})[0])


def openvino_engine(path: Path) -> Run:
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda x: torch.from_numpy(compiled(x.numpy())[0])


def show(result: dict[str, Any]) -> None:
    table = Table(
        title=f"ResNet-50, stride {result['stride']}, {SIZE}×{SIZE}, batch 1, float32, "
        f"{torch.get_num_threads()} threads, {result['rounds']} rounds"
    )
    for column in ("network and engine", "ms", "of eager HEMNet", "of its own eager", "difference"):
        table.add_column(column, justify="left" if column.startswith("network") else "right")
    for name, row in result["engines"].items():
        table.add_row(
            name,
            f"{1000 * row['seconds']:.0f}",
            f"{row['time_over_eager_hemnet']:.3f}",
            f"{row['time_over_own_eager']:.3f}",
            f"{row['largest_difference']:.0e}",
        )
    console.width = max(console.width, 100)
    console.print(table)
    best = result["best"]
    console.print(
        f"best HEMNet engine: {best['engine']}, {best['time_over_eager']:.3f} of eager "
        f"(bar {best['bar']})"
    )
    for note in result["notes"]:
        console.print(f"[yellow]{note}[/]")


if __name__ == "__main__":
    main()
