"""What the EM unit inside a model does with an image, iteration by iteration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hemnet
from hemnet.data.transforms import normalise
from hemnet.em import VonMisesFisher
from hemnet.em.mixtures import describe, initial, mixture_from
from hemnet.em.solver import iterate
from hemnet.em.sources import Features
from hemnet.inference.evaluate import normalisation
from hemnet.inference.options import InferenceOptions
from hemnet.inference.probabilities import em_iterations, predict_classes
from hemnet.inference.sliding_window import Classes, smallest_type
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import EMUnit, em_units
from hemnet.nn.geometry import Placement
from hemnet.nn.health import GLOBAL_MEAN, variance_rebuilt
from hemnet.nn.plan import Plan


@dataclass(frozen=True)
class Analysis:
    """Images of one size through a model. H,W: pixels, h,w: positions of the EM unit."""

    classes: Classes  # B,H,W
    features: Tensor | None  # B,C,h,w float32 that entered EM; None without an EM unit
    placement: Placement  # of h,w on H,W


@torch.inference_mode()
def analyse(model: nn.Module, images: Tensor, iterations: int | None = None) -> Analysis:
    """images: B,3,H,W uint8; the model is in evaluation mode. `iterations`: None for its own."""
    settings, unit = normalisation(model), find_unit(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    images = normalise(images.to(device), settings.mean, settings.std)
    with em_iterations(model, iterations), recorded_features(unit) as features:
        classes = predict_classes(model, images, InferenceOptions())
    count = int(getattr(model, "config").num_classes)  # noqa: B009
    return Analysis(
        classes.to(torch.int32).cpu().numpy().astype(smallest_type(count)),
        features[-1].cpu() if features else None,
        model.backbone.placement if isinstance(model, Segmenter) else Placement(),
    )


@dataclass(frozen=True)
class EMTrace:
    """EM on the features of images of one size.

    Of an iteration only the bases are kept, K·C numbers: its responsibilities are one E-step away.
    """

    features: Tensor  # B,C,h,w
    plan: Plan
    bases: tuple[Tensor, ...]  # T+1 of B,K,P: before the first iteration and after each
    bound: tuple[float, ...]  # T+1: ELBO per position, mean over the images; empty without one

    @property
    def iterations(self) -> int:
        return len(self.bases) - 1

    def responsibilities(self, t: int) -> Tensor:
        """B,K,h,w of iteration t = 1 … T."""
        return _as_maps(self._gamma(t), self.features)

    def rebuilt(self, t: int) -> Tensor:
        """B,C,h,w: the features that iteration t = 1 … T rebuilds."""
        return _as_maps(hemnet.r_step(self._gamma(t), self._means(t)), self.features)

    def explained(self, t: int) -> float:
        """Share of the features' variance that iteration t rebuilds; below 0 is possible."""
        x = self.features
        left = (x - self.rebuilt(t)).square().sum()
        return 1 - float(left / (x - x.mean((2, 3), keepdim=True)).square().sum().clamp_min(1e-30))

    def is_global_mean(self, t: int) -> bool:
        """Whether iteration t rebuilds every position as the same vector."""
        return variance_rebuilt(_rows(self.features), self._gamma(t), self._means(t)) < GLOBAL_MEAN

    def _gamma(self, t: int) -> Tensor:
        return hemnet.e_step(_rows(self.features), self.bases[t - 1], mixture=self.plan.mixture)

    def _means(self, t: int) -> Tensor:
        return self.plan.mixture.means(self.bases[t])


@torch.inference_mode()
def trace_unit(
    unit: EMUnit,
    features: Tensor,
    iterations: int | None = None,
    step_size: float | None = None,
) -> EMTrace:
    """The unit's EM on features B,C,h,w as `analyse` gives them, computed where these are.

    None stands for what the unit itself does in evaluation.
    """
    plan = unit.plan(iterations)
    steps = plan.steps
    if step_size is not None and has_bound(plan):
        steps = (step_size,) * len(steps)
    mixture = mixture_from(describe(plan.mixture))  # its settings as numbers, for any device
    plan = plan._replace(mixture=mixture, steps=tuple(map(float, steps)))
    x = _rows(features)
    start = unit.starting_bases(x.to(unit.bases.value.device)).float().to(x.device)
    bases = [initial(start, x, plan.mixture, x.shape[-1])]
    bound = []
    if has_bound(plan):
        gamma = hemnet.e_step(x, bases[0], mixture=plan.mixture)
        bound.append(_per_position(x, bases[0], gamma, plan))
    source = Features(plan.mixture.statistics(x))
    for _, found, moved in iterate(source, bases[0], plan.steps, plan.mixture, keep=True):
        bases.append(moved)
        if has_bound(plan):
            bound.append(_per_position(x, moved, found.responsibilities, plan))
    return EMTrace(features, plan, tuple(bases), tuple(bound))


def find_unit(model: nn.Module) -> EMUnit | None:
    """The model's first EM unit."""
    return next(iter(em_units(model)), None)


def has_bound(plan: Plan) -> bool:
    """Whether the unit's steps raise a bound; EMANet's do not: its features have any length."""
    return not (isinstance(plan.mixture, VonMisesFisher) and not plan.mixture.normalise)


@contextmanager
def recorded_features(unit: EMUnit | None) -> Iterator[list[Tensor]]:
    """Record the features B,C,h,w of every pass through the unit.

    In float32, without rows and columns of padding.
    """
    kept: list[Tensor] = []

    def keep(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert unit is not None
        mask = named.get("mask", inputs[1] if len(inputs) > 1 else None)
        height, width = (None, None) if mask is None else _extent(mask)
        with torch.no_grad():
            kept.append(unit.features(inputs[0])[..., :height, :width].float())

    if unit is None:
        yield kept
        return
    handle = unit.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield kept
    finally:
        handle.remove()


def _extent(mask: Tensor) -> tuple[int, int]:
    """Height and width of the part of a mask 1,h,w or B,h,w that lies on an image."""
    on_image = mask.flatten(0, -3).any(0) if mask.ndim > 2 else mask
    return int(on_image.any(1).sum()), int(on_image.any(0).sum())


def _rows(features: Tensor) -> Tensor:
    """B,C,h,w → B,N,C."""
    return features.flatten(2).mT


def _as_maps(x: Tensor, like: Tensor) -> Tensor:
    """B,N,C → B,C,h,w."""
    return x.mT.unflatten(2, like.shape[2:])


def _per_position(x: Tensor, bases: Tensor, gamma: Tensor, plan: Plan) -> float:
    return float(hemnet.elbo(x, bases, gamma, mixture=plan.mixture).mean()) / x.shape[1]


def spread_out(count: int, wanted: int) -> list[int]:
    """Up to `wanted` numbers below `count`, evenly spaced, first and last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, wanted)).tolist()})


def step_text(steps: Sequence[float] | Tensor) -> str:
    """0.5 where all step sizes are the same, otherwise one for each iteration."""
    values = [f"{float(step):.3g}" for step in steps]
    return values[0] if len(set(values)) == 1 else ", ".join(values)
