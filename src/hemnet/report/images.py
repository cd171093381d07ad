"""Pictures of a page as data URLs, scaled down to keep the page small."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from hemnet.data.labels import Colour
from hemnet.image_io import shrink
from hemnet.inspection.examples import Example, panels
from hemnet.nn.geometry import Placement

LONGEST, MAP = 320, 160  # pixels of the longer side of a picture, and of a map


@dataclass(frozen=True)
class Panel:
    """A picture of an example; `style` is a class of the style sheet."""

    name: str
    address: str
    style: str


def data_address(picture: Image.Image, photograph: bool = False) -> str:
    """A data URL: JPEG for photographs, PNG with few colours for drawings."""
    if photograph and min(picture.size) > 160:  # small ones lose more than they save
        return encoded(picture, "JPEG", quality=88)
    picture = picture if photograph else picture.quantize(256, dither=Image.Dither.NONE)
    return encoded(picture, "PNG", optimize=True)


def encoded(picture: Image.Image, kind: str, **options: object) -> str:
    """The picture in a file format as a data URL."""
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    content = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{kind.lower()};base64,{content}"


def example_panels(example: Example, palette: Sequence[Colour]) -> list[Panel]:
    """Image, labels, prediction and mistakes."""
    found = []
    for name, pixels in panels(example, palette).items():
        smooth = name == "image"
        picture = shrink(Image.fromarray(pixels), LONGEST, smooth)
        found.append(Panel(name, data_address(picture, smooth), "" if smooth else "labels"))
    return found


def heat_map(values: Tensor, highest: float, size: tuple[int, int], placement: Placement) -> str:
    """A map h,w from 0 to `highest` over an image of H,W pixels, smoothed."""
    large = placement.upsample(values[None, None].float(), size)[0, 0]
    scaled = (large / max(highest, 1e-12)).clamp(0, 1).mul(255).byte().cpu().numpy()
    grey = shrink(Image.fromarray(scaled), MAP)
    pixels = (colormaps["magma"](np.asarray(grey))[..., :3] * 255).astype(np.uint8)
    return data_address(Image.fromarray(pixels))


def feature_map(colours: Tensor, size: tuple[int, int], placement: Placement) -> str:
    """Colours 3,h,w from 0 to 1 over an image of H,W pixels, smoothed."""
    large = placement.upsample(colours[None], size)[0].permute(1, 2, 0)
    picture = Image.fromarray((large * 255).byte().numpy())
    return data_address(shrink(picture, MAP), photograph=True)


def image_address(image: Tensor) -> str:
    """An image 3,H,W uint8 as a picture."""
    picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    return data_address(shrink(picture, LONGEST), photograph=True)
