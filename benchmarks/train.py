"""A training step of HEMNet beside EMANet's: forward, loss, backward, optimizer.

ResNet-50, stride 16, 257×257, batch 2, float32, the paper's optimizer. The models take turns in
every round; ratios are medians of per-round ratios. The bar is HEMNet at most 1.05 of EMANet.

    python benchmarks/train.py --json benchmarks/results/train.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import hemnet
from common import console, interleave, save
from hemnet.training.config import LossConfig, OptimConfig
from hemnet.training.loss import SegmentationLoss
from hemnet.training.optim import lr_at, make_optimizer, set_lr

CLASSES, SIZE, BATCH = 21, 257, 2
BAR = 1.05
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "emanet": ("emanet", {}),
    "hemnet": ("hemnet", {}),
    "hemnet, paper": ("hemnet", {"preset": "paper"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIZE, SIZE).contiguous(memory_format=torch.channels_last)
    masks = torch.randint(0, CLASSES, (BATCH, SIZE, SIZE))
    steps = {
        name: training_step(model, options, args.backbone, images, masks)
        for name, (model, options) in VARIANTS.items()
    }
    times = interleave(steps, args.rounds, "training steps", warm_up=1)
    rows = {
        name: {"seconds": times.median(name), "time_over_emanet": times.ratio(name, "emanet")}
        for name in steps
    }
    table = Table(
        title=f"training step, {args.backbone}, stride 16, {SIZE}×{SIZE}, batch {BATCH}, "
        f"{args.threads} threads, {args.rounds} rounds"
    )
    for column in ("model", "seconds", "time / emanet"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, row in rows.items():
        table.add_row(name, f"{row['seconds']:.3f}", f"{row['time_over_emanet']:.3f}")
    console.print(table)
    ratio = rows["hemnet"]["time_over_emanet"]
    console.print(f"bar: hemnet ≤ {BAR} of emanet: {'met' if ratio <= BAR else 'NOT met'}")
    save(args.json, {"rounds": args.rounds, "backbone": args.backbone, "models": rows})


def training_step(
    name: str,
    options: dict[str, Any],
    backbone: str,
    images: torch.Tensor,
    masks: torch.Tensor,
) -> Callable[[], None]:
    model = hemnet.create_model(name, CLASSES, backbone, 16, **options).train()
    model.to(memory_format=torch.channels_last)
    config = OptimConfig()
    optimizer, loss = make_optimizer(model, config), SegmentationLoss(LossConfig(), CLASSES)
    set_lr(optimizer, lr_at(0, config))

    def step() -> None:
        (loss.of(model, images, masks) / loss.total(masks)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    main()
