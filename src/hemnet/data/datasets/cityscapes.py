"""Cityscapes, fine annotations."""

from __future__ import annotations

from pathlib import Path

from hemnet.data.dataset import Info, Pair
from hemnet.data.entry import Entry, SplitFiles
from hemnet.data.labels import VOID
from hemnet.data.listing import files_under, find_root

# Class → value in `labelIds` files, colour. All other values are void.
CLASSES = {
    "road": (7, (128, 64, 128)),
    "sidewalk": (8, (244, 35, 232)),
    "building": (11, (70, 70, 70)),
    "wall": (12, (102, 102, 156)),
    "fence": (13, (190, 153, 153)),
    "pole": (17, (153, 153, 153)),
    "traffic light": (19, (250, 170, 30)),
    "traffic sign": (20, (220, 220, 0)),
    "vegetation": (21, (107, 142, 35)),
    "terrain": (22, (152, 251, 152)),
    "sky": (23, (70, 130, 180)),
    "person": (24, (220, 20, 60)),
    "rider": (25, (255, 0, 0)),
    "car": (26, (0, 0, 142)),
    "truck": (27, (0, 0, 70)),
    "bus": (28, (0, 60, 100)),
    "train": (31, (0, 80, 100)),
    "motorcycle": (32, (0, 0, 230)),
    "bicycle": (33, (119, 11, 32)),
}


def find(root: Path, split: str) -> SplitFiles:
    base = find_root(root, "leftImg8bit", ("cityscapes",))
    pairs = []
    for image in files_under(base / "leftImg8bit" / split, ("_leftimg8bit.png",)):
        name = image.name.removesuffix("_leftImg8bit.png")
        label = base / "gtFine" / split / image.parent.name / f"{name}_gtFine_labelIds.png"
        pairs.append(Pair(name, image, label))
    label_map = dict.fromkeys(range(34), VOID)
    label_map |= {value: index for index, (value, _) in enumerate(CLASSES.values())}
    return SplitFiles(pairs, label_map, fix="Unpack gtFine_trainvaltest.zip.")


_COLOURS = tuple(colour for _, colour in CLASSES.values())
CITYSCAPES = Entry(
    Info("cityscapes", "Cityscapes", tuple(CLASSES), _COLOURS, {"train": 2975, "val": 500}),
    find,
    label_colours=_COLOURS,
)
