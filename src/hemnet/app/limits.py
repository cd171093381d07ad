"""Limits on uploads: image formats, bytes and pixels, checked before anything is decoded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from hemnet.errors import UserError
from hemnet.image_io import open_image, shrink, to_rgb
from hemnet.limits import number, out_of_range

MEGA = 1_000_000


@dataclass(frozen=True)
class Limits:
    """bytes and pixels of an upload; side: longer side of what the network sees, in pixels;
    memory: bytes that all open images may take."""

    bytes: int = number(20 * MEGA, 1)
    pixels: int = number(50 * MEGA, 1)
    side: int = number(1024, 1)
    memory: int = number(500 * MEGA, 1)

    def __post_init__(self) -> None:
        for name, problem in out_of_range(self):
            raise ValueError(f"{name} {problem}")


def read_upload(path: Path, limits: Limits, name: str) -> tuple[Image.Image, tuple[int, int]]:
    """The picture in RGB as the network will see it, and the file's own width and height.

    The content decides the format; the name is for messages only. The header is checked before a
    pixel is decoded.
    """
    if path.stat().st_size > limits.bytes:
        raise UserError(
            f"{name} has {path.stat().st_size / MEGA:.1f} MB: the limit is "
            f"{limits.bytes / MEGA:g} MB (--max-upload)."
        )
    try:
        with open_image(path, max_pixels=limits.pixels) as file:
            picture = to_rgb(file)
    except MemoryError:
        raise UserError(f"{name}: not enough memory to read it.") from None
    except UserError as error:  # the reader names the file by its place on the server
        raise UserError(str(error).replace(str(path), name)) from None
    return shrink(picture, limits.side), picture.size


def shown_name(name: str) -> str:
    """A file name for display: short and without control characters."""
    name = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "", re.split(r"[/\\]", name)[-1]) or "image"
    return name if len(name) <= 60 else f"{name[:40]}…{name[-15:]}"


def safe_stem(name: str) -> str:
    """A file name's stem for downloads: letters, digits, - and _ only."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", Path(name).stem).strip("_")
    return stem[:60] or "image"
