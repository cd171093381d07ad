"""A training step of HEMNet beside EMANet's: forward, loss, backward, optimizer.

ResNet-50, stride 16, 257×257, batch 2, float32, the paper's optimizer. The models take turns in
every round; ratios are medians of per-round ratios. EMANet's first convolution is computed, as its
own code does.

    python benchmarks/train.py --json benchmarks/results/train.json
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from typing import Any

import torch
from accelerate import Accelerator

import hemnet
from common import arguments, console, interleave, parse, save, show
from hemnet.data import Batch
from hemnet.nn.em_unit import em_units
from hemnet.training.accelerator import computing
from hemnet.training.config import RunConfig, TrainConfig
from hemnet.training.loss import SegmentationLoss
from hemnet.training.optim import make_optimizer
from hemnet.training.step import TrainingStep

CLASSES, SIZE, BATCH = 21, 257, 2
BAR = 1.0
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "emanet": ("emanet", {}),
    "hemnet": ("hemnet", {}),
    "hemnet, paper": ("hemnet", {"preset": "paper"}),
}


def main() -> None:
    parser = arguments(__doc__, rounds=11)
    parser.add_argument("--backbone", default="resnet50")
    args = parse(parser)
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIZE, SIZE)
    batch = Batch(images, torch.randint(0, CLASSES, (BATCH, SIZE, SIZE)), ["a", "b"])
    with computing(RunConfig(device="cpu")) as accelerator:
        steps = {
            name: partial(new_step(model, more, args.backbone, accelerator), 0, repeat(batch))
            for name, (model, more) in VARIANTS.items()
        }
        times = interleave(steps, args.rounds, "training steps", warm_up=1)
    rows = {
        name: {"seconds": times.median(name), "time_over_emanet": times.ratio(name, "emanet")}
        for name in steps
    }
    show(
        f"training step, {args.backbone}, stride 16, {SIZE}×{SIZE}, batch {BATCH}, "
        f"{args.threads} threads, {args.rounds} rounds",
        ("model", "seconds", "time / emanet"),
        [(n, f"{r['seconds']:.3f}", f"{r['time_over_emanet']:.3f}") for n, r in rows.items()],
    )
    ratio = rows["hemnet"]["time_over_emanet"]
    what = f"training step, hemnet of emanet, stride 16, {SIZE}×{SIZE}"
    bar = {"what": what, "measured": ratio, "bar": f"≤ {BAR}", "met": ratio <= BAR}
    console.print(f"bar: hemnet ≤ {BAR} of emanet: {'met' if bar['met'] else 'NOT met'}")
    result = {"rounds": args.rounds, "backbone": args.backbone, "models": rows, "bars": [bar]}
    save(args.json, result)


def new_step(
    name: str, more: dict[str, Any], backbone: str, accelerator: Accelerator
) -> TrainingStep:
    model = hemnet.create_model(name, CLASSES, backbone, 16, **more).train()
    for unit in em_units(model):
        unit.absorbs = name == "hemnet"
    model.to(memory_format=torch.channels_last)
    config = TrainConfig()
    loss, optimizer = SegmentationLoss(config.loss, CLASSES), make_optimizer(model, config.optim)
    return TrainingStep(model, loss, optimizer, config, accelerator)


if __name__ == "__main__":
    main()
