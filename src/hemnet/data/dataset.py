"""The interface of data sets: pairs of image and mask, by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hemnet.data.labels import VOID, Colour, LabelEncoding, Mask, read_label
from hemnet.errors import DataError
from hemnet.image_io import open_image, to_rgb


@dataclass(frozen=True)
class Info:
    """What is known of a data set before a file is read.

    Attributes:
        name: in the catalog.
        title: for people.
        classes: names, in the order of their ids.
        palette: RGB colours in which the classes are shown.
        splits: official number of images, None where there is none.
        void: the label of pixels that do not count, 255 in all of them.
        context_classes: ids of classes that near pixels cannot tell.
        baseline: what `guess` of the data set predicts from, where it has one.
    """

    name: str
    title: str
    classes: tuple[str, ...]
    palette: tuple[Colour, ...]
    splits: Mapping[str, int | None]
    void: int = VOID
    context_classes: tuple[int, ...] = field(default=())
    baseline: str | None = None


@dataclass(frozen=True)
class Pair:
    """The files of an image and its label."""

    id: str
    image: Path
    label: Path

    @property
    def exists(self) -> bool:
        return self.image.is_file() and self.label.is_file()


class SegmentationDataset(Dataset[tuple[Tensor, Tensor, str]], ABC):
    """`dataset[i]` is (image 3,H,W uint8, mask H,W int64 with 255 for void, id).

    Attributes:
        info: classes, colours, splits.
        split: which part this is.
        notes: what the user should know, already logged.
    """

    info: Info
    split: str
    notes: Sequence[str] = ()

    @property
    def num_classes(self) -> int:
        return len(self.info.classes)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> tuple[Tensor, Tensor]:
        """Image (3, H, W) uint8 and mask (H, W) uint8, or DataError naming the file."""

    @abstractmethod
    def id(self, index: int) -> str:
        """The name of a pair, such as its file's."""

    def labels(self, index: int) -> Mask:
        """The mask alone, (H, W)."""
        return self.read(index)[1].numpy()

    def guess(self, index: int, mask: Tensor) -> Tensor | None:
        """The prediction H,W of a known shortcut, given the labels; None where none is known.

        Its figures belong beside every result on the data set; `info.baseline` describes it.
        """
        return None

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, str]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} images")
        index %= len(self)
        image, mask = self.read(index)
        return image, mask.long(), self.id(index)


class Subset(SegmentationDataset):
    """Some images of a data set."""

    def __init__(self, whole: SegmentationDataset, chosen: Sequence[int]) -> None:
        self.whole, self.info, self.split = whole, whole.info, whole.split
        self.chosen = chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def id(self, index: int) -> str:
        return self.whole.id(self.chosen[index])

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        return self.whole.read(self.chosen[index])


class FileDataset(SegmentationDataset):
    """Pairs of files."""

    def __init__(
        self,
        info: Info,
        split: str,
        pairs: Sequence[Pair],
        encoding: LabelEncoding,
        *,
        missing: Sequence[Pair] = (),
        unpaired: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.info, self.split, self.pairs, self.encoding = info, split, list(pairs), encoding
        self.missing, self.unpaired, self.notes = list(missing), list(unpaired), list(notes)

    def __len__(self) -> int:
        return len(self.pairs)

    def id(self, index: int) -> str:
        return self.pairs[index].id

    def read(self, index: int) -> tuple[Tensor, Tensor]:
        pair = self.pairs[index]
        image, mask = read_image(pair.image), torch.from_numpy(self.labels(index))
        if image.shape[1:] != mask.shape:
            raise DataError(size_mismatch(pair, image.shape[1:], mask.shape))
        return image, mask

    def labels(self, index: int) -> Mask:
        return read_label(self.pairs[index].label, self.encoding)


def size_mismatch(pair: Pair, image: Sequence[int], mask: Sequence[int]) -> str:
    turned = image[0] == mask[1] and image[1] == mask[0]
    hint = " (turned by an EXIF tag? save it upright)" if turned else ""
    return (
        f"{pair.label}: {mask[1]}×{mask[0]} pixels, but its image {pair.image} has "
        f"{image[1]}×{image[0]}{hint}. Make them the same size, or remove the pair."
    )


def read_image(source: Path | bytes, name: str | None = None) -> Tensor:
    """An image file, or its content, as RGB, (3, H, W) uint8.

    EXIF orientation is not applied: labels have none.
    """
    with open_image(source, name) as image:
        return torch.from_numpy(np.array(to_rgb(image, upright=False))).permute(2, 0, 1)
