"""Images per second of the 513 training pipeline, beside plain torchvision, and of `scenes`.

    python benchmarks/data.py --json benchmarks/results/data.json

VOC-like JPEGs (500×375 and its like, about 100 KB) and palette labels are made on the fly. Both
pipelines do the same work: decode, scale by 0.5–2, pad with the mean colour and 255, crop 513,
flip, normalise; batches of 8 arrive in the main process. Variants alternate within each round;
the ratio is the median over the rounds.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from common import arguments, console, parse, save, show
from hemnet.data import Augmentation, Scenes, open_dataset, training_batches
from hemnet.data.scene_renderer import smooth_noise
from hemnet.data.transforms import IMAGENET_MEAN, IMAGENET_STD

CROP, BATCH = 513, 8
MEAN_COLOUR = [round(255 * value) for value in IMAGENET_MEAN]


def make_images(root: Path, count: int) -> None:
    """Photograph-like JPEGs: structure at all scales, so that decoding costs what it does."""
    rng = np.random.default_rng(0)
    sizes = [(375, 500), (333, 500), (500, 375), (500, 334)]
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    for number in range(count):
        height, width = sizes[number % len(sizes)]
        pixels = np.full((3, height, width), 128.0)
        for knots, weight in ((4, 50), (16, 25), (64, 12), (180, 8)):
            pixels += weight * smooth_noise(rng, height, width, knots, knots, 3)
        pixels = pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
        Image.fromarray(pixels).save(root / "images" / f"{number}.jpg", quality=93)
        labels = smooth_noise(rng, height, width, 5, 5, 21).argmax(0).astype(np.uint8)
        picture = Image.fromarray(labels)
        picture.putpalette(list(range(256)) * 3)
        picture.save(root / "labels" / f"{number}.png")
    (root / "classes.txt").write_text("\n".join(f"class {i}" for i in range(21)))


class Reference(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same augmentation as one would write it with torchvision's own parts."""

    def __init__(self, root: Path, length: int) -> None:
        self.images = sorted((root / "images").iterdir())
        self.root, self.length = root, length
        self.rest = v2.Compose(
            [
                v2.RandomCrop(
                    CROP,
                    pad_if_needed=True,
                    fill={tv_tensors.Image: MEAN_COLOUR, tv_tensors.Mask: 255},
                ),
                v2.RandomHorizontalFlip(),
                v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
                v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
            ]
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        path = self.images[index % len(self.images)]
        image = tv_tensors.Image(F.pil_to_tensor(Image.open(path).convert("RGB")))
        label = Image.open(self.root / "labels" / f"{path.stem}.png")
        mask = tv_tensors.Mask(torch.from_numpy(np.array(label)))
        factor = 0.5 + 1.5 * torch.rand(()).item()
        size = [max(1, round(side * factor)) for side in image.shape[1:]]
        image = F.resize(image, size, antialias=True)
        mask = F.resize(mask, size, interpolation=v2.InterpolationMode.NEAREST_EXACT)
        image, mask = self.rest(image, mask)
        return image.as_subclass(torch.Tensor), mask.as_subclass(torch.Tensor).long()


def batches(variant: str, root: Path, workers: int) -> Iterator[Any]:
    if variant == "hemnet":
        dataset = open_dataset("folder", root, "all")
        return iter(training_batches(dataset, Augmentation(), batch_size=BATCH, workers=workers))
    reference = Reference(root, 10**6)
    return iter(
        DataLoader(reference, BATCH, shuffle=True, num_workers=workers, worker_init_fn=one_thread)
    )


def one_thread(_: int) -> None:
    torch.set_num_threads(1)


def rate(stream: Iterator[Any], images: int) -> float:
    start = time.perf_counter()
    for _ in itertools.islice(stream, images // BATCH):
        pass
    return images / (time.perf_counter() - start)


def measure_pipeline(root: Path, workers: int, rounds: int, images: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {"hemnet": [], "torchvision": []}
    for _ in range(rounds):
        for variant, rates in found.items():
            stream = batches(variant, root, workers)
            rate(stream, 2 * BATCH * max(1, workers))  # workers start and caches fill
            rates.append(rate(stream, images))
            del stream
    ratios = [a / b for a, b in zip(found["hemnet"], found["torchvision"], strict=True)]
    return {
        "workers": workers,
        **{name: statistics.median(rates) for name, rates in found.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def measure_scenes(rounds: int, images: int = 200) -> dict[str, Any]:
    """Scenes per second of one core: by its clock, and by the wall's if others share it."""
    scenes = Scenes("train", size=128)
    clocks = {"core": time.process_time, "wall": time.perf_counter}
    rates: dict[str, list[float]] = {name: [] for name in clocks}
    for number in range(rounds):
        start = {name: clock() for name, clock in clocks.items()}
        for index in range(images):
            scenes.read(number * images + index)
        for name, clock in clocks.items():
            rates[name].append(images / (clock() - start[name]))
    return {name: statistics.median(found) for name, found in rates.items()} | {"rates": rates}


def main() -> None:
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--images", type=int, default=160, help="per variant and round")
    parser.set_defaults(threads=1)
    args = parse(parser)
    results: dict[str, Any] = {"pipeline": []}
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder), 64)
        for workers in (0, 1, 2):
            found = measure_pipeline(Path(folder), workers, args.rounds, args.images)
            results["pipeline"].append(found)
    show(
        "images per second",
        ("workers", "hemnet", "torchvision", "ratio"),
        [
            (str(row["workers"]), *(f"{row[key]:.1f}" for key in ("hemnet", "torchvision")),
             f"{row['ratio']:.2f}")
            for row in results["pipeline"]
        ],
    )  # fmt: skip
    results["scenes"] = scenes = measure_scenes(args.rounds)
    console.print(
        f"scenes of 128×128: {scenes['core']:.0f} images per second of one core "
        f"({scenes['wall']:.0f} by the wall clock)"
    )
    save(args.json, results)


if __name__ == "__main__":
    main()
