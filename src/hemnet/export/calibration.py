"""Images for int8: some to calibrate activation ranges, others to evaluate the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from hemnet.data.catalog import list_datasets
from hemnet.data.dataset import SegmentationDataset
from hemnet.errors import UserError
from hemnet.export.quantise import Calibration
from hemnet.image_io import read_image
from hemnet.inference.input_files import find_images
from hemnet.models.segmenter import Segmenter
from hemnet.training.setup import known_data, open_split

LARGEST = 1024  # side of the centre crop that is used


class LazyTensors(Sequence[Tensor]):
    """Tensors that are read on access."""

    def __init__(self, reader: Callable[[int], Tensor], indices: Sequence[int]) -> None:
        self.reader, self.indices = reader, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        if isinstance(index, slice):
            return LazyTensors(self.reader, self.indices[index])
        return self.reader(self.indices[index])


def calibration_data(
    model: Segmenter,
    data: str,
    *,
    source: str | Path | None = None,
    root: str | None = None,
    images: int = 32,
    held_out: int = 100,
) -> Calibration:
    """Evenly spaced images of a data set with labels, or of files without.

    Args:
        data: the name of a data set, or a folder, file or pattern of images. Of a data set, its
            training part calibrates and its validation part judges; of files, every second.
        source: the model's run folder, which knows its data set.
        root: the folder of a data set.
        images: how many to calibrate on, at most.
        held_out: how many to judge by, at most.
    """
    if images < 1 or held_out < 1:
        raise UserError("int8 needs at least one image to calibrate on and one to judge by.")
    if data in list_datasets() and not (root is None and Path(data).exists()):
        train, val = _datasets(data, source, root)
        names = model.config.classes
        if train.num_classes != model.config.num_classes or (
            names is not None and names != tuple(train.info.classes)
        ):
            raise UserError(
                f"the model's classes are not those of {data}. Calibrate on the data it was "
                "trained for, or give a folder of its images."
            )
        chosen = _spaced(len(val), held_out)
        return Calibration(
            LazyTensors(lambda i: _prepared(model, train[i][0]), _spaced(len(train), images)),
            LazyTensors(lambda i: _prepared(model, val[i][0]), chosen),
            LazyTensors(lambda i: _middle(val[i][1]), chosen),
            train.info.name,
        )
    files = find_images([data])
    if len(files) < 2:
        raise UserError(f"{data}: one image is not enough; a second is needed to judge by.")

    def read(index: int) -> Tensor:
        picture = torch.from_numpy(read_image(files[index].path)).permute(2, 0, 1)
        return _prepared(model, picture)

    half = (len(files) + 1) // 2
    return Calibration(
        LazyTensors(read, [2 * i for i in _spaced(half, images)]),
        LazyTensors(read, [2 * i + 1 for i in _spaced(len(files) - half, held_out)]),
        None,
        Path(data).name or data,
    )


def _datasets(
    name: str, source: str | Path | None, root: str | None
) -> tuple[SegmentationDataset, SegmentationDataset]:
    known = known_data(source, name)
    assert known is not None
    if root is not None:
        known.root = root
    val = known.val_split or "val"
    train = open_split(known, known.split, known.length)
    return train, open_split(known, val, known.val_length)


def _spaced(length: int, count: int) -> list[int]:
    count = min(length, count)
    return [i * length // count for i in range(count)]


def _prepared(model: Segmenter, picture: Tensor) -> Tensor:
    """3,H,W bytes → 1,3,H,W normalised, the centre of large images."""
    return model.normalise(_middle(picture).permute(1, 2, 0).contiguous().numpy())


def _middle(x: Tensor) -> Tensor:
    """…,H,W → a centre crop of at most LARGEST pixels a side."""
    for axis in (-2, -1):
        length = min(x.shape[axis], LARGEST)
        x = x.narrow(axis, (x.shape[axis] - length) // 2, length)
    return x
