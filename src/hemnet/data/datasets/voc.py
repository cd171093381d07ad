"""PASCAL VOC 2012; `trainaug` adds the labels of SBD."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hemnet.data.class_lists import colour_map, official_ids
from hemnet.data.dataset import Info
from hemnet.data.download import Archive
from hemnet.data.entry import Entry, SplitFiles, pairs_by_id
from hemnet.data.label_conversion import convert, read_mat, write_png
from hemnet.data.labels import raw_values
from hemnet.data.listing import files_under, find_root, read_ids
from hemnet.errors import UserError

CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat"),
    *("chair", "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant"),
    *("sheep", "sofa", "train", "tvmonitor"),
)
COLOURS = colour_map(21)
_FOLDERS = ("VOC2012", "VOCdevkit/VOC2012")
_PARTS = {"train": ("train",), "trainaug": ("train", "aug"), "trainval": ("train", "val")}
_SBD = ("cls", "dataset/cls", "benchmark_RELEASE/dataset/cls", "SBD/cls", "sbd/cls")


def find(root: Path, split: str) -> SplitFiles:
    base = find_root(root, "JPEGImages", _FOLDERS)
    lists = base / "ImageSets" / "Segmentation"
    halves = [lists / "train.txt", lists / "val.txt"]
    if (lists / f"{split}.txt").exists():
        ids = read_ids(lists / f"{split}.txt")
    elif split == "trainval" and all(path.exists() for path in halves):
        ids = [name for path in halves for name in read_ids(path)]
    else:
        parts = _PARTS.get(split, (split,))
        ids = [name for name, part in official_ids("voc2012").items() if part in parts]
    augmented, devkit = base / "SegmentationClassAug", base / "SegmentationClass"
    converted = {path.stem for path in files_under(augmented, (".png",))}
    pairs = [
        pair
        for name in ids
        for pair in pairs_by_id(
            [name], base / "JPEGImages", augmented if name in converted else devkit
        )
    ]
    fix = "Unpack VOCtrainval_11-May-2012.tar again"
    if split == "trainaug":
        fix += ", and make SBD's labels: hemnet data prepare voc"
    return SplitFiles(pairs, fix=f"{fix}.")


def prepare(root: Path, source: Path | None = None) -> str:
    """SegmentationClassAug from the devkit's labels and, for the rest of trainaug, SBD's."""
    base = find_root(root, "JPEGImages", _FOLDERS)
    above = source or root
    sbd = next((above / place for place in _SBD if (above / place).is_dir()), None)
    if sbd is None:
        raise UserError(
            f"{above}: no SBD labels (expected one of {', '.join(_SBD)}). Unpack benchmark.tgz "
            "here, give its folder as `source`, or let `download=True` fetch it."
        )
    target = base / "SegmentationClassAug"
    jobs = []
    for name in official_ids("voc2012"):
        devkit = base / "SegmentationClass" / f"{name}.png"
        jobs.append((devkit if devkit.exists() else sbd / f"{name}.mat", target / f"{name}.png"))
    lost = [raw for raw, png in jobs if not raw.exists() and not png.exists()]
    if lost:
        raise UserError(
            f"{len(lost)} of {len(jobs)} labels are neither in the devkit nor in SBD (first: "
            f"{lost[0]}). Unpack both archives again; nothing was written."
        )
    return convert(_label, jobs)


def _label(job: tuple[Path, Path]) -> None:
    source, target = job
    if source.suffix == ".mat":
        values = np.asarray(read_mat(source, "GTcls")["Segmentation"][0, 0], np.uint8)
    else:
        values = raw_values(source).astype(np.uint8)
    write_png(target, values)


VOC = Entry(
    Info(
        "voc",
        "PASCAL VOC 2012",
        CLASSES,
        COLOURS,
        {"train": 1464, "trainaug": 10582, "trainval": 2913, "val": 1449},
    ),
    find,
    prepare,
    archives=(
        (
            Archive(
                "https://thor.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
                "6cd6e144f989b92b3379bac3b3de84fd",
            ),
            "VOCdevkit/VOC2012/SegmentationClass",
        ),
        (
            Archive(
                "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/"
                "semantic_contours/benchmark.tgz",
                "82b4d87ceb2ed10f6038a1cba92111cb",
            ),
            "benchmark_RELEASE/dataset/cls",
        ),
    ),
    label_colours=COLOURS,
)
