"""Recall on photographs: which tiles are of one photograph, and what does the marked one say?

    python benchmarks/photo_recall.py learn --root VOCdevkit --weights FILE --out runs.jsonl
    python benchmarks/photo_recall.py table --out runs.jsonl
    python benchmarks/photo_recall.py show --root VOCdevkit --out mosaics.png

A built task on real images. A mosaic has two tiles of each of six photographs, in random places:
parts of the photograph that do not overlap, drawn at random. One of the two is marked by a white or
a black disc; every position of the other is to be labelled with the colour of that disc. So the
label of a thing depends on a tile elsewhere that looks like its own. How many discs are white, all
that a mean over the image can tell, gives the majority's figure and no more.

Heads are those of `real_data.py`, on features that the frozen ImageNet backbone gives of each tile
by itself. Training and validation share no photograph. Every run is appended to --out as a line of
JSON, and is not repeated when it is there already.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from PIL import Image
from rich.table import Table
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as tv

from common import console
from hemnet.data import VOID, open_dataset
from hemnet.data.transforms import normalise
from hemnet.training.config import OptimConfig
from real_data import build, train

STRIDE, TILE, SHORT_SIDE = 16, 65, 160  # pixels; a tile has 5×5 features
PHOTOGRAPHS, ROWS, COLUMNS = 6, 3, 4
CROPS = 4  # of each half of a photograph
RADII = (11, 15)  # of a disc and of its rim, which has the other colour
TEST_MOSAICS, TEST_SEED = 200, 99
CHANNELS, BATCH = 64, 8
UNITS = [
    "plain", "hemnet:bases=1", "pooling", "grid", "emanet", "hemnet:preset=paper",
    "hemnet:bases=16", "hemnet:bases=64", "nonlocal",
]  # fmt: skip


class Tiles(NamedTuple):
    """Tiles of one photograph or their features: unmarked, and marked black and white."""

    asked: Tensor  # CROPS,…
    marked: Tensor  # CROPS,2,…


class Mosaics(NamedTuple):
    features: Tensor  # B,C,h,w
    labels: Tensor  # B,h,w: 1 where the partner's disc is white; marked tiles are VOID


def tiles_of(image: Tensor, draw: torch.Generator) -> Tiles:
    """Unmarked ones from one half of the photograph, marked ones from the other."""
    image = tv.resize(image, [SHORT_SIDE], antialias=True)
    middle = image.shape[-1] // 2
    halves = [image[..., :middle], image[..., middle:]]
    if torch.rand((), generator=draw) < 0.5:
        halves.reverse()
    asked, marked = (torch.stack([_crop(half, draw) for _ in range(CROPS)]) for half in halves)
    return Tiles(asked, torch.stack([mark(marked, 0), mark(marked, 255)], dim=1))


def _crop(image: Tensor, draw: torch.Generator) -> Tensor:
    top, left = (
        int(torch.randint(side - TILE + 1, (), generator=draw)) for side in image.shape[-2:]
    )
    return image[..., top : top + TILE, left : left + TILE]


def mark(tiles: Tensor, colour: int) -> Tensor:
    """With a disc of this colour in the middle, in a rim of the opposite one."""
    away = torch.arange(TILE) - TILE // 2
    distance = torch.hypot(away[:, None].float(), away.float())
    disc, rim = (distance <= radius for radius in RADII)
    return torch.where(disc, colour, torch.where(rim, 255 - colour, tiles)).to(tiles.dtype)


@torch.inference_mode()
def features(model: Any, images: Any) -> list[Tiles]:
    """What the backbone says of the tiles of every photograph."""
    model.eval()
    found = []
    for i in range(len(images)):
        tiles = tiles_of(images[i][0].as_subclass(Tensor), torch.Generator().manual_seed(i))
        batch = torch.cat([tiles.asked, tiles.marked.flatten(0, 1)])
        batch = normalise(batch, model.config.mean, model.config.std)
        batch = model.backbone.pad(batch).contiguous(memory_format=torch.channels_last)
        seen = model.backbone(batch)[-1].half()
        found.append(Tiles(seen[:CROPS].clone(), seen[CROPS:].unflatten(0, (CROPS, 2)).clone()))
    return found


def mosaics(photographs: list[Tiles], count: int, draw: torch.Generator) -> Mosaics:
    """Mosaics of features, or of pixels if the tiles are pixels."""

    def number(below: int) -> int:
        return int(torch.randint(below, (), generator=draw))

    images, masks = [], []
    for _ in range(count):
        tiles, labels = [], []
        for index in torch.randperm(len(photographs), generator=draw)[:PHOTOGRAPHS].tolist():
            of, state = photographs[index], number(2)
            tiles += [of.asked[number(CROPS)], of.marked[number(CROPS), state]]
            labels += [state, VOID]
        places = torch.randperm(len(tiles), generator=draw).tolist()
        side = tiles[0].shape[-2:]
        rows = torch.stack([tiles[i] for i in places]).unflatten(0, (ROWS, COLUMNS))
        images.append(rows.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2))
        named = torch.tensor([labels[i] for i in places]).view(ROWS, 1, COLUMNS, 1)
        masks.append(named.expand(ROWS, side[0], COLUMNS, side[1]).flatten(2).flatten(0, 1))
    return Mosaics(torch.stack(images), torch.stack(masks))


def accuracy(labels: Tensor, answers: Tensor) -> float:
    asked = labels != VOID
    return 100 * float((labels == answers)[asked].float().mean())


def majority(labels: Tensor) -> float:
    """What the number of white discs gives; white where it is a draw."""
    asked = labels != VOID
    white = ((labels == 1) & asked).sum((1, 2)) * 2 >= asked.sum((1, 2))
    return accuracy(labels, white.long()[:, None, None].expand_as(labels))


class HeadAlone(nn.Module):
    """A segmenter's head on features, with logits at their positions."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor) -> Tensor:
        return self.head([features])


@torch.inference_mode()
def judge(head: nn.Module, test: Mosaics) -> float:
    head.eval()
    answers = [head(part.float()).argmax(1) for part in test.features.split(20)]
    return accuracy(test.labels, torch.cat(answers))


def learn(args: argparse.Namespace) -> None:
    runs = read(args.out)
    network = SimpleNamespace(
        backbone=args.backbone, stride=STRIDE, weights=args.weights, resnet_v1=False,
        channels=CHANNELS,
    )  # fmt: skip
    frozen = build("plain", 2, 0, network)  # type: ignore[arg-type]
    splits = ("trainaug", "val")
    photographs = [
        features(frozen, open_dataset("voc", root=args.root, split=split, skip_missing=True))
        for split in splits
    ]
    test = mosaics(photographs[1], TEST_MOSAICS, torch.Generator().manual_seed(TEST_SEED))
    for seed in args.seeds:
        for unit in args.units:
            protocol = {"unit": unit, "seed": seed, "steps": args.steps, "rate": args.rate}
            if any(protocol.items() <= run.items() for run in runs):
                continue
            head = HeadAlone(build(unit, 2, seed, network).head).train()  # type: ignore[arg-type]

            def batch(step: int, seed: int = seed) -> tuple[Tensor, Tensor]:
                draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
                return mosaics(photographs[0], BATCH, draw)

            optim = OptimConfig(
                name="adamw", steps=args.steps, lr=args.rate, warmup=args.steps // 20,
                bias_lr_mult=1.0, weight_decay=0.01, clip=1.0,
            )  # fmt: skip
            loss = train(head, batch, optim, seed, None)
            run = protocol | {"loss": loss, "accuracy": judge(head, test)}
            run |= {"majority": majority(test.labels), "backbone": args.backbone}
            inner = getattr(head.head, "attention", None)
            if hasattr(inner, "health"):
                run["health"] = str(inner.health())
            runs.append(run)
            with args.out.open("a") as lines:
                lines.write(json.dumps(run, ensure_ascii=False) + "\n")
            console.print(f"{unit} seed {seed}: {run['accuracy']:.1f}% (loss {loss:.3f})")


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(args: argparse.Namespace) -> None:
    runs = read(args.out)
    shown = Table("unit", "steps", "accuracy of each seed", "mean")
    for unit, steps in dict.fromkeys((run["unit"], run["steps"]) for run in runs):
        found = [r["accuracy"] for r in runs if (r["unit"], r["steps"]) == (unit, steps)]
        values = ", ".join(f"{value:.1f}" for value in found)
        shown.add_row(unit, str(steps), values, f"{statistics.mean(found):.1f}")
    console.print(shown)
    if runs:
        console.print(f"the majority: {runs[0]['majority']:.1f}")


def show(args: argparse.Namespace) -> None:
    images = open_dataset("voc", root=args.root, split="val", skip_missing=True)
    photographs = [
        tiles_of(images[i][0].as_subclass(Tensor), torch.Generator().manual_seed(i))
        for i in range(24)
    ]
    pictures = mosaics(photographs, 4, torch.Generator().manual_seed(0)).features
    rows = torch.cat([torch.cat(list(pair), dim=-1) for pair in pictures.split(2)], dim=-2)
    Image.fromarray(rows.permute(1, 2, 0).numpy()).save(args.out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, what in (("learn", learn), ("table", table), ("show", show)):
        command = commands.add_parser(name)
        command.set_defaults(run=what)
        command.add_argument("--out", type=Path, required=True)
        if name != "table":
            command.add_argument("--root", type=Path, required=True, help="VOCdevkit")
        if name == "learn":
            command.add_argument("--weights", type=Path, required=True, help="ImageNet weights")
            command.add_argument("--backbone", default="tf_efficientnet_lite0")
            command.add_argument("--units", nargs="+", default=UNITS)
            command.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
            command.add_argument("--steps", type=int, default=1000)
            command.add_argument("--rate", type=float, default=1e-3)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
