"""Pictures inside the page: as data addresses, small enough that the page stays light."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hemnet.data.contact_sheet import colour_labels
from hemnet.data.labels import Colour
from hemnet.inspection.examples import Example, mistakes
from hemnet.nn.geometry import Placement

LONGEST = 320  # pixels of a picture's longer side


def data_address(picture: Image.Image, photograph: bool = False) -> str:
    """A `data:` address: JPEG for photographs, PNG with few colours for drawings."""
    buffer = io.BytesIO()
    if photograph and min(picture.size) > 160:  # small ones lose more than they save
        picture.save(buffer, "JPEG", quality=88)
        kind = "jpeg"
    else:
        picture = picture if photograph else picture.quantize(256, dither=Image.Dither.NONE)
        picture.save(buffer, "PNG", optimize=True)
        kind = "png"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def example_panels(example: Example, palette: Sequence[Colour]) -> list[tuple[str, str, str]]:
    """Name, data address and style class of image, labels, prediction and mistakes."""
    image = example.image.permute(1, 2, 0).contiguous().numpy()
    pictures = (
        ("image", image, ""),
        ("labels", colour_labels(example.mask, palette), "labels"),
        ("prediction", colour_labels(example.prediction, palette), "labels"),
        ("mistakes", mistakes(example), "labels"),
    )
    return [
        (name, data_address(_small(pixels, style == ""), style == ""), style)
        for name, pixels, style in pictures
    ]


def heat_map(values: Tensor, highest: float, size: tuple[int, int], placement: Placement) -> str:
    """A map h,w from 0 to `highest` as a picture of H,W pixels, smoothed."""
    large = placement.upsample(values[None, None].float(), size)[0, 0]
    scaled = (large / max(highest, 1e-12)).clamp(0, 1).mul(255).byte().cpu().numpy()
    factor = min(1.0, 160 / max(size))
    wide = (max(1, round(size[1] * factor)), max(1, round(size[0] * factor)))
    grey = Image.fromarray(scaled).resize(wide, Image.Resampling.BICUBIC)
    pixels = (colormaps["magma"](np.asarray(grey))[..., :3] * 255).astype(np.uint8)
    return data_address(Image.fromarray(pixels))


def photograph(image: Tensor) -> str:
    """An image 3,H,W uint8 as a picture."""
    return data_address(_small(image.permute(1, 2, 0).contiguous().numpy(), True), True)


def _small(pixels: NDArray[np.uint8], smooth: bool) -> Image.Image:
    picture = Image.fromarray(pixels)
    factor = LONGEST / max(picture.size)
    if factor >= 1:
        return picture
    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    how = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    return picture.resize(size, how)
