"""What a prediction leaves behind: class maps, overlays, and the archive of the VOC server.

Every file is written beside its place and renamed, so that a name always means a complete file.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from hemnet.data.class_lists import colour_map
from hemnet.data.labels import Colour
from hemnet.files import atomic_write
from hemnet.inference.sliding_window import Classes

STRENGTH = 0.55  # of the colours in an overlay
BLACK = 24  # colours whose channels are all below this
STRIP = 512  # rows of an overlay made at a time
JPEG_SIDE = 65500  # the format ends here
VOC_FOLDER = "results/VOC2012/Segmentation/{}_test_cls"


def full_palette(palette: Sequence[Colour] | None) -> tuple[Colour, ...]:
    """256 colours: the model's own, and VOC's for what has none."""
    own = tuple(palette or ())[:256]
    return own + colour_map(256)[len(own) :]


def save_classes(classes: Classes, palette: Sequence[Colour], path: Path) -> None:
    """A palette PNG of H,W class ids; 16-bit grey where there are more than 256 classes."""
    image = Image.fromarray(classes)
    if classes.dtype == np.uint8:
        image.putpalette([value for colour in palette for value in colour])
    with atomic_write(path) as file:
        image.save(file, "PNG")


def see_through(names: Sequence[str], palette: Sequence[Colour]) -> list[int]:
    """Classes that overlays leave as they are: the background, and black, which only darkens."""
    return [
        k
        for k, name in enumerate(names)
        if name.casefold() == "background" or max(palette[k % len(palette)]) < BLACK
    ]


def save_overlay(
    picture: Image.Image,
    classes: Classes,
    palette: Sequence[Colour],
    plain: Iterable[int],
    path: Path,
) -> None:
    """The picture, which is changed, tinted in the colours of its classes; `plain` ones are not."""
    table = np.array(palette, np.uint8)
    table = np.resize(table, (max(len(table), int(classes.max()) + 1), 3))
    share = np.full(len(table), round(256 * STRENGTH), np.uint16)
    share[[k for k in plain if k < len(share)]] = 0
    for top in range(0, picture.height, STRIP):
        ids = classes[top : top + STRIP]
        box = (0, top, picture.width, top + ids.shape[0])
        strip = np.asarray(picture.crop(box)).astype(np.uint16)
        weight = share[ids][..., None]
        mixed = (strip * (256 - weight) + table[ids] * weight) >> 8
        picture.paste(Image.fromarray(mixed.astype(np.uint8)), box)
    with atomic_write(path) as file:
        if path.suffix == ".png":
            picture.save(file, "PNG")
        else:
            picture.save(file, "JPEG", quality=90)


def save_voc_archive(maps: Mapping[str, Path], competition: str, path: Path) -> None:
    """The archive that PASCAL VOC's server takes, of the class maps of image ids."""
    folder = VOC_FOLDER.format(competition)
    with atomic_write(path) as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, source in maps.items():
            data = source.read_bytes()
            entry = tarfile.TarInfo(f"{folder}/{name}.png")  # no owner, no date: only the result
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
