"""How often each class is in a data set, from some of its labels."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemnet.data.dataset import FileDataset, SegmentationDataset
from hemnet.data.labels import VOID, DataError, read_label
from hemnet.progress import track


@dataclass(frozen=True)
class Survey:
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
        """How many classes there are pixels of."""
        return int((self.pixels > 0).sum())


def survey(dataset: SegmentationDataset, limit: int = 100) -> Survey:
    """Look at up to `limit` labels, evenly spread over the data set. Broken files are left out."""
    count = min(limit, len(dataset))
    chosen = sorted({round(i) for i in np.linspace(0, len(dataset) - 1, count)})
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = list(
            track(pool.map(lambda i: _labels(dataset, i), chosen), "looking at labels", len(chosen))
        )
    seen = [labels for labels in found if labels is not None]
    totals = sum((np.bincount(x.ravel(), minlength=256) for x in seen), np.zeros(256, np.int64))
    return Survey(
        totals[: dataset.num_classes],
        int(totals[VOID]),
        len(seen),
        tuple(labels.shape[0] for labels in seen),
        tuple(labels.shape[1] for labels in seen),
    )


def _labels(dataset: SegmentationDataset, index: int) -> NDArray[np.uint8] | None:
    try:
        if isinstance(dataset, FileDataset):
            return read_label(dataset.pairs[index].label, dataset.coding)
        return dataset.read(index)[1].numpy()
    except DataError:
        return None


def balanced_weights(found: Survey, largest: float = 10.0) -> list[float]:
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
