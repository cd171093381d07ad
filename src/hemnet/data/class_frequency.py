"""Class frequencies of a data set, and loss weights from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemnet.data.counts import count_values, read_all
from hemnet.data.dataset import SegmentationDataset
from hemnet.data.labels import VOID, Mask
from hemnet.errors import DataError


@dataclass(frozen=True)
class ClassFrequency:
    """Pixels of each class in `images` labels of a data set."""

    pixels: NDArray[np.int64]  # of each class
    void: int
    images: int
    heights: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def shares(self) -> NDArray[np.float64]:
        """Of the labelled pixels."""
        return self.pixels / max(1, int(self.pixels.sum()))

    @property
    def present(self) -> int:
        """Number of classes with at least one pixel."""
        return int((self.pixels > 0).sum())


def count_classes(dataset: SegmentationDataset, limit: int = 100) -> ClassFrequency:
    """Count the pixels in up to `limit` labels, evenly spread over the data set.

    Broken files are left out.
    """

    def labels(index: int) -> Mask | None:
        try:
            return dataset.labels(index)
        except DataError:
            return None

    count = min(limit, len(dataset))
    chosen = sorted({round(i) for i in np.linspace(0, len(dataset) - 1, count)})
    found = [mask for mask in read_all(labels, chosen, "counting classes") if mask is not None]
    totals = sum((count_values(mask) for mask in found), np.zeros(256, np.int64))
    return ClassFrequency(
        totals[: dataset.num_classes],
        int(totals[VOID]),
        len(found),
        tuple(mask.shape[0] for mask in found),
        tuple(mask.shape[1] for mask in found),
    )


def balanced_weights(found: ClassFrequency, largest: float = 10.0) -> list[float]:
    """A weight for each class that grows as it gets rare: 1/√share, at most `largest` times the
    smallest, scaled so that the mean over the pixels is 1. A class without a pixel gets the
    largest.
    """
    shares = np.where(found.pixels > 0, found.shares, np.nan)
    weights = 1 / np.sqrt(shares)
    weights = np.minimum(weights / np.nanmin(weights), largest)
    weights = np.where(np.isnan(weights), np.nanmax(weights), weights)
    weights /= float((weights * found.shares).sum())
    return [round(float(value), 4) for value in weights]
