"""Whole models on a CPU: HEMNet plain and fused, EMANet, and the DeepLabs of two peers.

ResNet-50, stride 8, 513×513 (segmentation-models-pytorch takes multiples of the stride: 512×512),
batch 1, evaluation, float32. All variants take turns in every round, so that whatever else the
machine does hits them alike; ratios are medians of per-round ratios.

    python benchmarks/models.py --json benchmarks/results/models.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import hemnet
from common import console, interleave, save

SIZE = 513
CLASSES = 21
CONVOLUTIONS = ((64, 129), (128, 65), (256, 65), (512, 65))  # channels, height and width


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    models, notes = variants()
    runs: dict[str, Callable[[], Any]] = {}
    flops: dict[str, int] = {}
    for name, (model, images) in models.items():
        runs[name] = lambda model=model, images=images: model(images)
        flops[name] = flops_of(model, images)
    for channels, side in CONVOLUTIONS:
        for layout in (torch.contiguous_format, torch.channels_last):
            name = (
                f"conv 3×3 {channels} {side}² {'NHWC' if layout == torch.channels_last else 'NCHW'}"
            )
            conv = nn.Conv2d(channels, channels, 3, padding=1).to(memory_format=layout)
            images = torch.randn(1, channels, side, side).contiguous(memory_format=layout)
            runs[name] = lambda conv=conv, images=images: [conv(images) for _ in range(4)]
            flops[name] = 4 * flops_of(conv, images)

    with torch.inference_mode():
        error = max_error(models["hemnet"], models["hemnet fused, NHWC"])
        times = interleave(runs, args.rounds, "models", warm_up=1)
    speeds = {n: [flops[n] / t for t in times.rounds[n]] for n in runs}
    best = [max(speeds[n][i] for n in runs if n not in models) for i in range(args.rounds)]
    rows = {}
    for name in models:
        shares = [speed / b for speed, b in zip(speeds[name], best, strict=True)]
        rows[name] = {
            "seconds": times.median(name),
            "gflops": flops[name] / 1e9,
            "gflops_per_second": statistics.median(speeds[name]) / 1e9,
            "time_over_hemnet": times.ratio(name, "hemnet"),
            "share_of_best_convolution": statistics.median(shares),
        }
    result = {
        "rounds": args.rounds,
        "best_convolution_gflops_per_second": statistics.median(best) / 1e9,
        "fused_max_relative_error": error,
        "models": rows,
        "notes": notes,
    }
    show(result)
    save(args.json, result)


def variants() -> tuple[dict[str, tuple[nn.Module, Tensor]], list[str]]:
    """Models with their inputs, and what could not be had."""
    torch.manual_seed(0)
    images = torch.randn(1, 3, SIZE, SIZE)
    last = images.contiguous(memory_format=torch.channels_last)
    ours = hemnet.create_model("hemnet", CLASSES, "resnet50", 8).eval()
    settle(ours)
    fused = ours.fuse()
    found: dict[str, tuple[nn.Module, Tensor]] = {
        "hemnet": (ours, images),
        "hemnet NHWC": (
            hemnet.create_model("hemnet", CLASSES, "resnet50", 8)
            .eval()
            .to(memory_format=torch.channels_last),
            last,
        ),
        "hemnet fused": (fused, images),
        "hemnet fused, NHWC": (ours.fuse().to(memory_format=torch.channels_last), last),
        "emanet": (hemnet.create_model("emanet", CLASSES, "resnet50", 8).eval(), images),
    }
    notes = []
    from torchvision.models.segmentation import deeplabv3_resnet50

    peer = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES).eval()
    found["torchvision DeepLabV3"] = (peer, images)
    try:
        name = f"smp {version('segmentation-models-pytorch')} DeepLabV3+ 512"
        import segmentation_models_pytorch as smp

        peer = smp.DeepLabV3Plus(
            "resnet50", encoder_weights=None, classes=CLASSES, encoder_output_stride=8
        ).eval()
        found[name] = (peer, torch.randn(1, 3, 512, 512))
    except (PackageNotFoundError, ImportError):
        notes.append(
            "segmentation-models-pytorch is not installed and was left out: "
            "pip install --no-deps segmentation-models-pytorch"
        )
    return found, notes


def settle(model: nn.Module) -> None:
    """Batch norms as after training; at their start folding would change next to nothing."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.0)


def flops_of(model: nn.Module, images: Tensor) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(images)
    return int(counter.get_total_flops())


def max_error(one: tuple[nn.Module, Tensor], other: tuple[nn.Module, Tensor]) -> float:
    a, b = one[0](one[1]), other[0](other[1])
    return float((a - b).abs().max() / a.abs().max())


def show(result: dict[str, Any]) -> None:
    table = Table(
        title=f"ResNet-50, stride 8, {SIZE}×{SIZE}, batch 1, float32, "
        f"{torch.get_num_threads()} threads, "
        f"{result['rounds']} rounds"
    )
    for column in ("model", "ms", "GFLOP", "GFLOP/s", "time / hemnet", "of best 3×3 conv"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in result["models"].items():
        table.add_row(
            name,
            f"{1000 * row['seconds']:.0f}",
            f"{row['gflops']:.0f}",
            f"{row['gflops_per_second']:.0f}",
            f"{row['time_over_hemnet']:.3f}",
            f"{row['share_of_best_convolution']:.3f}",
        )
    console.width = max(console.width, 100)
    console.print(table)
    console.print(
        f"best 3×3 convolution: {result['best_convolution_gflops_per_second']:.0f} GFLOP/s; "
        "fused against unfused: largest relative difference "
        f"{result['fused_max_relative_error']:.1e}"
    )
    for note in result["notes"]:
        console.print(f"[yellow]{note}[/]")


if __name__ == "__main__":
    main()
