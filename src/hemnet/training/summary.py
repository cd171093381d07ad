"""What a run says before its first step: data, classes, network, device, and what is odd."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from hemnet.data.class_frequency import ClassFrequency, balanced_weights, count_classes
from hemnet.data.dataset import SegmentationDataset
from hemnet.errors import UserError
from hemnet.models.segmenter import Segmenter
from hemnet.training.config import DataConfig, LossConfig, TrainConfig

log = logging.getLogger("hemnet")

LOOKED_AT, COUNTED = 100, 1000  # labels: for the opening lines, and for class weights
PADDED = 0.3  # share of padding in a crop from which a warning is due


def look(config: TrainConfig, dataset: SegmentationDataset) -> ClassFrequency:
    """The classes in the training labels; refuses data in which there is nothing to tell apart."""
    limit = COUNTED if config.loss.class_weights == "auto" else LOOKED_AT
    found = count_classes(dataset, limit)
    if found.present < 2 <= len(dataset) and found.images < len(dataset):
        found = count_classes(dataset, len(dataset))
    if found.present < 2 and found.images:
        raise UserError(nothing_to_learn(dataset, found))
    return found


def nothing_to_learn(dataset: SegmentationDataset, found: ClassFrequency) -> str:
    """Why labels with one class teach nothing, and the cure where it is known."""
    only = next((n for n, c in zip(dataset.info.classes, found.pixels, strict=True) if c), None)
    what = f"every labelled pixel is {only!r}" if only else "no pixel is labelled"
    text = f"{dataset.info.name} {dataset.split}: {what} in {found.images} labels"
    if found.void:
        share = found.void / max(1, found.void + int(found.pixels.sum()))
        return (
            f"{text}, and {share:.1%} of the pixels are 255, which is void and does not count. If "
            "255 is the foreground of binary masks, give it a class of its own: "
            "`label_map={0: 0, 255: 1}`"
        )
    return f"{text}: there is nothing to learn. Look at the labels: hemnet data show"


def resolved_loss(
    config: LossConfig, dataset: SegmentationDataset, found: ClassFrequency | None = None
) -> LossConfig:
    """With class weights from the data where they are `auto`."""
    if config.class_weights != "auto":
        return config
    return replace(config, class_weights=balanced_weights(found or count_classes(dataset, COUNTED)))


def opening(
    config: TrainConfig,
    train: SegmentationDataset,
    val: SegmentationDataset | None,
    found: ClassFrequency,
    model: Segmenter,
    device: torch.device,
) -> Iterator[str]:
    """What is about to be done, in lines with a name of nine characters in front."""
    data, optim, classes = config.data, config.optim, train.info.classes
    images = f"{len(train):,} images of {train.split}"
    if val is not None:
        images += f", {len(val):,} of {val.split}"
    yield f"data      {images} · {train.info.name}{f' {data.root}' if data.root else ''}"
    order = np.argsort(-found.pixels, kind="stable")
    parts = [f"{classes[k]} {_percent(found.shares[k])}" for k in order[:12]]
    rest = f" and {len(order) - 12} more" if len(order) > 12 else ""
    void = found.void / max(1, found.void + int(found.pixels.sum()))
    shown = f" · void {_percent(void)}" if found.void else ""
    yield f"classes   {' · '.join(parts)}{rest}{shown} (of {found.images} labels)"
    weights = config.loss.class_weights
    if isinstance(weights, list) and len(weights) == len(classes):
        chosen = (f"{classes[k]} {weights[k]:.2f}" for k in order[:12])
        yield f"weights   of the classes in the loss: {' · '.join(chosen)}{rest}"
    count = sum(p.numel() for p in model.parameters())
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = "" if trained == count else f", {trained / 1e6:.2f} M of them trained"
    made = model.config
    yield (
        f"network   {made.model} on {made.backbone}, stride {made.output_stride}: "
        f"{count / 1e6:.2f} M parameters{frozen}"
    )
    yield f"backbone  {_start(config, model)}"
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    yield f"device    {device}{threads}, {config.run.precision}"
    passes = f" in {optim.accumulate} passes" if optim.accumulate != 1 else ""
    height, width = data.crop
    epochs = optim.steps * optim.batch_size / len(train)
    yield (
        f"training  {optim.steps:,} steps of {optim.batch_size} crops of {height}×{width}{passes}: "
        f"every image {epochs:,.1f} times"
    )


def _start(config: TrainConfig, model: Segmenter) -> str:
    if config.model.init_from is not None:
        return f"starts as the model of {config.model.init_from}"
    if model.weights_report is not None:
        return str(model.weights_report)
    if config.model.weights == "imagenet":
        return "ImageNet weights of timm"
    return "random weights: from scratch a few hundred images are few (model.weights imagenet)"


def _percent(share: float) -> str:
    return "0%" if share == 0 else "<0.01%" if share < 1e-4 else f"{100 * share:.3g}%"


def padding_note(data: DataConfig, found: ClassFrequency) -> str | None:
    """A warning where much of every crop is padding, with a crop that pads less."""
    if not found.heights:
        return None
    share = padded_share(data.crop, data.scale, found)
    if share < PADDED:
        return None
    middle = [int(statistics.median(sides)) for sides in (found.heights, found.widths)]
    side = [min(c, max(17, (m - 1) // 16 * 16 + 1)) for c, m in zip(data.crop, middle, strict=True)]
    better = padded_share((side[0], side[1]), data.scale, found)
    proposal = f"data.crop [{side[0]}, {side[1]}] pads {better:.0%}"
    if better > share - 0.05:
        low = min(1.0, data.scale[1])
        proposal = f"data.scale [{low:g}, {data.scale[1]:g}] would leave less"
    return (
        f"{share:.0%} of the training crops is padding: crops are {data.crop[0]}×{data.crop[1]} "
        f"pixels, images {middle[0]}×{middle[1]} (median), scaled by {data.scale[0]:g} to "
        f"{data.scale[1]:g}. {proposal}"
    )


def padded_share(crop: tuple[int, int], scale: tuple[float, float], found: ClassFrequency) -> float:
    """The mean share of a crop that no image fills."""
    factors = np.linspace(*scale, 16)[:, None]
    height = np.minimum(crop[0], np.array(found.heights) * factors)
    width = np.minimum(crop[1], np.array(found.widths) * factors)
    return float(1 - (height * width).mean() / (crop[0] * crop[1]))
