"""Figure 4 of the paper: what the bases attend to, iteration by iteration, and which classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hemnet.data.dataset import SegmentationDataset
from hemnet.data.labels import VOID
from hemnet.data.transforms import normalise
from hemnet.em import r_step
from hemnet.errors import UserError
from hemnet.inference.evaluate import normalisation
from hemnet.inspection.em_trace import find_unit, iterate, most_distinct, watching
from hemnet.models.segmenter import Segmenter
from hemnet.nn.geometry import Placement
from hemnet.progress import track


@dataclass(frozen=True)
class Look:
    """One image through the unit. h,w: the unit's positions on it."""

    features: Tensor  # C,h,w: x
    responsibilities: list[Tensor]  # of every iteration K,h,w
    rebuilt: list[Tensor]  # of every iteration C,h,w: γ⁽ᵗ⁾μ⁽ᵗ⁾
    prediction: Tensor  # H,W
    placement: Placement  # of h,w on H,W


@torch.inference_mode()
def look(model: Segmenter, image: Tensor, iterations: int | None = None) -> Look:
    """image: 3,H,W uint8. The model is in evaluation mode."""
    unit = find_unit(model)
    if unit is None:
        raise UserError(f"a {model.config.model} has no EM unit to look into")
    settings = normalisation(model)
    device = next(model.parameters()).device
    with watching(unit) as kept:
        logits = model(normalise(image[None].to(device), settings.mean, settings.std))
    features = kept[-1].features
    x, size, plan = features.flatten(2).mT, features.shape[2:], unit.plan(iterations)
    maps, rebuilt = [], []
    for gamma, bases in iterate(x, unit.starting_bases(x), plan):
        maps.append(gamma[0].mT.unflatten(1, size).cpu())
        means = plan.mixture.means(bases)
        rebuilt.append(r_step(gamma, means)[0].mT.unflatten(1, size).cpu())
    prediction = logits.argmax(1)[0].cpu()
    return Look(features[0].cpu(), maps, rebuilt, prediction, model.backbone.placement)


def choose_bases(seen: Look, count: int, wanted: Sequence[int] | None = None) -> list[int]:
    """The bases to draw: those asked for (from 1), or the most distinct of the last iteration."""
    last = seen.responsibilities[-1]
    if wanted is None:
        return most_distinct(last, count)
    wrong = [k for k in wanted if not 1 <= k <= len(last)]
    if wrong:
        raise UserError(f"--bases {wrong[0]}: this model has the bases 1 to {len(last)}")
    return [k - 1 for k in wanted]


def main_colours(maps: Sequence[Tensor]) -> list[Tensor]:
    """Feature maps C,h,w as pictures h,w,3, in the colours of the first, so that they compare."""
    colours = Colours.of(maps[0])
    return [colours.paint(one) for one in maps]


@dataclass(frozen=True)
class Colours:
    """Features as red, green and blue: the three main directions of a map, and its scale."""

    mean: Tensor  # C,1
    directions: Tensor  # up to 3,C
    low: Tensor  # up to 3: what is black
    high: Tensor  # up to 3: what is full

    @classmethod
    def of(cls, features: Tensor) -> Colours:
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

    def paint(self, features: Tensor) -> Tensor:
        """C,h,w → h,w,3 in 0 … 1."""
        projected = self.directions @ (features.flatten(1).double() - self.mean)
        scaled = (projected - self.low[:, None]) / (self.high - self.low).clamp_min(1e-9)[:, None]
        colours = F.pad(scaled.clamp(0, 1), (0, 0, 0, 3 - len(scaled)))  # 3,N
        return colours.T.reshape(*features.shape[1:], 3)


@torch.inference_mode()
def class_shares(
    model: Segmenter, dataset: SegmentationDataset, limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """What each basis attends to over a data set, K × classes, and how much of all attention.

    A row is the share of the basis' last responsibilities that falls on each class; void positions
    do not count. The second is K, summing to 1.
    """
    mass: Tensor | None = None
    count = min(len(dataset), limit or len(dataset))
    for index in track(range(count), "attention by class", total=count):
        image, mask = dataset.read(index)
        seen = look(model, image)
        gamma = seen.responsibilities[-1].double()  # K,h,w
        rows, columns = map(seen.placement.pixels, gamma.shape[1:], mask.shape)
        labels = mask[rows][:, columns].long()
        known = labels != VOID
        one_hot = F.one_hot(labels[known], dataset.num_classes).double()  # n,classes
        found = gamma[:, known] @ one_hot
        mass = found if mass is None else mass + found
    assert mass is not None
    total = mass.sum(1)
    return mass / total.clamp_min(1e-300)[:, None], total / total.sum()
