"""Contact sheets: images, their labels in the palette, and what augmentation makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torchvision import tv_tensors

from hemnet.data.dataset import SegmentationDataset
from hemnet.data.labels import VOID, Colour
from hemnet.data.sampler import Key
from hemnet.data.transforms import Augmentation, drawing, training_transform
from hemnet.files import atomic_write

INK, PAPER, VOID_COLOUR = (40, 40, 46), (255, 255, 255), (236, 236, 232)
GAP, LINE = 6, 22


def colour_labels(mask: Tensor, palette: Sequence[Colour]) -> NDArray[np.uint8]:
    """(H, W) class ids → (H, W, 3) colours."""
    table = np.empty((256, 3), np.uint8)
    table[:] = VOID_COLOUR
    table[: len(palette)] = palette
    return table[mask.numpy()]


def contact_sheet(
    dataset: SegmentationDataset,
    indices: Sequence[int | Key],
    *,
    augmentation: Augmentation | None = None,
    tile: int = 200,
    columns: int | None = None,
    seed: int = 0,
) -> Image.Image:
    """Pairs side by side; below each, if given, its augmented form. A legend closes the sheet.

    An index, or an epoch and an index as training draws them.
    """
    blocks, present = [], set()
    for key in indices:
        epoch, index = (0, key) if isinstance(key, int) else key
        image, mask = dataset.read(index)
        rows = [(image, mask)]
        if augmentation is not None:
            with drawing(seed, epoch, index):
                pair = training_transform(augmentation)(
                    tv_tensors.Image(image), tv_tensors.Mask(mask)
                )
            seen, labels = (part.as_subclass(Tensor) for part in pair)
            rows.append((seen, labels))
        present |= {int(v) for _, labels in rows for v in torch.unique(labels)}
        blocks.append((dataset.id(index), [_pair(row, dataset.info.palette, tile) for row in rows]))

    width = max(row.width for _, rows in blocks for row in rows)
    columns = columns or _columns(len(blocks), 1700 // (width + 2 * GAP))
    lines = [blocks[start : start + columns] for start in range(0, len(blocks), columns)]
    sheet_width = min(columns, len(blocks)) * (width + 2 * GAP) + 2 * GAP
    caption = f"{dataset.info.title}, {dataset.split}"
    if augmentation is not None:
        caption += ": as read above, augmented below"
    parts = [_line(line, width, sheet_width) for line in lines]
    parts.append(_legend(dataset, sorted(present), sheet_width, caption))
    sheet = Image.new("RGB", (sheet_width, sum(part.height for part in parts)), PAPER)
    top = 0
    for part in parts:
        sheet.paste(part, (0, top))
        top += part.height
    return sheet


def _columns(count: int, room: int) -> int:
    """As many beside each other as have room, fewer if that leaves no gap in the last line."""
    room = max(1, min(count, room))
    return next((n for n in range(room, room // 2, -1) if count % n == 0), room)


def _line(
    blocks: Sequence[tuple[str, list[Image.Image]]], width: int, sheet_width: int
) -> Image.Image:
    heights = [max(rows[r].height for _, rows in blocks) for r in range(len(blocks[0][1]))]
    line = Image.new("RGB", (sheet_width, sum(heights) + GAP * (len(heights) + 1) + LINE), PAPER)
    pen = ImageDraw.Draw(line)
    for number, (name, rows) in enumerate(blocks):
        left, top = 2 * GAP + number * (width + 2 * GAP), GAP
        _text(pen, (left, top), name, width)
        top += LINE - 4
        for row, height in zip(rows, heights, strict=True):
            line.paste(row, (left, top))
            top += height + GAP
    return line


def _pair(row: tuple[Tensor, Tensor], palette: Sequence[Colour], tile: int) -> Image.Image:
    """Image and labels beside each other, each within tile × tile, shape kept."""
    image, mask = row
    height, width = mask.shape
    factor = tile / max(height, width)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    left = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
    right = Image.fromarray(colour_labels(mask, palette))
    out = Image.new("RGB", (2 * size[0] + 2, size[1]), PAPER)
    out.paste(left.resize(size, Image.Resampling.LANCZOS), (0, 0))
    out.paste(right.resize(size, Image.Resampling.NEAREST), (size[0] + 2, 0))
    return out


def _legend(
    dataset: SegmentationDataset, values: list[int], width: int, caption: str
) -> Image.Image:
    entries = [(dataset.info.classes[v], dataset.info.palette[v]) for v in values if v != VOID]
    if VOID in values:
        entries.append(("void", VOID_COLOUR))
    font = _font()
    places, x, y = [], 2 * GAP, GAP + LINE
    for name, _ in entries:
        needed = 18 + int(font.getlength(name)) + 18
        if x + needed > width - GAP and x > 2 * GAP:
            x, y = 2 * GAP, y + LINE
        places.append((x, y))
        x += needed
    legend = Image.new("RGB", (width, y + LINE + GAP), PAPER)
    pen = ImageDraw.Draw(legend)
    _text(pen, (2 * GAP, GAP), caption, width - 4 * GAP)
    for (name, colour), (x, y) in zip(entries, places, strict=True):
        pen.rectangle((x, y + 1, x + 12, y + 13), fill=colour, outline=(120, 120, 120))
        pen.text((x + 18, y), name, fill=INK, font=font)
    return legend


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=13)


def _text(pen: ImageDraw.ImageDraw, place: tuple[int, int], text: str, width: int) -> None:
    font = _font()
    if font.getlength(text) > width:
        while len(text) > 1 and font.getlength("…" + text) > width:
            text = text[1:]  # the end of a path says more than its beginning
        text = "…" + text
    pen.text(place, text, fill=INK, font=font)


def save_sheet(sheet: Image.Image, path: Path) -> None:
    with atomic_write(path) as file:
        sheet.save(file, format="JPEG" if path.suffix.lower() in (".jpg", ".jpeg") else "PNG")
