"""Does the attention unit help on real images? The same head with different units, run by run.

    python benchmarks/real_data.py camvid --root data/camvid --weights FILE --out runs.jsonl
    python benchmarks/real_data.py voc --root data/VOCdevkit --weights FILE --out runs.jsonl \\
        --units plain emanet hemnet "hemnet:variance=auto,kernel=rbf" --seeds 0 1 2 --rate 0.02

A unit is "plain" (none), "emanet", "hemnet", "learned" (hemnet with learned step sizes),
"nonlocal", "pooling" or "grid" (`control_units.py`), or "pspnet" (a head of its own), with options
after a colon. Runs of one seed are paired: the backbone, the layers around the unit, the crops and
their order are the same, so that differences within a seed say more than the means do.
Each run is appended to --out as a line of JSON, and is not repeated when it is there already.
`--holdout` validates on the last fifth of the training images instead: rates are chosen there.
`--leave-out 0001TP` validates on the training images whose names begin so, a film of CamVid, and
trains on the others: how well does a head do in a street it has never seen?
`--window 19 25` trains heads alone, on windows of features that the ImageNet backbone gives of
whole images, kept in --store for all units and seeds: a minute a run. With `--freeze-stages 3`
these are features of the third stage, and the later ones are trained along. `--frozen` trains
heads on features of random crops, which have to be computed for every seed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

import hemnet
from common import PixelLoss, console
from control_units import AttentionPooling, GridMeans
from hemnet.data import Augmentation, Batch, evaluation_batches, open_dataset, training_batches
from hemnet.data.dataset import Subset
from hemnet.inference.metrics import Evaluation, confusion_matrix
from hemnet.nn.geometry import upsample
from hemnet.nn.heads import HEADS
from hemnet.nn.heads.attention import AttentionHead
from hemnet.nn.heads.non_local import NonLocalAttention
from hemnet.training.accelerator import computing
from hemnet.training.config import OptimConfig, RunConfig, TrainConfig
from hemnet.training.optim import make_optimizer
from hemnet.training.setup import freeze_stages
from hemnet.training.step import TrainingStep
from stored_features import COARSE, SHORT_SIDES, cut, stored, window_batch

Labelled = tuple[Tensor, Tensor]  # images or features, and labels
OPTIONAL = ("optimizer", "class_weights", "freeze_stages", "short_sides", "leave_out")
MORE = (8,)  # iterations at evaluation, beside those of training


class NoUnit(nn.Module):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return x


UNITS: dict[str, Any] = {
    "plain": lambda channels: NoUnit(),
    "emanet": hemnet.EMAttention,
    "hemnet": hemnet.HighwayEMAttention,
    "learned": lambda channels, **options: hemnet.HighwayEMAttention(
        channels, step_size=nn.Parameter(torch.full((3,), 0.5)), **options
    ),
    "nonlocal": NonLocalAttention,
    "pooling": AttentionPooling,
    "grid": GridMeans,
}


def unit_options(text: str) -> dict[str, Any]:
    def value(text: str) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text  # a word

    pairs = (part.split("=", 1) for part in text.split(",") if part)
    return {key: value(text) for key, text in pairs}


def head_around(unit: nn.Module) -> type[AttentionHead]:
    """The attention head with this unit."""
    return type("UnitHead", (AttentionHead,), {"UNIT": staticmethod(lambda _: unit)})


def build(unit: str, classes: int, seed: int, args: argparse.Namespace) -> hemnet.Segmenter:
    """A segmenter whose layers outside the unit depend on the seed alone."""
    torch.manual_seed(seed)
    model = hemnet.create_model(
        "fcn", classes, args.backbone, args.stride, weights=args.weights, resnet_v1=args.resnet_v1
    )
    features = model.backbone.features
    torch.manual_seed(seed)
    around = head_around(nn.Identity())(features, classes, args.channels)
    torch.manual_seed(1000 + seed)
    name, _, rest = unit.partition(":")
    if name == "pspnet":
        model.head = HEADS[name](features, classes, channels=args.channels)
    else:
        inner = UNITS[name](args.channels, **unit_options(rest))
        model.head = head_around(inner)(features, classes, args.channels)
        model.head.load_state_dict(around.state_dict(), strict=False)
    return model.to(memory_format=torch.channels_last)


class FromFeatures(nn.Module):
    """What follows a segmenter's frozen stages: features B,C,h,w → logits of every label.

    Labels are those of every `coarse`-th pixel.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, stride: int) -> None:
        super().__init__()
        self.backbone, self.head, self.stride = backbone, head, stride

    def forward(self, features: Tensor, size: torch.Size, coarse: int) -> Tensor:
        x, enlarge = self.backbone(features), self.stride // coarse
        rows, columns = (
            torch.arange(n) * enlarge < m for n, m in zip(x.shape[-2:], size, strict=True)
        )
        inside = rows[:, None] & columns
        logits = self.head([x], None if inside.all() else inside[None])
        return upsample(logits, size, enlarge)


def logits_of(model: nn.Module, images: Tensor, labels: Tensor, coarse: int) -> Tensor:
    images = images.float().contiguous(memory_format=torch.channels_last)
    if isinstance(model, FromFeatures):
        return model(images, labels.shape[-2:], coarse)
    return model(images)


@torch.inference_mode()
def features_of(
    model: hemnet.Segmenter, batches: Iterable[Labelled], coarse: int
) -> list[Labelled]:
    """The same batches as features of the frozen backbone, with every `coarse`-th label."""
    model.eval()
    return [
        (
            model.backbone(images.float().contiguous(memory_format=torch.channels_last))[-1].half(),
            masks[:, ::coarse, ::coarse].clone(),
        )
        for images, masks in batches
    ]


def optimization(args: argparse.Namespace) -> OptimConfig:
    if args.optimizer == "sgd":
        return OptimConfig(steps=args.steps, lr=args.rate, warmup=0, bias_lr_mult=1.0)
    return OptimConfig(
        name="adamw", steps=args.steps, lr=args.rate, warmup=args.steps // 20, bias_lr_mult=1.0,
        head_lr_mult=2.0, weight_decay=0.01,
    )  # fmt: skip


def train(
    model: nn.Module,
    batch_of: Callable[[int], Labelled],
    config: OptimConfig,
    seed: int,
    weights: Tensor | None,
) -> float:
    """With a poly schedule; returns the mean loss of the last tenth."""
    loss = PixelLoss(weights, partial(logits_of, coarse=COARSE))
    losses = []
    run = RunConfig(device="cpu", seed=seed)
    with computing(run) as accelerator:
        whole = TrainConfig(optim=config, run=run)
        change = TrainingStep(model, loss, make_optimizer(model, config), whole, accelerator)
        for step in range(config.steps):
            images, labels = batch_of(step)
            batch = Batch(images, labels.long(), [])
            losses.append(float(change(step, iter([batch]))))
    return statistics.mean(losses[-max(1, len(losses) // 10) :])


@torch.inference_mode()
def evaluate(model: nn.Module, batches: list[Labelled], classes: int) -> dict[str, Any]:
    model.eval()
    confusion = torch.zeros(classes, classes, dtype=torch.long)
    for images, masks in batches:
        logits = logits_of(model, images, masks, 1)
        confusion += confusion_matrix(masks, logits.argmax(dim=1), classes)
    found = Evaluation(confusion, tuple(map(str, range(classes))))
    iou = [None if v is None else round(v, 2) for v in found.iou.values()]
    return {"miou": found.miou, "accuracy": found.pixel_accuracy, "iou": iou}


def summary_table(runs: list[dict[str, Any]]) -> Table:
    """Means over seeds, and the paired difference to the plain head with its standard error."""
    shown = Table("unit", "rate", "seeds", "mIoU", "± sd", "− plain", "± se", "accuracy", "loss")
    by_unit: dict[tuple[str, float], dict[int, dict[str, Any]]] = {}
    for run in runs:
        by_unit.setdefault((run["unit"], run["rate"]), {})[run["seed"]] = run
    for (unit, rate), seeds in by_unit.items():
        found = [run["miou"] for run in seeds.values()]
        plain = by_unit.get(("plain", rate), {})
        gains = [run["miou"] - plain[s]["miou"] for s, run in seeds.items() if s in plain]
        several = len(gains) > 1
        shown.add_row(
            unit, f"{rate:g}", str(len(found)), f"{statistics.mean(found):.2f}",
            f"{statistics.stdev(found):.2f}" if len(found) > 1 else "",
            f"{statistics.mean(gains):+.2f}" if gains else "",
            f"{statistics.stdev(gains) / math.sqrt(len(gains)):.2f}" if several else "",
            f"{statistics.mean(run['accuracy'] for run in seeds.values()):.2f}",
            f"{statistics.mean(run['loss'] for run in seeds.values()):.3f}",
        )  # fmt: skip
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", choices=("camvid", "voc"))
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--weights", type=Path, required=True, help="ImageNet weights")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, one a run")
    parser.add_argument("--units", nargs="+", default=["plain", "emanet", "hemnet"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--backbone", default="tf_efficientnet_lite0")
    parser.add_argument("--resnet-v1", action="store_true", help="the weights are of a v1 ResNet")
    parser.add_argument("--stride", type=int, default=16)
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--crop", type=int, default=193)
    parser.add_argument("--scale", nargs=2, type=float, default=(0.5, 2.0), help="of images")
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--class-weights", nargs="+", type=float, help="of the loss, one a class")
    parser.add_argument("--freeze-stages", type=int, default=0, help="first ones of the backbone")
    parser.add_argument("--frozen", action="store_true", help="train heads on frozen features")
    parser.add_argument("--window", nargs=2, type=int, help="of stored features, rows and columns")
    parser.add_argument(
        "--short-sides", nargs="+", type=int, default=list(SHORT_SIDES),
        help="sizes of the images that windows are taken from, in strides",
    )  # fmt: skip
    parser.add_argument("--store", type=Path, default=Path("runs/features"), help="for --window")
    held = parser.add_mutually_exclusive_group()
    held.add_argument("--holdout", action="store_true", help="validate on a fifth of train")
    held.add_argument("--leave-out", metavar="NAME", help="validate on train's images NAME*")
    args = parser.parse_args()
    stage = args.freeze_stages - 1 if args.window else -1  # whose features are trained on

    split = "trainaug" if args.data == "voc" else "train"
    images: Any = open_dataset(args.data, root=args.root, split=split, skip_missing=True)
    judge: Any = open_dataset(args.data, root=args.root, split="val", skip_missing=True)
    classes = len(images.info.classes)
    held_out: list[int] = []
    if args.holdout:  # the frames of a film are alike: not every fifth
        held_out = list(range(len(images) * 4 // 5, len(images)))
    elif args.leave_out:
        held_out = [i for i in range(len(images)) if images.id(i).startswith(args.leave_out)]
        if not held_out:
            parser.error(f"--leave-out {args.leave_out}: no training image has such a name")
    kept = sorted(set(range(len(images))) - set(held_out))
    learn = Subset(images, kept)
    if held_out:
        judge = Subset(images, held_out)
    protocol = {
        "data": args.data, "backbone": args.backbone, "stride": args.stride,
        "channels": args.channels, "steps": args.steps, "batch": args.batch, "crop": args.crop,
        "rate": args.rate, "holdout": args.holdout, "frozen": args.frozen,
        "scale": list(args.scale),
    }  # fmt: skip
    if args.window:
        del protocol["crop"], protocol["scale"]
        protocol["window"] = args.window
    for name in OPTIONAL:
        if getattr(args, name) != parser.get_default(name):
            protocol[name] = getattr(args, name)
    weights = None if args.class_weights is None else torch.tensor(args.class_weights)
    runs = []
    if args.out.exists():
        runs = [json.loads(line) for line in args.out.read_text().splitlines()]
        other = set(OPTIONAL) - protocol.keys()
        runs = [r for r in runs if protocol.items() <= r.items() and not r.keys() & other]
    judged: list[Labelled] = []
    for seed in args.seeds:
        missing = [u for u in args.units if (u, seed) not in {(r["unit"], r["seed"]) for r in runs}]
        if not missing:
            continue
        first = build("plain", classes, seed, args)
        view = Augmentation(
            crop=(args.crop, args.crop), scale=tuple(args.scale),
            mean=first.config.mean, std=first.config.std,
        )  # fmt: skip
        if args.window:
            name = f"{args.data}_{args.backbone}_{args.stride}"
            if stage >= 0:
                name += f"_stage{args.freeze_stages}"
            finer = args.stride // first.backbone.strides[stage]
            sizes = args.short_sides
            kind = "train" if sizes == list(SHORT_SIDES) else "_".join(["train", *map(str, sizes)])
            learned = stored(first, images, args.store / f"{name}_{kind}.pt", stage, sizes)
            learned = [learned[i] for i in kept]
            draw = partial(window_batch, learned, args.window, args.batch, args.stride, finer, seed)
            if not judged:
                judges = "holdout" if args.holdout else args.leave_out or "val"
                file = args.store / f"{name}_{judges}.pt"
                whole = stored(first, judge, file, stage)
                judged = [(f[None], m[None]) for each in whole for f, m in each]
        else:
            source = iter(training_batches(learn, view, batch_size=args.batch, seed=seed))
            crops = ((b.images.half(), b.masks.byte()) for b in islice(source, args.steps))
            draw = (features_of(first, crops, COARSE) if args.frozen else list(crops)).__getitem__
            if not judged:
                whole = ((b.images.half(), b.masks.byte()) for b in evaluation_batches(judge, view))
                judged = features_of(first, whole, 1) if args.frozen else list(whole)
        for unit in missing:
            start = time.perf_counter()
            model = build(unit, classes, seed, args)
            run = {**protocol, "unit": unit, "seed": seed}
            model.train()
            trained: nn.Module = model
            if args.frozen or args.window:
                after = cut(model.backbone, stage)[1]
                trained = FromFeatures(after, model.head, args.stride)
            else:
                freeze_stages(model, args.freeze_stages)
            run["loss"] = train(trained, draw, optimization(args), seed, weights)
            run |= evaluate(trained, judged, classes)
            run["seconds"] = round(time.perf_counter() - start)
            inner = getattr(model.head, "attention", None)
            if hasattr(inner, "health"):
                run["more_iterations"] = {}
                for iterations in MORE:
                    inner.eval_iterations = iterations
                    run["more_iterations"][iterations] = evaluate(trained, judged, classes)["miou"]
                inner.eval_iterations = None
                run["health"] = str(inner.health())
                run["gain"] = inner.norm.weight.abs().mean().item() * inner.gain.factor
            runs.append(run)
            with args.out.open("a") as lines:
                lines.write(json.dumps(run, ensure_ascii=False) + "\n")
            console.print(f"{unit} seed {seed}: mIoU {run['miou']:.2f} in {run['seconds']} s")
    console.print(summary_table([run for run in runs if run["unit"] in args.units]))


if __name__ == "__main__":
    main()
