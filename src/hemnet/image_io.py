"""Images from files, PIL or arrays, as 8-bit RGB; bombs are refused before a pixel is decoded.

Small files can be made to keep a decoder busy for hours or to fill the memory. What is refused
here is of no picture's shape: the limits are far from what cameras, scanners and maps give.
"""

from __future__ import annotations

import io
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from hemnet.errors import UserError

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


_EXPECTED = "an image array is H,W or H,W,3 or H,W,4, of bytes or of floats from 0 to 1"
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_picture(image: str | Path | Image.Image | NDArray[Any]) -> NDArray[np.uint8]:
    """RGB bytes H,W,3 of a path, a PIL image or an array of bytes or of floats in 0–1.

    A photograph's rotation mark is obeyed, grey is repeated, transparency dropped.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if isinstance(image, str | Path):
        with open_picture(image) as file:
            return np.array(rgb(file, image))
    if isinstance(image, Image.Image):
        return np.array(_converted(image))
    raise TypeError(f"an image is a path, a PIL image or an array, not {type(image).__name__}")


@contextmanager
def open_picture(path: str | Path, max_pixels: float = MAX_PIXELS) -> Iterator[Image.Image]:
    """A file whose head is read and whose pixels are not yet, unless it is refused."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_image(path, max_pixels))
        except Exception as error:  # plugins raise whatever a damaged head makes them stumble over
            raise UserError(_unreadable(path, error)) from None
        yield file


def rgb(file: Image.Image, path: str | Path, upright: bool = True) -> Image.Image:
    """All of an opened file's pixels, in mode RGB; the first picture where it holds several.

    `upright` obeys a photograph's rotation mark.
    """
    try:
        return _converted(file, upright)
    except MemoryError:
        raise
    except Exception as error:
        raise UserError(_unreadable(path, error)) from None


def _unreadable(path: str | Path, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"cannot read the image {path}: it is no picture, or none in {KINDS}"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"cannot read the image {path}: {text}"


def _converted(image: Image.Image, upright: bool = True) -> Image.Image:
    image.load()
    turn = _TURNS.get(_orientation(image)) if upright else None
    if turn is not None:
        image = image.transpose(turn)
    if image.mode.startswith("I"):  # 16 bits: PIL's own conversion would clip, not scale
        values = np.asarray(image)
        if values.dtype != np.uint16:
            values = np.clip(values, 0, 65535)
        return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        grey = _bytes(np.asarray(image))
        return Image.fromarray(grey).convert("RGB")
    if image.mode == "RGB":
        return image
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # metadata that cannot be read say nothing; the pixels are there
        return 1


def _from_array(array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, 2)
    if array.ndim != 3 or array.shape[2] not in (3, 4) or 0 in array.shape:
        raise ValueError(f"{_EXPECTED}; this one has shape {array.shape}")
    return _bytes(array[..., :3])


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    if np.issubdtype(array.dtype, np.floating):
        low, high = array.min(), array.max()  # not a number where one of the values is not
        if not (low >= 0 and high <= 1):
            raise ValueError(f"{_EXPECTED}; this one has values outside")
        scaled = array * 255
        return np.round(scaled, out=scaled).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ValueError(f"{_EXPECTED}; this one is of {array.dtype}")
    return np.ascontiguousarray(array)
