"""Any picture a user may have, as H,W,3 bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from hemnet.errors import UserError


def read_picture(image: str | Path | Image.Image | NDArray[Any]) -> NDArray[np.uint8]:
    """RGB bytes H,W,3 of a path, a PIL image or an array of bytes or of floats in 0–1.

    A photograph's rotation mark is obeyed, grey is repeated, transparency dropped.
    """
    if isinstance(image, np.ndarray):
        return _from_array(image)
    if isinstance(image, str | Path):
        try:
            with Image.open(image) as file:
                return _from_pil(file)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"cannot read the image {image}: {error}") from None
    if isinstance(image, Image.Image):
        return _from_pil(image)
    raise TypeError(f"an image is a path, a PIL image or an array, not {type(image).__name__}")


def _from_pil(image: Image.Image) -> NDArray[np.uint8]:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16 bits: PIL's own conversion would clip, not scale
        return _from_array(np.clip(np.asarray(image) / 65535.0, 0, 1))
    return np.array(image.convert("RGB"))


def _from_array(array: NDArray[Any]) -> NDArray[np.uint8]:
    expected = "an image array is H,W or H,W,3 or H,W,4, of bytes or of floats from 0 to 1"
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, 2)
    if array.ndim != 3 or array.shape[2] not in (3, 4) or 0 in array.shape:
        raise ValueError(f"{expected}; this one has shape {array.shape}")
    array = array[..., :3]
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ValueError(f"{expected}; this one has values outside")
        return np.round(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ValueError(f"{expected}; this one is of {array.dtype}")
    return np.ascontiguousarray(array)
