"""What the EM unit inside a model does with images: responsibilities and bound, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hemnet
from hemnet.em.checks import Steps, check_steps
from hemnet.em.solver import constant_em
from hemnet.nn.attention import EMAttention, HighwayEMAttention, fit_length
from hemnet.nn.geometry import Placement
from hemnet.nn.segmenter import Segmenter


@dataclass(frozen=True)
class UnitTrace:
    """responsibilities: of every iteration, B,K,h,w. bound: ELBO per position before the first
    iteration and after each, averaged over the images; empty for EMANet's unit, which has none."""

    responsibilities: list[Tensor]
    bound: list[float]
    iterations: int  # that the model itself runs
    health: hemnet.Health
    placement: Placement  # of h,w on the images


def find_unit(model: nn.Module) -> HighwayEMAttention | EMAttention | None:
    """The model's first EM unit."""
    units = (HighwayEMAttention, EMAttention)
    return next((module for module in model.modules() if isinstance(module, units)), None)


class Settings(NamedTuple):
    """What one pass of a unit does: η of every iteration, σ², and EMANet's peculiarity."""

    steps: Steps
    variance: float | Tensor
    kernel: str
    unit_length: bool


def settings_of(unit: HighwayEMAttention | EMAttention, iterations: int | None = None) -> Settings:
    """Of a pass in the unit's present mode, or with another number of iterations."""
    if iterations is None:
        iterations = unit.iterations
        if not unit.training and unit.eval_iterations is not None:
            iterations = unit.eval_iterations
    if isinstance(unit, EMAttention):
        return Settings((1.0,) * iterations, unit.variance, "dot", True)
    steps = check_steps(fit_length(unit.step_size, iterations), iterations)
    return Settings(steps, unit.variance, unit.kernel, False)


@contextmanager
def watching(unit: HighwayEMAttention | EMAttention) -> Iterator[list[Tensor]]:
    """Inside, what every pass gives the unit's EM, B,C,h,w in float32, is put into the list.

    Rows and columns that lie on padding are left out: they take no part in EM.
    """
    kept: list[Tensor] = []
    sizes: list[tuple[int | None, int | None]] = []

    def note_mask(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        mask = named.get("mask", inputs[1] if len(inputs) > 1 else None)
        sizes.append((None, None) if mask is None else _extent(mask))

    def keep(_: nn.Module, __: Any, features: Tensor) -> None:
        height, width = sizes[-1]
        kept.append(features[..., :height, :width].float())

    handles = [
        unit.register_forward_pre_hook(note_mask, with_kwargs=True),
        unit.scale.register_forward_hook(keep),
    ]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def _extent(mask: Tensor) -> tuple[int, int]:
    """Height and width of the part of a mask 1,h,w or B,h,w that lies on some image."""
    on_image = mask.flatten(0, -3).any(0) if mask.ndim > 2 else mask
    return int(on_image.any(1).sum()), int(on_image.any(0).sum())


def iterate(x: Tensor, bases: Tensor, how: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """Responsibilities B,N,K and the bases B,K,C they lead to, of every iteration on x: B,N,C."""
    for step in how.steps:
        gamma = hemnet.e_step(x, bases, how.variance, how.kernel)
        bases = hemnet.n_step(x, bases, gamma, step)
        bases = F.normalize(bases, dim=-1) if how.unit_length else bases
        yield gamma, bases


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
    features = kept[-1]
    x = features.flatten(2).mT  # B,N,C
    own = unit.iterations if unit.eval_iterations is None else unit.eval_iterations
    bases, maps, bound = unit.bases.value.float(), [], []
    if isinstance(unit, EMAttention):
        counts = range(1, own + 1)
        solved = [constant_em(x, bases, (1.0,) * t, 1.0, unit_length=True) for t in counts]
        maps = [result.responsibilities for result in solved]
    else:
        total = max(own, further)
        steps = fit_length(unit.step_size, total)
        start = hemnet.e_step(x, bases, unit.variance, unit.kernel)
        bound.append(_per_position(hemnet.elbo(x, bases, start, unit.variance), x))
        for step in hemnet.trace(x, bases, total, steps, unit.variance, unit.kernel):
            bound.append(_per_position(step.elbo, x))
            if len(maps) < own:
                maps.append(step.responsibilities)
    shaped = [gamma.mT.unflatten(2, features.shape[2:]) for gamma in maps]
    placement = model.backbone.placement if isinstance(model, Segmenter) else Placement()
    return UnitTrace(shaped, bound, own, unit.health(), placement)


def _per_position(elbo: Tensor, x: Tensor) -> float:
    return float(elbo.mean()) / x.shape[1]


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
