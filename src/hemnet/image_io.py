"""Images from files, PIL or arrays, as 8-bit RGB.

Small files can be made to fill the memory or to keep a decoder busy for hours. They are refused
before a pixel is decoded; the limits are far from what cameras, scanners and maps produce.
"""

from __future__ import annotations

import io
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from hemnet.errors import DataError, UserError
from hemnet.limits import MAX_PIXELS

# Pillow has many more decoders, less tested ones, some of which start a program.
FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "GIF", "PPM", "JPEG2000", "AVIF")
KINDS = "JPEG, PNG, WebP, TIFF, BMP, GIF, PPM, JPEG 2000 or AVIF"
MAX_SIDE = 1_000_000
MAX_SCANS = 100  # of a progressive JPEG, each of which goes over all pixels; cameras make 10
SMALL = 4_000_000  # pixels: beyond this a file must have a byte for every so many of them:
PIXELS_A_BYTE = 4000  # a blank RGB picture has 344 in PNG and 170 in JPEG
# libtiff is slow with what it does not find in damaged fax data, and says so line by line.
TIFF_WITHOUT = ("group3", "tiff_ccitt", "tiff_raw_16", "tiff_thunderscan", "tiff_sgilog")


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
def open_image(
    source: str | Path | bytes, name: str | None = None, max_pixels: float = MAX_PIXELS
) -> Iterator[Image.Image]:
    """Open an image file, or its content, without decoding its pixels.

    Decode them inside the `with` block, and do nothing else there: whatever opening or decoding
    raises becomes a DataError that names the file (`name` where the source is its content).
    """
    shown = name if isinstance(source, bytes) else name or str(source)
    try:
        with _unlimited, _open(source, max_pixels) as image:
            yield image
    except (UserError, MemoryError):
        raise
    except UnidentifiedImageError:
        reason = f"not an image in {KINDS}"
        raise DataError(f"cannot read the image {shown}: {reason}") from None
    except Exception as error:  # decoders raise all kinds of errors on damaged files
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"cannot read the image {shown}: {reason}") from None


def _open(source: str | Path | bytes, max_pixels: float) -> Image.Image:
    if isinstance(source, bytes):
        size = len(source)
    else:
        found = Path(source).stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would be waited for, a device may have no end
            raise OSError("not a file but a folder, pipe or device")
        size = found.st_size
    image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    try:
        _check(image, size, max_pixels)
        if image.info.get("progressive"):
            _check_scans(source if isinstance(source, bytes) else Path(source).read_bytes())
    except BaseException:
        image.close()
        raise
    return image


def _check(image: Image.Image, size: int, max_pixels: float) -> None:
    width, height = image.size
    pixels = width * height
    shape = f"{width}×{height} pixels"
    if pixels > max_pixels:
        raise ValueError(
            f"{shape}: the limit is {max_pixels / 1e6:g} megapixels, since small files can be made "
            "to fill the memory. If you trust it, raise `max_pixels`"
        )
    if max(width, height) > MAX_SIDE:
        raise ValueError(f"{shape}: no side may have more than {MAX_SIDE:,}")
    if pixels > SMALL and pixels > PIXELS_A_BYTE * size:
        raise ValueError(
            f"{shape} cannot be in {size:,} bytes: it is damaged, or made to fill the memory"
        )
    kind = image.info.get("compression")
    if image.format == "TIFF" and kind in TIFF_WITHOUT:
        raise ValueError(f"TIFF with the compression {kind} is not read: save it with another")


def _check_scans(content: bytes) -> None:
    """Counts the markers that begin a scan: in the data between them a 0xFF is followed by 0."""
    scans = content.count(b"\xff\xda")
    if scans > MAX_SCANS:
        raise ValueError(f"a JPEG of {scans:,} scans, of which at most {MAX_SCANS} are read")


_EXPECTED = "an image array is H,W or H,W,3 or H,W,4, of bytes or of floats from 0 to 1"


def read_image(image: str | Path | Image.Image | NDArray[Any]) -> NDArray[np.uint8]:
    """RGB bytes H,W,3 of a path, a PIL image or an array of bytes or of floats in 0–1.

    EXIF orientation is applied, grey is repeated, transparency dropped.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if isinstance(image, str | Path):
        with open_image(image) as file:
            return np.array(to_rgb(file))
    if isinstance(image, Image.Image):
        return np.array(to_rgb(image))
    raise TypeError(f"an image is a path, a PIL image or an array, not {type(image).__name__}")


def to_rgb(image: Image.Image, upright: bool = True) -> Image.Image:
    """The pixels of an image in mode RGB; `upright` applies its EXIF orientation."""
    image.load()
    if upright and (turn := _TURNS.get(_orientation(image))) is not None:
        image = image.transpose(turn)
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I"):  # 16 bits: PIL's own conversion would clip, not scale
        values = np.clip(np.asarray(image), 0, 65535)
        return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(_bytes(np.asarray(image))).convert("RGB")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


# Not ImageOps.exif_transpose: it copies every image, and fails where other metadata are damaged.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # unreadable metadata say nothing; the pixels are there
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


def shrink(picture: Image.Image, longest: int, smooth: bool = True) -> Image.Image:
    """The picture, made smaller where a side is longer than `longest`."""
    factor = longest / max(picture.size)
    if factor >= 1:
        return picture
    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    return picture.resize(size, Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST)
