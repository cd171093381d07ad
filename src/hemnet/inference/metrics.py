"""Segmentation metrics, all from one confusion matrix over the whole set, as in PASCAL VOC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hemnet.data.labels import VOID
from hemnet.inference.options import InferenceOptions


def confusion_matrix(labels: Tensor, predictions: Tensor, classes: int) -> Tensor:
    """Counts of pixels, classes × classes int64, rows = label. Both are …,H,W class ids.

    Pixels labelled void are not counted, whatever was predicted there.
    """
    if labels.shape != predictions.shape:
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} and predictions of shape "
            f"{tuple(predictions.shape)}: expected the same"
        )
    known = labels != VOID
    labels, predictions = labels[known].long(), predictions[known].long()
    for name, values in (("label", labels), ("prediction", predictions)):
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < classes:
            raise ValueError(
                f"a {name} lies outside 0 … {classes - 1}: found {int(values.min())} … "
                f"{int(values.max())} (void is {VOID})"
            )
    pairs = labels * classes + predictions
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def class_iou(confusion: Tensor) -> Tensor:
    """IoU of every class in percent, float64; nan for one absent from labels and predictions."""
    counts = confusion.double()
    hits = counts.diag()
    return 100 * hits / (counts.sum(0) + counts.sum(1) - hits)  # 0/0 is nan


@dataclass(frozen=True)
class ImageScore:
    id: str
    miou: float  # percent, over the classes in the image's labels or prediction


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found. Percentages throughout.

    Attributes:
        confusion: classes × classes int64, rows = label.
        classes: names.
        images: id and mIoU of every image.
        options: how the images were looked at.
    """

    confusion: Tensor
    classes: tuple[str, ...]
    images: tuple[ImageScore, ...] = field(default=())
    options: InferenceOptions = field(default_factory=InferenceOptions)

    @property
    def miou(self) -> float:
        """Mean over the classes that occur in the labels or the predictions."""
        return float(class_iou(self.confusion).nanmean())

    @property
    def iou(self) -> dict[str, float | None]:
        """By class name; None for a class that occurs in neither labels nor predictions."""
        values = class_iou(self.confusion).tolist()
        return {
            name: None if value != value else value
            for name, value in zip(self.classes, values, strict=True)
        }

    @property
    def pixel_accuracy(self) -> float:
        """Share of the labelled pixels that are right."""
        counts = self.confusion.double()
        return float(100 * counts.diag().sum() / counts.sum())

    def ranked(self) -> list[ImageScore]:
        """Images from the worst to the best; those all void have no score and are left out."""
        scored = [image for image in self.images if image.miou == image.miou]
        return sorted(scored, key=lambda image: (image.miou, image.id))

    def to_json(self) -> dict[str, Any]:
        """`miou`, `iou`, `pixel_accuracy` and `confusion`, as `--json` writes them."""
        return {
            "miou": self.miou,
            "iou": self.iou,
            "pixel_accuracy": self.pixel_accuracy,
            "confusion": self.confusion.tolist(),
        }


def subset_miou(evaluation: Evaluation, classes: Sequence[int]) -> float:
    """mIoU of some of the classes, by number."""
    return float(class_iou(evaluation.confusion)[list(classes)].nanmean())
