"""What the data sets call their classes, and in which colours they draw them."""

from __future__ import annotations

import gzip
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from hemnet.data.labels import Colour


class ClassList(NamedTuple):
    """Attributes:
    names: of the classes, in the order of their ids.
    colours: of the classes; empty where not every line has one.
    void: colours in label files that do not count.
    """

    names: tuple[str, ...]
    colours: tuple[Colour, ...] = ()
    void: tuple[Colour, ...] = ()


_LISTS = files("hemnet.data") / "lists"


def colour_map(size: int) -> tuple[Colour, ...]:
    """PASCAL VOC's colour map: the bits of the id spread over the high bits of the channels."""
    colours = []
    for index in range(size):
        channels = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                channels[channel] |= (index >> (3 * bit + channel) & 1) << (7 - bit)
        colours.append((channels[0], channels[1], channels[2]))
    return tuple(colours)


@cache
def official_ids(name: str) -> dict[str, str]:
    """Image id → set, from a packaged list (`lists/NAME.txt.gz`, a line is `id set`)."""
    text = gzip.decompress((_LISTS / f"{name}.txt.gz").read_bytes()).decode()
    return dict(line.split() for line in text.splitlines())


@cache
def raw_classes(name: str) -> dict[int, str]:
    """Id in the raw label files → class name, in the order of our classes."""
    lines = (_LISTS / f"{name}.txt").read_text().splitlines()
    return {int(key): name for key, name in (line.split(maxsplit=1) for line in lines)}


def parse_classes(text: str) -> ClassList:
    """Names, and colours if every line has one, from lines `name` or `name #rrggbb`.

    Last lines `void #rrggbb` are no classes: pixels of these colours do not count.
    """
    names: list[str] = []
    colours: list[Colour] = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        name, mark, code = line.rpartition(" #")
        if mark and len(code) == 6 and set(code.lower()) <= set("0123456789abcdef"):
            names.append(name.strip())
            colours.append((int(code[:2], 16), int(code[2:4], 16), int(code[4:], 16)))
        else:
            names.append(line)
    if len(colours) < len(names):
        return ClassList(tuple(names))
    count = len(names)
    while count and names[count - 1].lower() == "void":
        count -= 1
    return ClassList(tuple(names[:count]), tuple(colours[:count]), tuple(colours[count:]))


VOC = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat"),
    *("chair", "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant"),
    *("sheep", "sofa", "train", "tvmonitor"),
)

CAMVID = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence"),
    *("car", "pedestrian", "bicyclist"),
)
CAMVID_COLOURS: tuple[Colour, ...] = (
    *((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222)),
    *((128, 128, 0), (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192)),
)

# Class → (value in `labelIds` files, colour). All other values are void.
CITYSCAPES: dict[str, tuple[int, Colour]] = {
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

# VOC class id of each COCO category that VOC has.
COCO_TO_VOC = dict(
    zip(
        (5, 2, 16, 9, 44, 6, 3, 17, 62, 21, 67, 18, 19, 4, 1, 64, 20, 63, 7, 72),
        range(1, 21),
        strict=True,
    )
)


@cache
def ade20k() -> tuple[tuple[str, ...], tuple[Colour, ...]]:
    return parse_classes((_LISTS / "ade20k.txt").read_text())[:2]
