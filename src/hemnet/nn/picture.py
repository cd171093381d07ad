"""Any picture a user may have, as 8-bit RGB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

from hemnet.errors import UserError
from hemnet.images import KINDS, MAX_PIXELS, open_image

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
