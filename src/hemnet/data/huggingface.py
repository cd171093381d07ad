"""Hugging Face `datasets` with an image and a mask column, from disk or from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hemnet.data.dataset import Info, SegmentationDataset, read_image
from hemnet.data.labels import LabelEncoding, read_label
from hemnet.errors import DataError, UserError

IMAGES = ("image", "pixel_values", "img", "images", "photo")
MASKS = (
    *("mask", "label", "labels", "annotation", "annotations", "segmentation_mask"),
    *("semantic_mask", "segmentation", "seg_map", "masks", "gt", "ground_truth"),
)


def load(root: str) -> dict[str, Any]:
    """The splits of a data set: a folder that `save_to_disk` wrote, or a name on the hub."""
    try:
        import datasets  # an extra
    except ImportError:
        raise UserError(
            "the data set hf needs the package `datasets`: pip install 'hemnet-torch[hf]'."
        ) from None
    try:
        local = Path(root).is_dir()
        found = datasets.load_from_disk(root) if local else datasets.load_dataset(root)
    except Exception as error:  # of many kinds, from network and parsers
        wanted = (
            f"{root}: not a folder that `dataset.save_to_disk` wrote"
            if local
            else f"{root!r} is neither a folder nor a data set on the hub"
        )
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{wanted}: {first_line}") from None
    return dict(found) if isinstance(found, dict) else {"all": found}


class HuggingFaceDataset(SegmentationDataset):
    """Rows of a data set, decoded like files: palette, grey and coloured masks of 8 or 16 bits."""

    def __init__(
        self,
        info: Info,
        split: str,
        rows: Any,
        encoding: LabelEncoding,
        columns: Sequence[str] | None = None,
    ) -> None:
        import datasets  # an extra

        self.info, self.split, self.encoding = info, split, encoding
        self.image, self.mask = find_columns(rows.features, columns)
        stored = datasets.Image(decode=False)  # bytes: decoded here, by our rules
        self.rows = rows.cast_column(self.image, stored).cast_column(self.mask, stored)

    def __len__(self) -> int:
        return len(self.rows)

    def id(self, index: int) -> str:
        return f"{self.split}-{index:06}"

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        row, place = self.rows[index], f"row {index} of {self.split}, column "
        image = read_image(_content(row, self.image, place), place + self.image)
        name = place + self.mask
        content = _content(row, self.mask, place)
        labels = read_label(content, self.encoding, name)
        if image.shape[1:] != labels.shape:
            raise DataError(
                f"{name}: {labels.shape[1]}×{labels.shape[0]} pixels, but its image has "
                f"{image.shape[2]}×{image.shape[1]}."
            )
        return image, torch.from_numpy(labels)


def _content(row: dict[str, Any], column: str, place: str) -> bytes:
    """Of an image file, which is in the row or beside it."""
    cell = row[column] or {}
    try:
        return cell.get("bytes") or Path(cell["path"]).read_bytes()
    except (KeyError, TypeError, OSError) as error:
        raise DataError(f"cannot read the image {place}{column}: {error!r}") from None


def find_columns(features: Any, columns: Sequence[str] | None) -> tuple[str, str]:
    """The names of the image and the mask column."""
    found = [name for name, kind in features.items() if type(kind).__name__ == "Image"]
    listed = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in features.items())
    if columns is not None:
        lost = [name for name in columns if name not in found]
        if lost:
            raise UserError(
                f"columns: {lost[0]!r} is not an image column; this data set has {listed}."
            )
        return columns[0], columns[1]
    image = next((name for name in IMAGES if name in found), None)
    rest = [name for name in found if name != image]
    mask = next((name for name in MASKS if name in rest), rest[0] if len(rest) == 1 else None)
    if image is None and mask is not None and len(found) == 2:
        image = next(name for name in found if name != mask)
    if image is None or mask is None:
        raise UserError(
            f"which columns are image and mask? This data set has {listed}. Name the two as "
            "`columns`."
        )
    return image, mask
