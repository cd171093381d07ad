"""Image files: which kinds are opened, and what is refused before a pixel is decoded.

Small files can be made to keep a decoder busy for hours or to fill the memory. What is refused
here is of no picture's shape: the limits are far from what cameras, scanners and maps give.
"""

from __future__ import annotations

import io
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

# Pillow has many more decoders, less tested ones, some of which start a program.
FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
KINDS = "JPEG, PNG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000 or AVIF"
MAX_PIXELS = 150_000_000  # of a file that is opened without being asked twice: 12,247 × 12,247
MAX_SIDE = 1_000_000
MAX_SCANS = 100  # of a progressive JPEG, each of which goes over all pixels; cameras make 10
SMALL = 4_000_000  # pixels: beyond this a file must have a byte for every so many of them:
PIXELS_A_BYTE = 4000  # a blank RGB picture has 344 in PNG and 170 in JPEG
# libtiff is slow with what it does not find in damaged fax data, and says so line by line.
TIFF_WITHOUT = ("group3", "tiff_ccitt", "tiff_raw_16", "tiff_thunderscan", "tiff_sgilog")


class RefusedError(Exception):
    """A file that is not opened; says why, without its name."""


class _Unlimited:
    """Pillow's own limit is global and warns; ours says what the user can do."""

    def __init__(self) -> None:
        self.lock, self.users = threading.Lock(), 0
        self.before: int | None = None

    def __enter__(self) -> None:
        with self.lock:
            if not self.users:
                self.before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            self.users += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.users -= 1
            if not self.users:
                Image.MAX_IMAGE_PIXELS = self.before


_unlimited = _Unlimited()


@contextmanager
def open_image(source: str | Path | bytes, max_pixels: float = MAX_PIXELS) -> Iterator[Image.Image]:
    """A file, or its content, whose head is read and whose pixels are not yet.

    Raises RefusedError, or what Pillow raises.

    `with open_image(path) as image` must also hold what reads the pixels.
    """
    if isinstance(source, bytes):
        size = len(source)
    else:
        found = Path(source).stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for, a device may have no end
            raise RefusedError("not a file but a folder, pipe or device")
        size = found.st_size
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    with _unlimited, Image.open(file, formats=FORMATS) as image:
        _check(image, size, max_pixels)
        if image.info.get("progressive"):
            _check_scans(source if isinstance(source, bytes) else Path(source).read_bytes())
        yield image


def _check(image: Image.Image, size: int, max_pixels: float) -> None:
    width, height = image.size
    pixels = width * height
    shape = f"{width}×{height} pixels"
    if pixels > max_pixels:
        raise RefusedError(
            f"{shape}: the limit is {max_pixels / 1e6:g} megapixels, since small files can be made "
            "to fill the memory. If you trust it, raise the limit (--max-pixels)"
        )
    if max(width, height) > MAX_SIDE:
        raise RefusedError(f"{shape}: no side may have more than {MAX_SIDE:,}")
    if pixels > SMALL and pixels > PIXELS_A_BYTE * size:
        raise RefusedError(
            f"{shape} cannot be in {size:,} bytes: it is damaged, or made to fill the memory"
        )
    kind = image.info.get("compression")
    if image.format == "TIFF" and kind in TIFF_WITHOUT:
        raise RefusedError(f"TIFF with the compression {kind} is not read: save it with another")


def _check_scans(content: bytes) -> None:
    """Counts the markers that begin a scan: in the data between them a 0xFF is followed by 0."""
    scans = content.count(b"\xff\xda")
    if scans > MAX_SCANS:
        raise RefusedError(f"a JPEG of {scans:,} scans, of which at most {MAX_SCANS} are read")
