"""What the bases attend to: the most distinct of them, their classes, features as colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hemnet.data.dataset import SegmentationDataset
from hemnet.errors import UserError
from hemnet.inspection.em_trace import analyse, find_unit, trace_unit
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import EMUnit
from hemnet.nn.geometry import Placement
from hemnet.progress import track


def most_distinct(responsibilities: Tensor, count: int) -> list[int]:
    """Indices of the bases whose maps K,h,w differ most from each other.

    Gram-Schmidt with pivoting: each time the map with the largest variance left after projecting
    out the chosen ones.
    """
    rest = responsibilities.flatten(1).double()
    rest = rest - rest.mean(1, keepdim=True)
    chosen: list[int] = []
    for _ in range(min(count, len(rest))):
        norms = rest.norm(dim=1)
        norms[chosen] = -1.0
        best = int(norms.argmax())
        chosen.append(best)
        direction = rest[best] / norms[best].clamp_min(1e-300)
        rest = rest - (rest @ direction)[:, None] * direction
    return chosen


def choose_bases(
    responsibilities: Tensor, count: int, wanted: Sequence[int] | None = None
) -> list[int]:
    """The bases to draw, from 0: those asked for (from 1), or the `count` most distinct maps."""
    if wanted is None:
        return most_distinct(responsibilities, count)
    known = len(responsibilities)
    for k in wanted:
        if not 1 <= k <= known:
            raise UserError(f"basis {k}: this model has the bases 1 to {known}.")
    return [k - 1 for k in wanted]


@dataclass(frozen=True)
class FeatureColours:
    """Features as red, green and blue: the three main directions of a map, and its scale."""

    mean: Tensor  # C,1
    directions: Tensor  # up to 3,C
    low: Tensor  # up to 3: what is black
    high: Tensor  # up to 3: what is full

    @classmethod
    def of(cls, features: Tensor) -> FeatureColours:
        """features: C,h,w."""
        flat = features.flatten(1).double()
        mean = flat.mean(1, keepdim=True)
        flat = flat - mean
        _, vectors = torch.linalg.eigh(flat @ flat.T)  # the largest last
        directions = vectors[:, -min(3, *flat.shape) :].flip(1).T
        # The sign of a direction is arbitrary: the larger side is bright.
        seen = directions @ flat
        signs = (seen.amax(1) + seen.amin(1)).sign()
        directions = directions * torch.where(signs == 0, torch.ones_like(signs), signs)[:, None]
        seen = directions @ flat
        return cls(mean, directions, seen.quantile(0.02, dim=1), seen.quantile(0.98, dim=1))

    def picture(self, features: Tensor) -> Tensor:
        """C,h,w → 3,h,w in 0 … 1."""
        projected = self.directions @ (features.flatten(1).double() - self.mean)
        scaled = (projected - self.low[:, None]) / (self.high - self.low).clamp_min(1e-9)[:, None]
        colours = F.pad(scaled.clamp(0, 1), (0, 0, 0, 3 - len(scaled)))  # 3,N
        return colours.unflatten(1, features.shape[1:])


def attention_by_class(
    responsibilities: Tensor, labels: Tensor, placement: Placement, classes: int
) -> Tensor:
    """How much of each basis falls on each class: K,h,w and labels H,W → K,classes, void left out.

    A position belongs to the class of the pixel it lies on.
    """
    rows, columns = map(placement.pixels, responsibilities.shape[1:], labels.shape)
    labels = labels[rows][:, columns].long()
    known = labels < classes
    one_hot = F.one_hot(labels[known], classes).to(responsibilities)  # n,classes
    return responsibilities[:, known] @ one_hot


def class_shares(
    model: Segmenter,
    dataset: SegmentationDataset,
    limit: int | None = None,
    iterations: int | None = None,
) -> tuple[Tensor, Tensor]:
    """What each basis attends to over a data set, K × classes, and its share of all attention, K.

    A row is the share of the basis' last responsibilities that falls on each class; void positions
    do not count.
    """
    unit = needed_unit(model)
    total = torch.zeros(())
    count = min(len(dataset), limit or len(dataset))
    for index in track(range(count), "attention by class", total=count):
        image, mask = dataset.read(index)
        analysis = analyse(model, image[None], iterations)
        assert analysis.features is not None
        trace = trace_unit(unit, analysis.features, iterations)
        gamma = trace.responsibilities(trace.iterations)[0].double()
        total = total + attention_by_class(gamma, mask, analysis.placement, dataset.num_classes)
    mass = total.sum(1)
    return total / mass.clamp_min(1e-300)[:, None], mass / mass.sum()


def needed_unit(model: Segmenter) -> EMUnit:
    """The model's EM unit; an error without one."""
    unit = find_unit(model)
    if unit is None:
        raise UserError(f"a {model.config.model} has no EM unit to look into")
    return unit
