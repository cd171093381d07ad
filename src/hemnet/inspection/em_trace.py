"""What the EM unit inside a model does with images: responsibilities and bound, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import hemnet
from hemnet.em import VonMisesFisher, solver
from hemnet.em.mixtures import initial
from hemnet.em.sources import Features
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import EMUnit, Plan, em_units
from hemnet.nn.geometry import Placement


@dataclass(frozen=True)
class UnitTrace:
    """responsibilities: of every iteration, B,K,h,w. bound: ELBO per position before the first
    iteration and after each, averaged over the images; empty for EMANet's unit, which has none."""

    responsibilities: list[Tensor]
    bound: list[float]
    iterations: int  # that the model itself runs
    health: hemnet.Health
    placement: Placement  # of h,w on the images


def find_unit(model: nn.Module) -> EMUnit | None:
    """The model's first EM unit."""
    return next(iter(em_units(model)), None)


class Watched(NamedTuple):
    """What the unit's EM saw in one pass, and what came of it."""

    features: Tensor  # B,C,h,w in float32, without rows and columns that lie on padding
    plan: Plan


@contextmanager
def watching(unit: EMUnit) -> Iterator[list[Watched]]:
    """Inside, what the unit's EM sees in every pass is put into the list."""
    kept: list[Watched] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask = named.get("mask", inputs[1] if len(inputs) > 1 else None)
        height, width = (None, None) if mask is None else _extent(mask)
        with torch.no_grad():
            features = unit.features(inputs[0])
        kept.append(Watched(features[..., :height, :width].float(), unit.plan()))

    handle = unit.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield kept
    finally:
        handle.remove()


def _extent(mask: Tensor) -> tuple[int, int]:
    """Height and width of the part of a mask 1,h,w or B,h,w that lies on some image."""
    on_image = mask.flatten(0, -3).any(0) if mask.ndim > 2 else mask
    return int(on_image.any(1).sum()), int(on_image.any(0).sum())


def iterate(x: Tensor, bases: Tensor, plan: Plan) -> Iterator[tuple[Tensor, Tensor]]:
    """Responsibilities B,N,K and the bases B,K,P they lead to, of every iteration on x: B,N,C."""
    mixture = plan.mixture
    features, start = Features(mixture.statistics(x)), initial(bases, x, mixture, x.shape[-1])
    with torch.no_grad():
        for _, found, moved in solver.iterate(features, start, plan.steps, mixture, keep=True):
            yield found.responsibilities, moved


@torch.no_grad()
def trace_unit(model: nn.Module, images: Tensor, further: int = 8) -> UnitTrace | None:
    """Normalised images B,3,H,W through the model, its EM unit watched; None if it has none.

    The bound is followed for `further` iterations when the model itself runs fewer.
    """
    unit = find_unit(model)
    if unit is None:
        return None
    with watching(unit) as kept:
        model(images)
    features, own = kept[-1].features, len(kept[-1].plan.steps)
    x = features.flatten(2).mT  # B,N,C
    plan = unit.plan(max(own, further) if has_bound(kept[-1].plan) else own)
    start = unit.starting_bases(x)
    maps: list[Tensor] = []
    bound: list[float] = []
    if has_bound(plan):
        gamma = hemnet.e_step(x, start, mixture=plan.mixture)
        bound.append(_per_position(x, start, gamma, plan))
    for gamma, bases in iterate(x, start, plan):
        if len(maps) < own:
            maps.append(gamma)
        if has_bound(plan):
            bound.append(_per_position(x, bases, gamma, plan))
    shaped = [gamma.mT.unflatten(2, features.shape[2:]) for gamma in maps]
    placement = model.backbone.placement if isinstance(model, Segmenter) else Placement()
    return UnitTrace(shaped, bound, own, unit.health(), placement)


def has_bound(plan: Plan) -> bool:
    """Whether the unit's steps raise a bound: EMANet's do not, its features have any length."""
    return not (isinstance(plan.mixture, VonMisesFisher) and not plan.mixture.normalise)


def _per_position(x: Tensor, bases: Tensor, gamma: Tensor, plan: Plan) -> float:
    return float(hemnet.elbo(x, bases, gamma, mixture=plan.mixture).mean()) / x.shape[1]


def most_distinct(responsibilities: Tensor, count: int) -> list[int]:
    """Numbers of the bases whose maps K,h,w say most that the ones before them do not.

    Gram-Schmidt with pivoting: each time the map that varies most, after what it shares with the
    chosen ones is taken out of it.
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


def spread_out(count: int, wanted: int) -> Sequence[int]:
    """`wanted` numbers below `count`, evenly spaced, first and last among them."""
    if wanted >= count or wanted == 1:
        return range(min(count, wanted))
    return [round(i * (count - 1) / (wanted - 1)) for i in range(wanted)]
