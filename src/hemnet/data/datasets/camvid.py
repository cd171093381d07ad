"""CamVid in the 11 classes of SegNet."""

from __future__ import annotations

from pathlib import Path

from hemnet.data.dataset import Info, Pair
from hemnet.data.entry import Entry, SplitFiles
from hemnet.data.labels import VOID
from hemnet.data.listing import IMAGE_EXTENSIONS, files_under, find_root

CLASSES = {
    "sky": (128, 128, 128),
    "building": (128, 0, 0),
    "pole": (192, 192, 128),
    "road": (128, 64, 128),
    "pavement": (60, 40, 222),
    "tree": (128, 128, 0),
    "sign": (192, 128, 128),
    "fence": (64, 64, 128),
    "car": (64, 0, 128),
    "pedestrian": (64, 64, 0),
    "bicyclist": (0, 128, 192),
}


def find(root: Path, split: str) -> SplitFiles:
    """`images/SPLIT` and `labels/SPLIT`, or the SegNet release's `SPLIT` and `SPLITannot`."""
    if (root / f"{split}annot").is_dir():
        images, labels = root / split, root / f"{split}annot"
    else:
        base = find_root(root, f"images/{split}", ("camvid", "CamVid"))
        images, labels = base / "images" / split, base / "labels" / split
    found = files_under(images, IMAGE_EXTENSIONS)
    label_map = {value: value for value in range(11)} | {11: VOID}
    return SplitFiles([Pair(p.stem, p, labels / f"{p.stem}.png") for p in found], label_map)


_COLOURS = tuple(CLASSES.values())
CAMVID = Entry(
    Info("camvid", "CamVid", tuple(CLASSES), _COLOURS, {"train": 367, "val": 101, "test": 233}),
    find,
    label_colours=_COLOURS,
)
