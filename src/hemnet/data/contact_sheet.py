"""Sheets of images and labels: data sets as read and as augmented, and what models make of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision import tv_tensors

from hemnet.data.dataset import Info, SegmentationDataset
from hemnet.data.labels import VOID, Colour
from hemnet.data.sampler import Key
from hemnet.data.transforms import Augmentation, seeded_draws, training_transform
from hemnet.errors import UserError
from hemnet.files import atomic_write

INK, PAPER, VOID_COLOUR = (40, 40, 46), (255, 255, 255), (236, 236, 232)
GAP, LINE = 6, 20

Pixels = NDArray[np.uint8]  # H,W,3
Cell = tuple[str, Sequence[Sequence[Image.Image]]]  # a caption above rows of images


def colour_labels(mask: Tensor, palette: Sequence[Colour]) -> Pixels:
    """(H, W) class ids → (H, W, 3) colours."""
    table = np.empty((256, 3), np.uint8)
    table[:] = VOID_COLOUR
    table[: len(palette)] = palette
    return table[mask.numpy()]


def draw_contact_sheet(
    dataset: SegmentationDataset,
    indices: Sequence[int | Key],
    *,
    augmentation: Augmentation | None = None,
    tile: int = 200,
    columns: int | None = None,
    seed: int = 0,
) -> Image.Image:
    """Pairs of image and labels; below each, if given, its augmented form.

    An index, or an epoch and an index as training draws them.
    """
    cells: list[Cell] = []
    present: set[int] = set()
    for key in indices:
        epoch, index = (0, key) if isinstance(key, int) else key
        image, mask = dataset.read(index)
        pairs = [(image, mask)]
        if augmentation is not None:
            inputs = tv_tensors.Image(image), tv_tensors.Mask(mask)
            with seeded_draws(seed, epoch, index):
                pairs.append(training_transform(augmentation)(*inputs))
        rows = []
        for image, mask in pairs:
            labels = colour_labels(mask.as_subclass(Tensor), dataset.info.palette)
            pixels = image.as_subclass(Tensor).permute(1, 2, 0).contiguous().numpy()
            rows.append([fit(pixels, tile), fit(labels, tile, smooth=False)])
            present |= set(torch.unique(mask.as_subclass(Tensor)).tolist())
        cells.append((dataset.id(index), rows))
    if columns is None:  # as many as have room, fewer if that leaves no gap in the last line
        widest = max(sum(image.width for image in row) for _, rows in cells for row in rows)
        room = max(1, min(len(cells), 1700 // (widest + 2 * GAP)))
        choices = range(room, room // 2, -1)
        columns = next((n for n in choices if len(cells) % n == 0), room)
    caption = f"{dataset.info.title}, {dataset.split}"
    if augmentation is not None:
        caption += ": as read above, augmented below"
    return image_sheet(cells, dataset.info, present, columns, caption)


def fit(pixels: Pixels, tile: int, smooth: bool = True) -> Image.Image:
    """An image whose longer side is `tile`."""
    factor = tile / max(pixels.shape[:2])
    height, width = (max(1, round(side * factor)) for side in pixels.shape[:2])
    method = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    return Image.fromarray(pixels).resize((width, height), method)


def image_sheet(
    cells: Sequence[Cell], info: Info, classes: set[int], columns: int, caption: str
) -> Image.Image:
    """Cells in lines of `columns`, and a legend of the classes that are to be seen."""
    rows = [[_join(row) for row in rows] for _, rows in cells]
    width = max(image.width for images in rows for image in images)
    lines = []
    for start in range(0, len(cells), columns):
        these = slice(start, start + columns)
        lines.append(_join([_text(text, width) for text, _ in cells[these]], width + GAP))
        lines += [_join(images, width + GAP) for images in zip(*rows[these], strict=True)]
    total = max(line.width for line in lines)
    return _framed(_join([*lines, _text(caption, total), _legend(info, classes, total)], down=True))


def _join(images: Sequence[Image.Image], step: int = 0, down: bool = False) -> Image.Image:
    """Images below each other, or side by side, with a gap; `step` is a common width."""
    axis = 1 if down else 0
    sizes = [step or image.size[axis] for image in images]
    length = sum(sizes) + GAP * (len(images) - 1)
    breadth = max(image.size[1 - axis] for image in images)
    sheet = Image.new("RGB", (breadth, length) if down else (length, breadth), PAPER)
    place = 0
    for image, size in zip(images, sizes, strict=True):
        sheet.paste(image, (0, place) if down else (place, 0))
        place += size + GAP
    return sheet


def _framed(image: Image.Image) -> Image.Image:
    sheet = Image.new("RGB", (image.width + 4 * GAP, image.height + 2 * GAP), PAPER)
    sheet.paste(image, (2 * GAP, GAP))
    return sheet


def _text(text: str, width: int) -> Image.Image:
    image, font = Image.new("RGB", (width, LINE), PAPER), ImageFont.load_default(size=13)
    if font.getlength(text) > width:
        while len(text) > 1 and font.getlength("…" + text) > width:
            text = text[1:]  # the end of a path says more than its beginning
        text = "…" + text
    ImageDraw.Draw(image).text((0, 2), text, fill=INK, font=font)
    return image


def _legend(info: Info, classes: set[int], width: int) -> Image.Image:
    lines: list[list[Image.Image]] = [[]]
    font = ImageFont.load_default(size=13)
    for value in sorted(classes):
        name = "void" if value == VOID else info.classes[value]
        colour = VOID_COLOUR if value == VOID else info.palette[value]
        entry = Image.new("RGB", (30 + int(font.getlength(name)), LINE), PAPER)
        pen = ImageDraw.Draw(entry)
        pen.rectangle((0, 3, 12, 15), fill=colour, outline=(120, 120, 120))
        pen.text((18, 2), name, fill=INK, font=font)
        if sum(each.width + GAP for each in lines[-1]) + entry.width > width and lines[-1]:
            lines.append([])
        lines[-1].append(entry)
    return _join([_join(line) for line in lines], down=True)


def save_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a PNG or JPEG file, by the name's ending."""
    formats = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
    if path.suffix.lower() not in formats:
        raise UserError(f"{path}: expected a name that ends in {', '.join(formats)}.")
    with atomic_write(path) as file:
        sheet.save(file, format=formats[path.suffix.lower()])
