"""Recall on images: a thing's state is that of the far-away lamp that looks like it.

    python benchmarks/recall_images.py --out recall_images.jsonl [--units hem emanet] [--seeds 3]
    python benchmarks/recall_images.py --out recall_images.jsonl --table

One small network of stride 4 whose features see 23 pixels, and a unit in it, learn the images of
`data.name: recall`. What counts is how many pixels of things are given the right one of the two
states; "majority" is the same figure for the answer of most lamps, all that a mean can say. Every
unit sees the same images. `learn` appends one line of JSON for every run and skips those that are
there. The images are drawn once and kept in --store.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn

import hemnet
from common import console
from hemnet.data import VOID, Recall
from hemnet.data.recall import LIT, UNLIT
from recall import UNITS, WIDTH, WITHOUT_BASES, read

STRIDE, BATCH, RATE = 4, 16, 3e-3


class Images(NamedTuple):
    """images B,3,H,W and, at every fourth pixel, labels and the majority's answer: B,h,w."""

    images: Tensor
    labels: Tensor
    guess: Tensor


def draw(split: str, count: int, size: int, groups: int | None, store: Path) -> Images:
    path = store / f"recall-{split}-{count}-{size}-{groups}.pt"
    if path.is_file():
        return Images(*torch.load(path))
    data = Recall(split, size=size, length=count, groups=groups)
    images, labels, guesses = [], [], []
    for index in range(count):
        image, mask = data.read(index)
        images.append(image)
        labels.append(mask[::STRIDE, ::STRIDE])
        guesses.append(data.guess(index, mask)[::STRIDE, ::STRIDE])
    found = Images(torch.stack(images), torch.stack(labels), torch.stack(guesses))
    store.mkdir(parents=True, exist_ok=True)
    torch.save(tuple(found), path)
    return found


def convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


class Network(nn.Module):
    """Images B,3,H,W → logits B,4,H/4,W/4."""

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            convolution(3, 24, 2),
            convolution(24, 48, 2),
            convolution(48, 48),
            convolution(48, 48),
            nn.Conv2d(48, WIDTH, 1),
        )
        self.decode = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 1), nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 1), nn.ReLU(), nn.Conv2d(WIDTH, 4, 1),
        )  # fmt: skip
        self.unit = unit

    def forward(self, images: Tensor) -> Tensor:
        return self.decode(self.unit(self.encode(images.float() / 127.5 - 1)))


def things(labels: Tensor) -> Tensor:
    return (labels == LIT) | (labels == UNLIT)


@torch.no_grad()
def accuracy(network: nn.Module, data: Images) -> float:
    """Share of the pixels of things whose state is right, in percent."""
    right = asked = 0
    for images, labels in zip(data.images.split(50), data.labels.split(50), strict=True):
        logits = network(images)
        state = torch.where(logits[:, LIT] >= logits[:, UNLIT], LIT, UNLIT)
        wanted = things(labels)
        right, asked = right + int((state == labels)[wanted].sum()), asked + int(wanted.sum())
    return 100 * right / asked


def majority(data: Images) -> float:
    wanted = things(data.labels)
    return 100 * float((data.guess == data.labels)[wanted].float().mean())


def learn(case: dict[str, Any], train: Images, test: Images) -> dict[str, Any]:
    start = time.process_time()
    torch.manual_seed(case["seed"])
    unit = UNITS[case["unit"]](case["bases"])
    network = Network(unit).to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    optimizer = torch.optim.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, case["steps"])
    weights = torch.tensor([1.0, 2.0, 4.0, 4.0])
    trace = []
    for step in range(1, case["steps"] + 1):
        chosen = torch.randint(len(train.images), (BATCH,), generator=generator)
        images, labels = train.images[chosen], train.labels[chosen].long()
        loss = F.cross_entropy(network(images), labels, weights, ignore_index=VOID)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            trace.append(round(accuracy(network.eval(), Images(*(v[:100] for v in test))), 1))
            network.train()
            console.print(case["unit"], case["seed"], step, f"loss {loss.item():.3f}", trace[-1])
    found = accuracy(network.eval(), test)
    health = str(unit.health()) if hasattr(unit, "health") else None
    seconds = round(time.process_time() - start)
    return {"accuracy": found, "health": health, "trace": trace, "seconds": seconds}


def table(rows: list[dict[str, Any]]) -> None:
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        found[row["unit"], str(row["bases"] or "")].append(row["accuracy"])
    shown = Table("unit", "K", "median", "worst", "runs", title="State of things, percent right")
    shown.add_row("majority", "", f"{rows[0]['majority']:.1f}", "", "")
    for (unit, bases), values in found.items():
        middle = f"{statistics.median(values):.1f}"
        shown.add_row(unit, bases, middle, f"{min(values):.1f}", str(len(values)))
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("recall_images.jsonl"))
    parser.add_argument("--store", type=Path, default=Path("recall_images"))
    parser.add_argument("--table", action="store_true", help="print what is in --out")
    parser.add_argument("--units", nargs="+", choices=UNITS, default=["hem", "emanet", "mean"])
    parser.add_argument("--bases", type=int, default=32)
    parser.add_argument("--groups", type=int, help="in each image (default: 2 to 12)")
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--train", type=int, default=4000, help="images to learn from")
    parser.add_argument("--test", type=int, default=400)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.table:
        return table(read(args.out))
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", hemnet.BasesWarning)  # a collapse is among the results
    train = draw("train", args.train, args.size, args.groups, args.store)
    test = draw("val", args.test, args.size, args.groups, args.store)
    names = ("unit", "bases", "groups", "size", "train", "steps", "seed")
    done = [{name: row[name] for name in names} for row in read(args.out)]
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for unit in args.units:
            bases = None if unit in WITHOUT_BASES else args.bases
            values = (unit, bases, args.groups, args.size, args.train, args.steps, seed)
            case = dict(zip(names, values, strict=True))
            if case in done:
                continue
            row = case | learn(case, train, test) | {"majority": majority(test)}
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with args.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            console.print(row, highlight=False, soft_wrap=True)
    return None


if __name__ == "__main__":
    main()
