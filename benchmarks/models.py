"""Whole models on a CPU: HEMNet and others plain and fused, and the DeepLabs of two peers.

EMANet computes its first convolution at every position, as its own code does; all heads are 512
channels wide. HEMNet's time is also given part by part.

ResNet-50, stride 8, 513×513 (segmentation-models-pytorch takes multiples of the stride: 512×512),
batch 1, evaluation, float32. All variants take turns in every round, so that whatever else the
machine does hits them alike; ratios are medians of per-round ratios.

    python benchmarks/models.py --json benchmarks/results/models.json
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import hemnet
from common import arguments, console, interleave, parse, save, show
from hemnet.nn.em_unit import em_units

SIZE = 513
CLASSES = 21
CONVOLUTIONS = ((64, 129), (128, 65), (256, 65), (512, 65))  # channels, height and width


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--size", type=int, default=SIZE, help="(%(default)s)")
    args = parse(parser)
    models, notes = variants(args.size)
    runs: dict[str, Callable[[], Any]] = {}
    flops: dict[str, int] = {}
    for name, (model, images) in models.items():
        runs[name] = lambda model=model, images=images: model(images)
        flops[name] = flops_of(model, images)
    for name, (run, count) in convolutions().items():
        runs[name], flops[name] = run, count

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
    fastest = statistics.median(best) / 1e9
    show(
        f"ResNet-50, stride 8, {args.size}×{args.size}, batch 1, float32, {args.threads} threads, "
        f"{args.rounds} rounds",
        ("model", "ms", "GFLOP", "GFLOP/s", "time / hemnet", "of best 3×3 conv"),
        [
            (name, f"{1000 * row['seconds']:.0f}", f"{row['gflops']:.0f}",
             f"{row['gflops_per_second']:.0f}", f"{row['time_over_hemnet']:.3f}",
             f"{row['share_of_best_convolution']:.3f}")
            for name, row in rows.items()
        ],
    )  # fmt: skip
    console.print(
        f"best 3×3 convolution: {fastest:.0f} GFLOP/s; fused against unfused: largest relative "
        f"difference {error:.1e}"
    )
    for note in notes:
        console.print(f"[yellow]{note}[/]")
    parts = by_part(*models["hemnet fused, NHWC"], args.rounds)
    show(
        "HEMNet, fused, NHWC, by part",
        ("part", "ms", "of the time", "of the FLOPs"),
        [
            (name, f"{1000 * row['seconds']:.0f}", f"{row['time']:.1%}", f"{row['flops']:.1%}")
            for name, row in parts.items()
        ],
    )
    result = {
        "rounds": args.rounds,
        "parts": parts,
        "best_convolution_gflops_per_second": fastest,
        "fused_max_relative_error": error,
        "models": rows,
        "notes": notes,
    }
    save(args.json, result)


def variants(size: int) -> tuple[dict[str, tuple[nn.Module, Tensor]], list[str]]:
    """Models with their inputs, and what could not be had."""
    torch.manual_seed(0)
    images = torch.randn(1, 3, size, size)
    last = images.contiguous(memory_format=torch.channels_last)

    def create(name: str) -> hemnet.Segmenter:
        model = hemnet.create_model(name, CLASSES, "resnet50", 8, 512).eval()
        for unit in em_units(model):
            unit.absorbs = name == "hemnet"
        return model

    ours = create("hemnet")
    settle_norms(ours)
    found: dict[str, tuple[nn.Module, Tensor]] = {
        "hemnet": (ours, images),
        "hemnet NHWC": (create("hemnet").to(memory_format=torch.channels_last), last),
        "hemnet fused": (ours.fuse(), images),
        "hemnet fused, NHWC": (ours.fuse().to(memory_format=torch.channels_last), last),
    }
    for name in ("emanet", "deeplabv3plus", "pspnet"):
        other = create(name)
        settle_norms(other)
        found[name] = (other, images)
        fused = other.fuse().to(memory_format=torch.channels_last)
        found[f"{name} fused, NHWC"] = (fused, last)
    others, notes = peers(8, size)
    for name, (model, side) in others.items():
        found[name] = (model, torch.randn(1, 3, side, side))
    return found, notes


def convolutions() -> dict[str, tuple[Callable[[], Any], int]]:
    """3×3 convolutions that show what the machine can do: four in a row, and their FLOPs."""
    found: dict[str, tuple[Callable[[], Any], int]] = {}
    for channels, side in CONVOLUTIONS:
        for text, layout in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
            conv = nn.Conv2d(channels, channels, 3, padding=1).to(memory_format=layout)
            images = torch.randn(1, channels, side, side).contiguous(memory_format=layout)
            run = lambda conv=conv, images=images: [conv(images) for _ in range(4)]  # noqa: E731
            found[f"conv 3×3 {channels} {side}² {text}"] = (run, 4 * flops_of(conv, images))
    return found


def peers(stride: int, size: int = SIZE) -> tuple[dict[str, tuple[nn.Module, int]], list[str]]:
    """Other libraries' models with the side of their images, and what could not be had."""
    found: dict[str, tuple[nn.Module, int]] = {}
    if stride == 8:  # the only one it has
        from torchvision.models.segmentation import deeplabv3_resnet50

        peer = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES)
        found["torchvision DeepLabV3"] = (Logits(peer).eval(), size)
    try:
        import segmentation_models_pytorch as smp
    except ImportError:
        return found, [
            "segmentation-models-pytorch is not installed and was left out: "
            "pip install --no-deps segmentation-models-pytorch"
        ]
    peer = smp.DeepLabV3Plus(
        "resnet50", encoder_weights=None, classes=CLASSES, encoder_output_stride=stride
    )
    found[f"smp {version('segmentation-models-pytorch')} DeepLabV3+"] = (peer.eval(), size - 1)
    return found, []


class Logits(nn.Module):
    """torchvision's models give a dictionary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images)["out"]


@torch.inference_mode()
def by_part(model: nn.Module, images: Tensor, rounds: int) -> dict[str, dict[str, float]]:
    """Where HEMNet's time goes: seconds of each part, and shares of all seconds and FLOPs."""
    network, head = "backbone.network.", "head."
    names = {
        "stage 1": f"{network}layer1",
        "stage 2": f"{network}layer2",
        "stage 3": f"{network}layer3",
        "stage 4": f"{network}layer4",
        "head: 3×3 convolution, 2048 → 512": f"{head}reduce",
        "head: EM unit": f"{head}attention",
        "head: 3×3 convolution, 512 → 256": f"{head}mix",
        "head: classifier": f"{head}classifier",
    }
    marks: list[float] = []
    modules = [model.get_submodule(name) for name in names.values()]
    mark = lambda *_: marks.append(time.perf_counter())  # noqa: E731
    hooks = [module.register_forward_pre_hook(mark) for module in modules]
    hooks.append(modules[-1].register_forward_hook(mark))
    seconds: list[list[float]] = []
    for _ in range(1 + rounds):  # the first warms up
        marks.clear()
        mark()
        model(images)
        mark()
        seconds.append([after - before for before, after in itertools.pairwise(marks)])
    for hook in hooks:
        hook.remove()
    with FlopCounterMode(display=False) as counter:
        model(images)
    counts = counter.get_flop_counts()
    flops = [sum(counts[f"Segmenter.{name}"].values()) for name in names.values()]
    whole = counter.get_total_flops()
    # The stem comes first. Convolutions and products count, the up-sampling does not.
    all_flops = [whole - sum(flops), *flops, 0]
    medians = [statistics.median(values) for values in zip(*seconds[1:], strict=True)]
    return {
        name: {"seconds": s, "time": s / sum(medians), "flops": f / whole}
        for name, s, f in zip(["stem", *names, "up-sampling"], medians, all_flops, strict=True)
    }


def settle_norms(model: nn.Module) -> None:
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


if __name__ == "__main__":
    main()
