"""Find the faults of a data set before training does."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemnet.data.counts import count_values, file_digest, read_all
from hemnet.data.dataset import FileDataset, SegmentationDataset, read_image, size_mismatch
from hemnet.data.labels import VOID, decode_values, describe_unknown, raw_values
from hemnet.errors import DataError

HELD_OUT = ("val", "test", "val2017", "validation", "testing")
MIXED = ("trainval", "all")  # contain held-out images on purpose


@dataclass(frozen=True)
class Problem:
    kind: str  # missing, unpaired, unreadable, size, values, void, classes, duplicate
    split: str
    message: str  # names the file


@dataclass
class SplitReport:
    images: int
    official: int | None
    widths: tuple[int, int]  # least and greatest
    heights: tuple[int, int]
    pixel_share: dict[str, float]  # of the labelled pixels
    image_count: dict[str, int]  # images that contain the class
    void_share: float  # of all pixels


@dataclass
class Report:
    name: str
    splits: dict[str, SplitReport] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def by_kind(self) -> dict[str, list[Problem]]:
        kinds: dict[str, list[Problem]] = defaultdict(list)
        for problem in self.problems:
            kinds[problem.kind].append(problem)
        return dict(kinds)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"counts": dict(Counter(p.kind for p in self.problems))}


@dataclass
class _PairFindings:
    problems: list[tuple[str, str]]
    size: tuple[int, int] | None  # height, width
    counts: NDArray[np.int64]  # pixels per value, (256,)
    digest: bytes | None  # of the image file


def check_datasets(datasets: list[SegmentationDataset], *, workers: int | None = None) -> Report:
    """Read every pair of the data sets (the splits of one data set) and report."""
    report = Report(datasets[0].info.name)
    origin: dict[bytes, list[tuple[str, str]]] = defaultdict(list)  # digest → (split, file)
    for dataset in datasets:
        report.notes += dataset.notes
        if isinstance(dataset, FileDataset):
            report.problems += _absent(dataset)
        pixels, images = np.zeros(256, np.int64), np.zeros(256, np.int64)
        sizes: set[tuple[int, int]] = set()
        name = f"{dataset.info.name} {dataset.split}"
        found_all = read_all(partial(_read_pair, dataset), range(len(dataset)), name, workers)
        for index, seen in enumerate(found_all):
            report.problems += [Problem(kind, dataset.split, text) for kind, text in seen.problems]
            pixels += seen.counts
            images += seen.counts > 0
            sizes |= {seen.size} if seen.size else set()
            if seen.digest is not None and isinstance(dataset, FileDataset):
                origin[seen.digest].append((dataset.split, str(dataset.pairs[index].image)))
        report.splits[dataset.split] = found = _summarise(dataset, pixels, images, sizes)
        if sum(n > 0 for n in found.pixel_share.values()) < 2 and found.images > 1:
            report.problems += _one_class(dataset, pixels)
        empty = [name for name, count in found.image_count.items() if not count]
        if empty:
            report.notes.append(f"{dataset.split}: no pixel of {', '.join(empty)}.")
    report.problems += _duplicates(origin)
    return report


def _one_class(dataset: SegmentationDataset, pixels: NDArray[np.int64]) -> list[Problem]:
    """Labels of a single class, such as binary masks of 0 and 255."""
    only = [n for n, c in zip(dataset.info.classes, pixels, strict=False) if c]
    if not only:
        return []  # all void or unreadable, which is said of each file
    text = f"every labelled pixel is {only[0]!r}"
    if pixels[VOID]:
        text += (
            f", and {pixels[VOID] / pixels.sum():.1%} of the pixels are 255, which is void and "
            "does not count. If 255 is the foreground of binary masks: `label_map=0:0,255:1`"
        )
    return [Problem("classes", dataset.split, f"{dataset.info.name} {dataset.split}: {text}.")]


def _absent(dataset: FileDataset) -> list[Problem]:
    lost = [
        Problem("missing", dataset.split, f"{path}: listed, but not there")
        for pair in dataset.missing
        for path in (pair.image, pair.label)
        if not path.is_file()
    ]
    return lost + [Problem("unpaired", dataset.split, text) for text in dataset.unpaired]


def _read_pair(dataset: SegmentationDataset, index: int) -> _PairFindings:
    if not isinstance(dataset, FileDataset):
        try:
            _, mask = dataset.read(index)
        except DataError as error:
            return _PairFindings([("unreadable", str(error))], None, np.zeros(256, np.int64), None)
        height, width = mask.shape
        return _PairFindings([], (height, width), count_values(mask.numpy()), None)
    pair, problems = dataset.pairs[index], []
    size, digest, counts = None, None, np.zeros(256, np.int64)
    try:
        height, width = read_image(pair.image).shape[1:]
        size = (height, width)
        digest = file_digest(pair.image)
    except DataError as error:
        problems.append(("unreadable", str(error)))
    try:
        labels, unknown = decode_values(raw_values(pair.label), dataset.encoding)
    except DataError as error:
        return _PairFindings([*problems, ("unreadable", str(error))], size, counts, digest)
    counts = count_values(labels)
    if unknown:
        problems.append(("values", describe_unknown(pair.label, unknown, dataset.encoding)))
    elif counts[VOID] == labels.size:
        problems.append(("void", f"{pair.label}: every pixel is void; it teaches nothing."))
    if size is not None and size != labels.shape:
        problems.append(("size", size_mismatch(pair, size, labels.shape)))
    return _PairFindings(problems, size, counts, digest)


def _summarise(
    dataset: SegmentationDataset,
    pixels: NDArray[np.int64],
    images: NDArray[np.int64],
    sizes: set[tuple[int, int]],
) -> SplitReport:
    names = dataset.info.classes
    labelled, total = int(pixels[: len(names)].sum()), int(pixels.sum())
    heights, widths = zip(*(sizes or {(0, 0)}), strict=True)
    return SplitReport(
        images=len(dataset),
        official=dataset.info.splits.get(dataset.split),
        widths=(min(widths), max(widths)),
        heights=(min(heights), max(heights)),
        pixel_share={name: int(pixels[i]) / max(1, labelled) for i, name in enumerate(names)},
        image_count={name: int(images[i]) for i, name in enumerate(names)},
        void_share=int(pixels[VOID]) / max(1, total),
    )


def _duplicates(origin: dict[bytes, list[tuple[str, str]]]) -> list[Problem]:
    """Held-out images that are also in a training split, by content."""
    found = []
    for places in origin.values():
        held = [place for place in places if place[0] in HELD_OUT]
        free = [place for place in places if place[0] not in HELD_OUT + MIXED]
        if held and free:
            text = f"{held[0][1]}: the same picture as {free[0][1]} of {free[0][0]}"
            found.append(Problem("duplicate", held[0][0], text))
    return found
