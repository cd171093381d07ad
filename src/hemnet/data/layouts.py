"""Where each data set keeps its images and labels, as its owners distribute it.

A layout takes the folder a user has and a split, and answers with pairs of files. It accepts the
folder above or below the expected one, since archives unpack both ways.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

from hemnet.data.class_lists import CITYSCAPES, official_ids, raw_classes
from hemnet.data.labels import VOID
from hemnet.errors import UserError

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".ppm")
LABEL_EXTENSIONS = (".png", ".bmp", ".tif", ".tiff", ".gif", ".pgm")  # never lossy


@dataclass(frozen=True)
class Pair:
    id: str
    image: Path
    label: Path


@dataclass
class Layout:
    """The pairs of a split, complete or not, and how their labels are coded."""

    pairs: list[Pair]
    label_map: dict[int, int] | None = None  # None: class ids already
    unpaired: list[str] = field(default_factory=list)  # files that lack their partner
    fix: str = "Unpack the archive again."  # what brings missing files


def enter(root: Path, marker: str, inside: Iterable[str] = ()) -> Path:
    """`root`, or one of its sub-folders `inside`, that contains `marker`."""
    if not root.is_dir():
        raise UserError(f"{root}: no such folder. Give the folder of the data set with --root.")
    for candidate in (root, *(root / name for name in inside)):
        if (candidate / marker).exists():
            return candidate
    tried = ", ".join(str(c / marker) for c in (root, *(root / name for name in inside)))
    raise UserError(f"{root}: does not hold this data set; expected one of {tried}.")


def read_ids(path: Path) -> list[str]:
    return [line.split()[0] for line in read_lines(path) if line.strip()]


def read_lines(path: Path) -> list[str]:
    """The lines of a text file in UTF-8, as editors of every system write it."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise UserError(f"{path}: not a text file.")
        return path.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8. Save it as UTF-8"
        raise UserError(f"{path}: cannot be read as text: {reason}.") from None


def files_under(
    folder: Path, extensions: tuple[str, ...], folders_at_most: int | None = None
) -> list[Path]:
    """All files with these extensions below a folder, sorted; hidden ones left out.

    Links are followed, but not into a folder that is being walked already: that would never end.
    """
    found = []
    walk = islice(os.walk(folder, followlinks=True), folders_at_most)
    for parent, folders, names in walk:
        here = os.path.realpath(parent)
        above = {here, *map(str, Path(here).parents)}
        folders[:] = [
            name
            for name in folders
            if not os.path.islink(path := os.path.join(parent, name))
            or os.path.realpath(path) not in above
        ]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(parent, name)
            for name in sorted(names)
            if not name.startswith(".") and name.lower().endswith(extensions)
        ]
    return found


def voc(root: Path, split: str) -> Layout:
    base = enter(root, "JPEGImages", ("VOC2012", "VOCdevkit/VOC2012"))
    listed = base / "ImageSets" / "Segmentation" / f"{split}.txt"
    members = {
        "train": ("train",),
        "trainaug": ("train", "aug"),
        "trainval": ("train", "val"),
        "val": ("val",),
    }[split]
    official = official_ids("voc2012")
    parts = [listed.with_name(f"{part}.txt") for part in ("train", "val")]
    if listed.exists():
        ids = read_ids(listed)
    elif split == "trainval" and all(part.exists() for part in parts):
        ids = [name for part in parts for name in read_ids(part)]
    else:
        ids = [name for name, member in official.items() if member in members]
    augmented, devkit = base / "SegmentationClassAug", base / "SegmentationClass"
    converted = {path.stem for path in files_under(augmented, (".png",))}
    return Layout(
        [
            Pair(
                i,
                base / "JPEGImages" / f"{i}.jpg",
                (augmented if i in converted else devkit) / f"{i}.png",
            )
            for i in ids
        ],
        fix="Unpack VOCtrainval_11-May-2012.tar again"
        + (", and make SBD's labels: hemnet data prepare voc" if split == "trainaug" else "")
        + ".",
    )


def pascal_context(root: Path, split: str) -> Layout:
    """60 classes: the raw ids that count, in ascending order, with 0 the background."""
    base = enter(root, "JPEGImages", ("VOC2010", "VOCdevkit/VOC2010"))
    lists = [base / "ImageSets" / kind / f"{split}.txt" for kind in ("SegmentationContext", "Main")]
    listed = next((path for path in lists if path.exists()), None)
    if listed is None:
        raise UserError(
            f"{lists[1]}: no such file. PASCAL Context uses the lists of the VOC 2010 devkit; "
            "unpack VOCtrainval_03-May-2010.tar here."
        )
    return Layout(
        [
            Pair(
                i, base / "JPEGImages" / f"{i}.jpg", base / "SegmentationClassContext" / f"{i}.png"
            )
            for i in read_ids(listed)
        ],
        fix="Convert the raw label maps: hemnet data prepare pascal_context.",
    )


def pascal_context_59(root: Path, split: str) -> Layout:
    layout = pascal_context(root, split)
    layout.label_map = {0: VOID} | {index: index - 1 for index in range(1, 60)}
    return layout


@cache
def coco_stuff_map(first: int) -> dict[int, int]:
    """Raw value → class for values that start at `first`; removed categories are void."""
    kept = {raw: index for index, raw in enumerate(raw_classes("coco_stuff"))}
    return {raw - 1 + first: kept.get(raw, VOID) for raw in range(1 - first, 183)}


def coco_stuff(root: Path, split: str) -> Layout:
    if split in ("train2017", "val2017"):  # 164k: values are the raw id less one
        base = enter(root, f"images/{split}", ("coco", "COCO"))
        folders = ("annotations", "stuffthingmaps", "labels")
        labels = next((base / f for f in folders if (base / f / split).is_dir()), base / folders[0])
        return Layout(
            [
                Pair(image.stem, image, labels / split / f"{image.stem}.png")
                for image in files_under(base / "images" / split, (".jpg",))
            ],
            coco_stuff_map(0),
            fix="Unpack stuffthingmaps_trainval2017.zip into annotations/.",
        )
    base = enter(root, "images", ("cocostuff-10k-v1.1", "cocostuff10k"))
    ids = [
        f"COCO_train2014_{int(number):012d}"
        for number, member in official_ids("cocostuff10k").items()
        if member == split
    ]
    return Layout(
        [Pair(i, base / "images" / f"{i}.jpg", base / "labels" / f"{i}.png") for i in ids],
        coco_stuff_map(1),
        fix="Convert the .mat label maps: hemnet data prepare coco_stuff.",
    )


def coco(root: Path, split: str) -> Layout:
    """The images that `hemnet data prepare coco` found worth rendering."""
    base = enter(root, "annotations", ("coco", "COCO"))
    labels = base / "voc_labels" / split
    if not labels.is_dir():
        raise UserError(
            f"{labels}: no such folder. Render the instance masks first: "
            f"hemnet data prepare coco --root {root}"
        )
    images = base / "images" / split if (base / "images" / split).is_dir() else base / split
    found = files_under(labels, (".png",))
    return Layout(
        [Pair(path.stem, images / f"{path.stem}.jpg", path) for path in found],
        fix=f"Unpack {split}.zip.",
    )


def cityscapes(root: Path, split: str) -> Layout:
    base = enter(root, "leftImg8bit", ("cityscapes",))
    images = files_under(base / "leftImg8bit" / split, ("_leftimg8bit.png",))
    pairs = []
    for image in images:
        name = image.name.removesuffix("_leftImg8bit.png")
        label = base / "gtFine" / split / image.parent.name / f"{name}_gtFine_labelIds.png"
        pairs.append(Pair(name, image, label))
    label_map = dict.fromkeys(range(34), VOID)
    label_map |= {value: index for index, (value, _) in enumerate(CITYSCAPES.values())}
    return Layout(pairs, label_map, fix="Unpack gtFine_trainvaltest.zip.")


def ade20k(root: Path, split: str) -> Layout:
    base = enter(root, "annotations", ("ADEChallengeData2016",))
    folder = {"train": "training", "val": "validation"}[split]
    images = files_under(base / "images" / folder, (".jpg",))
    label_map = {0: VOID} | {value: value - 1 for value in range(1, 151)}
    return Layout(
        [Pair(p.stem, p, base / "annotations" / folder / f"{p.stem}.png") for p in images],
        label_map,
        fix="Unpack ADEChallengeData2016.zip again.",
    )


def camvid(root: Path, split: str) -> Layout:
    """`images/SPLIT` and `labels/SPLIT`, or the SegNet release's `SPLIT` and `SPLITannot`."""
    if (root / f"{split}annot").is_dir():
        images, labels = root / split, root / f"{split}annot"
    else:
        base = enter(root, f"images/{split}", ("camvid", "CamVid"))
        images, labels = base / "images" / split, base / "labels" / split
    label_map = {value: value for value in range(11)} | {11: VOID}
    found = files_under(images, IMAGE_EXTENSIONS)
    return Layout([Pair(p.stem, p, labels / f"{p.stem}.png") for p in found], label_map)
