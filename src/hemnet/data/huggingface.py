"""Hugging Face `datasets` with an image and a mask column, from the disk or from the hub."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from hemnet.data.dataset import Info, SegmentationDataset, rgb_pixels
from hemnet.data.labels import (
    Coding,
    DataError,
    decode_values,
    describe_unknown,
    label_values,
)
from hemnet.errors import UserError
from hemnet.image_io import open_image

IMAGES = ("image", "pixel_values", "img", "images", "photo")
MASKS = (
    *("mask", "label", "labels", "annotation", "annotations", "segmentation_mask"),
    *("semantic_mask", "segmentation", "seg_map", "masks", "gt", "ground_truth"),
)


def load(root: str) -> dict[str, Any]:
    """The splits of a data set: a folder that `save_to_disk` wrote, or a name on the hub."""
    if importlib.util.find_spec("datasets") is None:
        raise UserError(
            "data.name hf reads Hugging Face data sets: install the extra packages with "
            "pip install 'hemnet-torch[hf]'."
        )
    import datasets

    if Path(root).is_dir():
        try:
            found = datasets.load_from_disk(root)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{root}: not a folder that a data set was saved to (`dataset.save_to_disk`): "
                f"{_first_line(error)}"
            ) from None
    else:
        try:
            found = datasets.load_dataset(root)
        except Exception as error:  # of many kinds, from network and parsers
            raise UserError(
                f"{root!r} is neither a folder nor a data set on the hub: {_first_line(error)}"
            ) from None
    return dict(found) if isinstance(found, dict) else {"all": found}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class HuggingFaceDataset(SegmentationDataset):
    """Rows of a data set, decoded like files: palette, grey and coloured masks of 8 or 16 bits."""

    def __init__(
        self,
        info: Info,
        split: str,
        rows: Any,
        coding: Coding,
        columns: Sequence[str] | None = None,
    ) -> None:
        import datasets

        self.info, self.split, self.coding = info, split, coding
        self.image, self.mask = find_columns(rows.features, columns)
        stored = datasets.Image(decode=False)  # bytes: decoded here, by our rules
        self.rows = rows.cast_column(self.image, stored).cast_column(self.mask, stored)

    def __len__(self) -> int:
        return len(self.rows)

    def id(self, index: int) -> str:
        return f"{self.split}-{index:06}"

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        row = self.rows[index]
        image = self._open(row, self.image, index)
        name = f"row {index} of {self.split}, column {self.mask}"
        labels, unknown = decode_values(
            label_values(self._open(row, self.mask, index), name), self.coding
        )
        if unknown:
            raise DataError(describe_unknown(Path(name), unknown, self.coding))
        pixels = rgb_pixels(image)
        if pixels.shape[1:] != labels.shape:
            raise DataError(
                f"{name}: {labels.shape[1]}×{labels.shape[0]} pixels, but its image has "
                f"{image.width}×{image.height}."
            )
        return pixels, torch.from_numpy(labels)

    def _open(self, row: dict[str, Any], column: str, index: int) -> Image.Image:
        cell = row[column] or {}
        try:
            content = cell.get("bytes") or Path(cell["path"]).read_bytes()
            with open_image(content) as image:
                image.load()
        except Exception as error:  # decoders raise whatever a damaged file makes them stumble over
            raise DataError(
                f"row {index} of {self.split}, column {column}: cannot be read as an image "
                f"({_first_line(error)})."
            ) from None
        return image


def find_columns(features: Any, columns: Sequence[str] | None) -> tuple[str, str]:
    """The names of the image and the mask column."""
    pictures = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
    listed = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in features.items())
    hint = "Name the two that are meant: data.columns [image, mask]."
    if columns is not None:
        lost = [name for name in columns if name not in pictures]
        if lost:
            raise UserError(
                f"data.columns: {lost[0]!r} is no column of images; this data set has {listed}."
            )
        return columns[0], columns[1]
    image = next((name for name in IMAGES if name in pictures), None)
    rest = [name for name in pictures if name != image]
    mask = next((name for name in MASKS if name in rest), rest[0] if len(rest) == 1 else None)
    if image is None and mask is not None and len(pictures) == 2:
        image = next(name for name in pictures if name != mask)
    if image is None or mask is None:
        raise UserError(f"which columns are image and mask? This data set has {listed}. {hint}")
    return image, mask
