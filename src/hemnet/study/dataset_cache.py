"""A data set that keeps what it has read, for many runs in one process."""

from __future__ import annotations

from torch import Tensor

from hemnet.data.dataset import SegmentationDataset

LIMIT = 2**30  # bytes of images and masks that are kept


class CachedDataset(SegmentationDataset):
    """The same images as `source`, each read once while there is room."""

    def __init__(self, source: SegmentationDataset, limit: int = LIMIT) -> None:
        self.source, self.info, self.split = source, source.info, source.split
        self.notes = source.notes
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._room = limit

    def __len__(self) -> int:
        return len(self.source)

    def id(self, index: int) -> str:
        return self.source.id(index)

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        if index not in self._kept:
            image, mask = self.source.read(index)
            if image.nbytes + mask.nbytes > self._room:
                return image, mask
            self._room -= image.nbytes + mask.nbytes
            self._kept[index] = image, mask
        return self._kept[index]
