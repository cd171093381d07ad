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
from hemnet.em import e_step, n_step, r_step
from hemnet.engine.evaluate import normalisation
from hemnet.errors import UserError
from hemnet.nn.segmenter import Segmenter
from hemnet.progress import track
from hemnet.study.unit import find_unit, most_distinct, settings_of


@dataclass(frozen=True)
class Look:
    """One image through the unit. h,w: the unit's positions."""

    features: Tensor  # C,h,w: x
    responsibilities: list[Tensor]  # of every iteration K,h,w
    rebuilt: list[Tensor]  # of every iteration C,h,w: γ⁽ᵗ⁾μ⁽ᵗ⁾
    prediction: Tensor  # H,W


@torch.inference_mode()
def look(model: Segmenter, image: Tensor, iterations: int | None = None) -> Look:
    """image: 3,H,W uint8. The model is in evaluation mode."""
    unit = find_unit(model)
    if unit is None:
        raise UserError(f"a {model.config.model} has no EM unit to look into")
    settings = normalisation(model)
    device = next(model.parameters()).device
    kept: list[Tensor] = []
    handle = unit.conv_in.register_forward_hook(lambda *call: kept.append(call[2].float()))
    try:
        logits = model(normalise(image[None].to(device), settings.mean, settings.std))
    finally:
        handle.remove()
    x, size = kept[-1].flatten(2).mT, kept[-1].shape[2:]
    how = settings_of(unit, iterations)
    bases, maps, rebuilt = unit.bases.value.float(), [], []
    for step in how.steps:
        gamma = e_step(x, bases, how.variance, how.kernel)
        bases = n_step(x, bases, gamma, step)
        bases = F.normalize(bases, dim=-1) if how.unit_length else bases
        maps.append(gamma[0].mT.unflatten(1, size).cpu())
        rebuilt.append(r_step(gamma, bases)[0].mT.unflatten(1, size).cpu())
    return Look(kept[-1][0].cpu(), maps, rebuilt, logits.argmax(1)[0].cpu())


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
    """Feature maps C,h,w as pictures h,w,3: their three main directions as red, green and blue.

    The directions and their scale are the first map's, so that pictures compare.
    """
    flat = maps[0].flatten(1).double()
    mean = flat.mean(1, keepdim=True)
    _, _, v = torch.linalg.svd((flat - mean).T, full_matrices=False)
    directions = v[:3]  # up to 3,C
    # The sign of a direction is arbitrary: the larger side is bright.
    seen = directions @ (flat - mean)
    signs = (seen.amax(1) + seen.amin(1)).sign()
    directions = directions * torch.where(signs == 0, torch.ones_like(signs), signs)[:, None]
    seen = directions @ (flat - mean)
    low, high = seen.quantile(0.02, dim=1), seen.quantile(0.98, dim=1)
    pictures = []
    for one in maps:
        projected = directions @ (one.flatten(1).double() - mean)
        scaled = (projected - low[:, None]) / (high - low).clamp_min(1e-9)[:, None]
        colours = F.pad(scaled.clamp(0, 1), (0, 0, 0, 3 - len(scaled)))  # 3,N
        pictures.append(colours.T.reshape(*one.shape[1:], 3))
    return pictures


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
        gamma = look(model, image).responsibilities[-1].double()  # K,h,w
        near = F.interpolate(mask[None, None].float(), gamma.shape[1:], mode="nearest-exact")
        labels = near[0, 0].long()
        known = labels != VOID
        one_hot = F.one_hot(labels[known], dataset.num_classes).double()  # n,classes
        found = gamma[:, known] @ one_hot
        mass = found if mass is None else mass + found
    assert mass is not None
    total = mass.sum(1)
    return mass / total.clamp_min(1e-300)[:, None], total / total.sum()
