"""Generated data sets: an image is a function of (seed, split, index) and the size."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hemnet.data.dataset import SegmentationDataset
from hemnet.errors import UserError

LENGTHS = {"train": 4000, "val": 400}
MAX_SIZE, MAX_LENGTH = 4096, 100_000_000

Drawing = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # image 3,H,W and mask H,W


class GeneratedDataset(SegmentationDataset):
    """`length` images of `size` (a side, or height and width); train and val share none."""

    min_size: ClassVar[int] = 32

    def __init__(
        self,
        split: str = "train",
        *,
        size: int | Sequence[int] = 128,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        name, least = self.info.name, self.min_size
        if split not in LENGTHS:
            raise UserError(f"{name} split {split!r}: expected one of {', '.join(LENGTHS)}.")
        height, width = (size, size) if isinstance(size, int) else size
        if not least <= min(height, width) <= max(height, width) <= MAX_SIZE:
            raise UserError(
                f"{name} of {str(height)[:30]}×{str(width)[:30]}: expected {least} to {MAX_SIZE} "
                "pixels each way."
            )
        if length is not None and not 1 <= length <= MAX_LENGTH:
            raise UserError(
                f"{str(length)[:30]} images of {name}: expected at least 1, at most {MAX_LENGTH:,}."
            )
        if seed < 0:
            raise UserError(f"seed {seed} of {name}: expected 0 or more.")
        self.split, self.size, self.seed = split, (height, width), seed
        self.length = length or LENGTHS[split]

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Drawing:
        """An image, from these random numbers alone."""

    def __len__(self) -> int:
        return self.length

    def id(self, index: int) -> str:
        return f"{self.split}-{self.seed}-{index}"

    def generator(self, index: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, list(LENGTHS).index(self.split), index])

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.draw(self.generator(index))
        return torch.from_numpy(image), torch.from_numpy(mask)
