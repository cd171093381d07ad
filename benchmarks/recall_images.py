"""Recall on images: `data.name: recall`, learned from pixels by one small network.

    python benchmarks/recall_images.py --out recall_images.jsonl [--units hem attention]

Images of 64×64 with 2 to 12 groups. All units stand in the same place: behind three convolutions
of stride 4 in all, which see 15 pixels, less than the gap between a lamp and its things. What is
counted are the pixels of things: `accuracy` is the share where of lit and unlit the right one has
the larger logit, `labelled` the share where it has the largest of all four classes, so that the
thing has been found as well. "Majority" is what the lamps' states give, all that a mean can say.

Appends one line of JSON for every run and skips those that are in the file already.
"""

from __future__ import annotations

import argparse
import functools
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

import hemnet
from hemnet.data import VOID, Recall
from hemnet.data.recall import LIT, UNLIT
from hemnet.nn.geometry import upsample
from recall import UNITS, WIDTH, Case, all_cases, read, run_all, table

SIZE, STRIDE = 64, 4
IMAGES, TEST_IMAGES, TEST_SEED = 4000, 400, 11
BATCH, RATE, THINGS = 16, 5e-3, 4.0  # weight of things in the loss: 15% of the pixels
CLASSES = len(Recall.info.classes)


class Network(nn.Module):
    """Images B,3,H,W → logits B,4,H/4,W/4."""

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            *_convolution(3, WIDTH // 2, 3, 2),
            *_convolution(WIDTH // 2, WIDTH, 3, 2),
            *_convolution(WIDTH, WIDTH, 3),
            nn.Conv2d(WIDTH, WIDTH, 1),
        )
        self.decode = nn.Sequential(*_convolution(WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, CLASSES, 1))
        self.unit = unit

    def forward(self, images: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        return self.decode(self.unit(self.encode(images.float() / 128 - 1)))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, ...]:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return layer, nn.BatchNorm2d(outputs), nn.ReLU()


def learn(case: Case) -> dict[str, Any]:
    start = time.perf_counter()
    images, masks = drawn("train", case.seed, IMAGES, case.groups)
    torch.manual_seed(case.seed)
    unit = UNITS[case.unit](case.bases, **case.options)
    network = Network(unit).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, case.steps)
    weights = torch.tensor([1.0, 1.0, THINGS, THINGS])
    for _ in range(case.steps):
        chosen = torch.randint(IMAGES, (BATCH,))
        x, labels = images[chosen], masks[chosen]
        for axis in (-1, -2):
            if torch.rand(()) < 0.5:
                x, labels = x.flip(axis), labels.flip(axis)
        logits = network(x)
        # At the pixels on which features are centred: the others add time, not looks.
        labels = labels[:, ::STRIDE, ::STRIDE].long()
        loss = F.cross_entropy(logits, labels, weights, ignore_index=VOID)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return {
        **test(network.eval(), case.groups),
        "health": str(unit.health()) if hasattr(unit, "health") else None,
        "seconds": time.perf_counter() - start,
        "majority": majority(case.groups),
    }


@torch.no_grad()
def test(network: nn.Module, groups: int | None) -> dict[str, float]:
    images, masks = drawn("val", TEST_SEED, TEST_IMAGES, groups)
    states, labels = [], []
    for part in images.split(40):
        logits = upsample(network(part), part.shape[-2:], STRIDE)
        states.append(logits[:, LIT:].argmax(1) + LIT)
        labels.append(logits.argmax(1))
    return {
        "accuracy": accuracy(torch.cat(states), masks),
        "labelled": accuracy(torch.cat(labels), masks),
    }


def majority(groups: int | None) -> float:
    data = Recall("val", size=SIZE, length=TEST_IMAGES, seed=TEST_SEED, groups=groups)
    _, masks = drawn("val", TEST_SEED, TEST_IMAGES, groups)
    return accuracy(torch.stack([data.guess(i, mask) for i, mask in enumerate(masks)]), masks)


def accuracy(answers: Tensor, masks: Tensor) -> float:
    things = (masks == LIT) | (masks == UNLIT)
    return 100 * float((answers == masks)[things].float().mean())


@functools.cache
def drawn(split: str, seed: int, count: int, groups: int | None) -> tuple[Tensor, Tensor]:
    """Images B,3,H,W and masks B,H,W in bytes."""
    data = Recall(split, size=SIZE, length=count, seed=seed, groups=groups)
    images, masks = zip(*(data.read(index) for index in range(count)), strict=True)
    return torch.stack(images), torch.stack(masks)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("recall_images.jsonl"))
    parser.add_argument("--units", nargs="+", choices=UNITS, default=list(UNITS))
    parser.add_argument("--options", type=yaml.safe_load, default={}, metavar="YAML")
    parser.add_argument("--bases", nargs="+", type=int, default=[32])
    parser.add_argument("--groups", type=int, help="in every image (default: 2 to 12)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", hemnet.BasesWarning)  # a collapse is among the results
    run_all(all_cases(args, [args.groups]), args.out, learn)
    table(read(args.out))


if __name__ == "__main__":
    main()
