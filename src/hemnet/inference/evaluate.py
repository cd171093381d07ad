"""Evaluate a model on a data set: every image once, on one process or many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hemnet.data.dataset import SegmentationDataset
from hemnet.data.loading import Batch, evaluation_batches
from hemnet.data.transforms import Augmentation
from hemnet.errors import UserError
from hemnet.inference.metrics import Evaluation, ImageScore, class_iou, confusion_matrix
from hemnet.inference.options import InferenceOptions
from hemnet.inference.probabilities import em_iterations, predict_classes
from hemnet.progress import track


def evaluate(
    model: nn.Module,
    dataset: SegmentationDataset,
    options: InferenceOptions | None = None,
    *,
    workers: int = 0,
    device: torch.device | str | None = None,
    progress: str | None = "evaluating",
) -> Evaluation:
    """The model's confusion matrix on all images of the data set.

    When torch.distributed is initialised, every rank sees its share of the images, each image is
    seen once, and the result is the same on every rank. Nothing of the caller's changes: not the
    model's mode and not the random numbers.

    Args:
        model: any module from normalised images B,3,H,W to logits B,classes,H,W.
        dataset: what `open_dataset` gave.
        options: how to look; None for one look at each image as it is.
        workers: processes that read images.
        device: where to compute; None for the model's.
        progress: name of the bar, drawn on a terminal by the first process; None draws none.
    """
    options = options or InferenceOptions()
    # Not through DistributedDataParallel: it synchronises buffers in every forward pass, which
    # waits for ever when ranks have different numbers of images.
    model = _unwrapped(model)
    config = getattr(model, "config", None)
    known = getattr(config, "num_classes", dataset.num_classes)
    if known != dataset.num_classes:
        raise UserError(
            f"the model knows {known} classes, but {dataset.info.name} has {dataset.num_classes}. "
            "Evaluate it on the data set it was trained for."
        )
    rank, world = _place()
    if device is None:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
    device = torch.device(device)
    batches = evaluation_batches(
        dataset,
        normalisation(model),
        workers=workers,
        rank=rank,
        world_size=world,
        device=device,
        pin_memory=device.type == "cuda",
    )
    confusion = torch.zeros(dataset.num_classes, dataset.num_classes, dtype=torch.int64)
    scores: list[ImageScore] = []
    failure: Exception | None = None
    with _undisturbed(model), em_iterations(model, options.iterations):
        try:
            source: Iterable[Batch] = batches
            if progress is not None and rank == 0:
                source = track(batches, progress, total=len(batches))
            for batch in _joined(source, options.batch_size):
                predictions = predict_classes(model, batch.images, options).cpu()
                for label, prediction, name in zip(
                    batch.masks.cpu(), predictions, batch.ids, strict=True
                ):
                    found = confusion_matrix(label, prediction, dataset.num_classes)
                    confusion += found
                    scores.append(ImageScore(name, float(class_iou(found).nanmean())))
        except Exception as error:  # the other ranks wait for this one: tell them first
            if world == 1:
                raise
            failure = error
    if world > 1:
        confusion, scores = _summed(confusion, scores, failure)
    if not confusion.any():
        raise UserError(
            f"{dataset.info.name} {dataset.split}: no pixel is labelled, so there is nothing to "
            "compare with."
        )
    return Evaluation(confusion, tuple(dataset.info.classes), tuple(scores), options)


def guessed(dataset: SegmentationDataset) -> Evaluation | None:
    """The figures of the data set's own `guess`, None where it has none: to set beside a model's.

    The same on every process, each of which counts all images.
    """
    if dataset.info.baseline is None:
        return None
    confusion = torch.zeros(dataset.num_classes, dataset.num_classes, dtype=torch.int64)
    for index in range(len(dataset)):
        _, mask = dataset.read(index)
        guess = dataset.guess(index, mask)
        if guess is None:
            return None
        confusion += confusion_matrix(mask, guess, dataset.num_classes)
    return Evaluation(confusion, tuple(dataset.info.classes))


def normalisation(model: nn.Module) -> Augmentation:
    """What the model's images are normalised with: its own mean and std where it knows them."""
    config = getattr(_unwrapped(model), "config", None)
    mean, std = getattr(config, "mean", None), getattr(config, "std", None)
    if mean is None or std is None:
        return Augmentation()
    return Augmentation(mean=mean, std=std)


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel; torch.compile's wrapper passes attributes on."""
    while isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module
    return model


def _place() -> tuple[int, int]:
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards mode and random numbers (a loader draws one) as before."""
    modes = [(module, module.training) for module in model.modules()]
    state = torch.get_rng_state()
    model.eval()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        for module, training in modes:
            module.training = training


def _joined(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Batches of one image put together while they have the same size, at most `count`."""
    waiting: list[Batch] = []
    for batch in batches:
        if waiting and (len(waiting) == count or waiting[0].images.shape != batch.images.shape):
            yield _together(waiting)
            waiting = []
        waiting.append(batch)
    if waiting:
        yield _together(waiting)


def _together(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    images = torch.cat([batch.images for batch in batches])
    masks = torch.cat([batch.masks for batch in batches])
    return Batch(images, masks, [name for batch in batches for name in batch.ids])


def _summed(
    confusion: Tensor, scores: list[ImageScore], failure: Exception | None
) -> tuple[Tensor, list[ImageScore]]:
    """Over all ranks. If one has failed, all raise."""
    mine = (confusion, scores, None if failure is None else (_kind(failure), str(failure)))
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, mine)
    if failure is not None:
        raise failure
    for number, (_, _, problem) in enumerate(gathered):
        if problem is not None:
            kind, text = problem
            raise kind(f"process {number} could not evaluate: {text}")
    total = torch.stack([matrix for matrix, _, _ in gathered]).sum(0)
    # Rank r has images r, r + world, …: dealt out again, they are in the order of the data set.
    shares = [share for _, share, _ in gathered]
    longest = max(len(share) for share in shares)
    return total, [s[i] for i in range(longest) for s in shares if i < len(s)]


def _kind(error: Exception) -> type[Exception]:
    return UserError if isinstance(error, UserError) else RuntimeError
