"""Batches for training and evaluation loops."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from hemnet.data.dataset import SegmentationDataset
from hemnet.data.labels import VOID
from hemnet.data.sampler import EndlessSampler, Key
from hemnet.data.transforms import Augmentation, normalise, seeded_draws, training_transform
from hemnet.errors import DataError

log = logging.getLogger("hemnet")

OnError = Literal["raise", "skip"]
Transform = Callable[[tv_tensors.Image, tv_tensors.Mask], tuple[Tensor, Tensor]]
MAX_SKIPS = 16  # in a row: beyond this the data set is broken, not a file


@dataclass
class Batch:
    """Images and their labels.

    Attributes:
        images: B,3,H,W float32, normalised.
        masks: B,H,W int64 with 255 for void.
        valid: B,H,W, True on the images and False on what was added to bring them to one size;
            None where nothing was.
        ids: names of the B pairs.
        skipped: why files were left out of this batch.
    """

    images: Tensor
    masks: Tensor
    ids: list[str]
    skipped: list[str] = field(default_factory=list)
    valid: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def pin_memory(self) -> Batch:
        valid = None if self.valid is None else self.valid.pin_memory()
        return Batch(
            self.images.pin_memory(), self.masks.pin_memory(), self.ids, self.skipped, valid
        )


@dataclass
class _Item:
    image: Tensor
    mask: Tensor
    id: str
    skipped: list[str]
    padding: Tensor | None = None  # H,W, not 0 on padding


class Transformed(Dataset[_Item]):
    """Reads and transforms `dataset[(epoch, index)]` with that key's random numbers.

    A broken file travels to the main process as a message, not as an exception, because an
    exception from a worker arrives wrapped in a traceback that hides the name of the file.
    """

    def __init__(
        self,
        dataset: SegmentationDataset,
        transform: Transform | None,
        *,
        seed: int = 0,
        substitute: bool = False,
    ) -> None:
        self.dataset, self.transform, self.seed = dataset, transform, seed
        self.substitute = substitute  # read the next file instead of a broken one

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key | int) -> _Item:
        epoch, index = (0, key) if isinstance(key, int) else key
        skipped: list[str] = []
        for _ in range(MAX_SKIPS):
            try:
                image, mask = self.dataset.read(index)
            except DataError as error:
                skipped.append(str(error))
                if not self.substitute:
                    break
                index = (index + 1) % len(self.dataset)  # its neighbour, so still deterministic
                continue
            parts = [tv_tensors.Image(image), tv_tensors.Mask(mask)]
            if isinstance(self.transform, v2.Transform):  # these take any number of parts
                parts.append(tv_tensors.Mask(torch.zeros_like(mask)))
            if self.transform is not None:
                with seeded_draws(self.seed, epoch, index):
                    parts = list(self.transform(*parts))
            # Plain tensors: tv_tensors cost time in every later operation.
            image, mask, *padding = (part.as_subclass(Tensor) for part in parts)
            return _Item(image, mask, self.dataset.id(index), skipped, *padding)
        return _Item(torch.empty(0), torch.empty(0), "", skipped)


def collate(items: Sequence[_Item]) -> Batch:
    skipped = [reason for item in items for reason in item.skipped]
    items = [item for item in items if item.id]
    if not items:
        return Batch(torch.empty(0), torch.empty(0), [], skipped)
    height, width = (max(item.mask.shape[axis] for item in items) for axis in (0, 1))
    masks, images, padding = [], [], []
    for item in items:
        room = (0, width - item.mask.shape[1], 0, height - item.mask.shape[0])
        empty = torch.zeros_like(item.mask) if item.padding is None else item.padding
        images.append(_extended(item.image, room, 0))
        masks.append(_extended(item.mask, room, VOID))
        padding.append(_extended(empty, room, VOID))
    valid = torch.stack(padding) == 0
    # Still 8 bits: a fifth of the bytes to hand from a worker to the main process, or to a GPU.
    return Batch(
        torch.stack(images),
        torch.stack(masks),
        [item.id for item in items],
        skipped,
        None if valid.all() else valid,
    )


def _extended(x: Tensor, room: tuple[int, int, int, int], value: int) -> Tensor:
    return pad(x, room, value=value) if any(room) else x


class Batches:
    """Iterates over batches; raises or counts what could not be read.

    `skipped` counts, by message, the files left out so far (`on_error="skip"`). Training takes the
    next image instead, so batches stay full; evaluation leaves the image out.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        augmentation: Augmentation,
        on_error: OnError,
        device: torch.device | str | None,
        *,
        endless: bool,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error {on_error!r}: expected 'raise' or 'skip'")
        self.loader, self.augmentation, self.on_error = loader, augmentation, on_error
        self.device, self.endless = device, endless
        self.skipped: Counter[str] = Counter()

    def __len__(self) -> int:
        if self.endless:
            raise TypeError("training batches have no end; count steps instead")
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            if batch.skipped and self.on_error == "raise":
                raise DataError(batch.skipped[0])
            for reason in batch.skipped:
                if reason not in self.skipped:
                    log.warning("left out: %s", reason)
                self.skipped[reason] += 1
            if self.endless and len(batch) != self.loader.batch_size:
                raise DataError(f"{MAX_SKIPS} files in a row are broken: {batch.skipped[-1]}")
            if len(batch):
                yield self._finish(batch)

    def _finish(self, batch: Batch) -> Batch:
        """Move to the device and normalise."""
        images, masks, valid = batch.images, batch.masks, batch.valid
        if self.device is not None:
            images, masks = (t.to(self.device, non_blocking=True) for t in (images, masks))
            valid = None if valid is None else valid.to(self.device, non_blocking=True)
        if images.dtype == torch.uint8:  # else a transform of the user's has done it
            images = normalise(images, self.augmentation.mean, self.augmentation.std)
        if valid is not None:  # the mean colour, exactly
            images = images * valid[:, None]
        return Batch(images, masks.long(), batch.ids, batch.skipped, valid)


def training_batches(
    dataset: SegmentationDataset,
    augmentation: Augmentation | None = None,
    *,
    batch_size: int = 16,
    workers: int = 0,
    seed: int = 0,
    step: int = 0,
    rank: int = 0,
    world_size: int = 1,
    on_error: OnError = "raise",
    transform: Transform | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool = False,
) -> Batches:
    """Endless batches for training.

    The same arguments give the same batches whatever `workers` is, and the batches from step s on
    are those an uninterrupted run would have had.

    Args:
        dataset: what `open_dataset` gave.
        augmentation: crop, scale, flip, jitter and normalisation; None for the paper's.
        batch_size: images of this rank in a batch.
        workers: processes that read; 0 reads in this one.
        seed: of order and augmentation.
        step: the batch to begin with.
        rank: of this process among `world_size`; each takes its share of one order.
        world_size: number of processes.
        on_error: "raise", or "skip" to take the next image instead of a broken one.
        transform: instead of the augmentation's own; takes and gives an image and a mask, and
            what it leaves in uint8 is normalised here.
        device: where the batches go.
        pin_memory: for faster copies to a GPU.
    """
    config = augmentation or Augmentation()
    chosen = transform or training_transform(config)
    data = Transformed(dataset, chosen, seed=seed, substitute=on_error == "skip")
    sampler = EndlessSampler(
        len(dataset),
        seed=seed,
        rank=rank,
        world_size=world_size,
        start=step * batch_size * world_size,
    )
    loader = _loader(data, sampler, batch_size, workers, pin_memory)
    return Batches(loader, config, on_error, device, endless=True)


def evaluation_batches(
    dataset: SegmentationDataset,
    augmentation: Augmentation | None = None,
    *,
    batch_size: int = 1,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
    on_error: OnError = "raise",
    device: torch.device | str | None = None,
    pin_memory: bool = False,
) -> Batches:
    """Every image of this rank's share once, in order, at its own size, only normalised.

    The arguments are those of `training_batches`; of `augmentation` only mean and std are used.
    """
    data = Transformed(dataset, None)
    order = range(rank, len(dataset), world_size)
    loader = _loader(data, order, batch_size, workers, pin_memory)
    return Batches(loader, augmentation or Augmentation(), on_error, device, endless=False)


def _loader(
    data: Transformed, order: Any, batch_size: int, workers: int, pin_memory: bool
) -> DataLoader[Any]:
    return DataLoader(
        data,
        batch_size,
        sampler=order,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        worker_init_fn=_start_worker,
    )


def _start_worker(number: int) -> None:
    torch.set_num_threads(1)  # workers share the cores with each other and the network
    # Terminals and job schedulers tell every process to stop; it is for the main one to do so.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
