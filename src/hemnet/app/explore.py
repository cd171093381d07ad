"""What the explorer finds out: an image through a model, and its EM solved again at will.

A look keeps what enters the model's EM unit, so that other numbers of iterations and step sizes
are solved from there, without the network. Of a solution only the bases are kept, K·C numbers an
iteration: responsibilities are one E-step away from them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import hemnet
from hemnet.data.transforms import normalise
from hemnet.em.mixtures import describe, initial, mixture_from
from hemnet.errors import UserError
from hemnet.inference.evaluate import normalisation
from hemnet.inference.exported_model import ExportedModel
from hemnet.inference.options import EvaluationOptions, predict_classes
from hemnet.inference.prediction_files import full_palette, see_through
from hemnet.inference.predictor import class_names
from hemnet.inference.sliding_window import Classes, smallest_type
from hemnet.inspection.attention import Colours
from hemnet.inspection.em_trace import (
    Watched,
    find_unit,
    has_bound,
    iterate,
    most_distinct,
    watching,
)
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import Plan
from hemnet.nn.geometry import Placement

MOST_ITERATIONS = 16  # that can be asked for, unless the model itself runs more


@dataclass(frozen=True)
class Seen:
    """An image, the model's answer, and what entered its EM unit. H,W: pixels, h,w: positions."""

    name: str
    picture: Image.Image  # RGB, as the model saw it
    size: tuple[int, int]  # width and height of the file
    classes: Classes  # H,W
    features: Tensor | None  # C,h,w; None without a unit
    placement: Placement  # of h,w on H,W

    @property
    def bytes(self) -> int:
        features = 0 if self.features is None else self.features.nbytes
        return 3 * self.picture.width * self.picture.height + self.classes.nbytes + features

    @cached_property
    def colours(self) -> Colours:
        assert self.features is not None
        return Colours.of(self.features)

    @property
    def x(self) -> Tensor:
        """1,N,C."""
        assert self.features is not None
        return self.features.flatten(1).T[None]

    @property
    def grid(self) -> tuple[int, int]:
        assert self.features is not None
        return self.features.shape[1], self.features.shape[2]

    def pixel(self, x: int, y: int) -> tuple[int, int]:
        """Column and row of the seen picture that show a pixel of the file."""
        (width, height), (w, h) = self.size, self.picture.size
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(
                f"the pixel ({x}, {y}) lies outside the image: x goes from 0 to {width - 1}, "
                f"y from 0 to {height - 1}."
            )
        return _part(x, width, w), _part(y, height, h)

    def position(self, x: int, y: int) -> int:
        """Number below N of the unit's position nearest to a pixel of the file."""
        column, row = self.pixel(x, y)
        h, w = self.grid
        return self.placement.nearest(row, h) * w + self.placement.nearest(column, w)


@dataclass(frozen=True)
class Solution:
    """EM on the features of one image: bases before the first iteration and after each."""

    how: Plan
    bases: tuple[Tensor, ...]  # T+1 of 1,K,C
    bound: tuple[float, ...]  # T+1: ELBO per position; empty where the unit has none

    @property
    def iterations(self) -> int:
        return len(self.bases) - 1

    def responsibilities(self, x: Tensor, iteration: int) -> Tensor:
        """N,K that iteration 1 … T computes on x: 1,N,C."""
        bases = self.bases[iteration - 1]
        return hemnet.e_step(x, bases, mixture=self.how.mixture)[0]

    def rebuilt(self, gamma: Tensor, iteration: int) -> Tensor:
        """N,C from the responsibilities N,K of iteration 1 … T."""
        return hemnet.r_step(gamma[None], self.how.mixture.means(self.bases[iteration]))[0]


class Explorer:
    """A model, and everything that is asked of it. Its looks take turns."""

    def __init__(self, model: Segmenter | ExportedModel, device: torch.device) -> None:
        self.model = model.eval()
        self.device = device
        self.unit = find_unit(model)
        self.names = class_names(model)
        self.palette = full_palette(model.config.palette)
        self.plain = see_through(self.names, self.palette)
        self._turn = threading.Lock()  # what enters the unit is caught by a hook on it

    @property
    def why_no_unit(self) -> str:
        """For people: why there is nothing to see of EM; empty where there is."""
        if self.unit is not None:
            return ""
        if isinstance(self.model, ExportedModel):
            return (
                "An exported file gives only its result: its EM cannot be watched. Open the run "
                "or the saved model that it was exported from."
            )
        return (
            f"This model is a {self.model.config.model}: it has no EM unit to look into. Its "
            "segmentation is above."
        )

    @property
    def own(self) -> Plan:
        """Of the unit's own pass."""
        assert self.unit is not None
        return self.unit.plan()

    @property
    def has_steps(self) -> bool:
        """EMANet's unit takes full steps and nothing else."""
        return self.unit is not None and has_bound(self.own)

    @property
    def most_iterations(self) -> int:
        return max(MOST_ITERATIONS, 0 if self.unit is None else len(self.own.steps))

    @torch.inference_mode()
    def see(self, picture: Image.Image, name: str, size: tuple[int, int] | None = None) -> Seen:
        """`size` is the file's, where the picture was made smaller."""
        settings = normalisation(self.model)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].to(self.device)
        watched: AbstractContextManager[list[Watched]] = nullcontext([])
        if self.unit is not None:
            watched = watching(self.unit)
        with self._turn, watched as kept:
            try:
                images = normalise(pixels, settings.mean, settings.std)
                classes = predict_classes(self.model, images, EvaluationOptions())[0]
            except (MemoryError, torch.OutOfMemoryError):
                raise UserError(
                    f"{name}: not enough memory for {picture.width}×{picture.height} pixels. "
                    "Start the explorer with a smaller --side."
                ) from None
        kind = smallest_type(len(self.names))
        return Seen(
            name,
            picture,
            size or picture.size,
            classes.to(torch.int32).cpu().numpy().astype(kind),
            kept[-1].features[0].cpu() if kept else None,
            self.model.backbone.placement if isinstance(self.model, Segmenter) else Placement(),
        )

    @torch.inference_mode()
    def solve(
        self, seen: Seen, iterations: int | None = None, step_size: float | None = None
    ) -> Solution:
        """With another number of iterations or one step size for all; None: the unit's own."""
        assert self.unit is not None
        how = self.unit.plan(self._checked(iterations))
        if step_size is not None and self.has_steps:
            how = how._replace(steps=(_checked_step(step_size),) * len(how.steps))
        how = how._replace(steps=tuple(float(step) for step in how.steps))  # from any device
        how = how._replace(mixture=mixture_from(describe(how.mixture)))
        x = seen.x
        start = initial(
            self.unit.starting_bases(x.to(self.device)).float().cpu(), x, how.mixture, x.shape[2]
        )
        bases, bound = [start], []
        if self.has_steps:
            gamma = hemnet.e_step(x, start, mixture=how.mixture)
            bound.append(_per_position(x, start, gamma, how))
        for gamma, moved in iterate(x, start, how):
            bases.append(moved)
            if self.has_steps:
                bound.append(_per_position(x, moved, gamma, how))
        return Solution(how, tuple(bases), tuple(bound))

    def _checked(self, iterations: int | None) -> int | None:
        if iterations is not None and not 1 <= iterations <= self.most_iterations:
            raise UserError(
                f"{iterations} iterations: expected a number from 1 to {self.most_iterations}."
            )
        return iterations

    def shares(self, seen: Seen) -> list[tuple[int, float]]:
        """Classes of an image and their shares of it, the largest first."""
        counts = np.bincount(seen.classes.reshape(-1), minlength=len(self.names))
        order = np.argsort(-counts, kind="stable")
        return [(int(k), counts[k] / seen.classes.size) for k in order if counts[k]]

    def main_class(self, seen: Seen, gamma: Tensor) -> list[tuple[int, float]]:
        """Of each basis the class it attends to most, and that class's share of its attention.

        gamma: N,K.
        """
        ids = torch.from_numpy(seen.classes.astype(np.int64))
        rows, columns = map(seen.placement.pixels, seen.grid, ids.shape)
        near = ids[rows][:, columns].flatten()
        mass = torch.zeros(len(self.names), gamma.shape[1]).index_add_(0, near, gamma)
        best = mass.max(0)
        share = best.values / mass.sum(0).clamp_min(1e-30)
        return list(zip(best.indices.tolist(), share.tolist(), strict=True))


def distinct(gamma: Tensor, grid: tuple[int, int], count: int) -> list[int]:
    """The most distinct bases of responsibilities N,K, as numbers from 0."""
    return most_distinct(gamma.T.unflatten(1, grid), count)


def explained(x: Tensor, rebuilt: Tensor) -> float:
    """Share of the variance of x: N,C that the rebuilt features have; below 0 is possible."""
    left = (x - rebuilt).square().sum()
    return 1 - float(left / (x - x.mean(0)).square().sum().clamp_min(1e-30))


def step_text(steps: Sequence[float] | Tensor) -> str:
    """0.5 where all are the same, otherwise one a piece."""
    values = [f"{float(step):.3g}" for step in steps]
    return values[0] if len(set(values)) == 1 else ", ".join(values)


def _per_position(x: Tensor, bases: Tensor, gamma: Tensor, how: Plan) -> float:
    return float(hemnet.elbo(x, bases, gamma, mixture=how.mixture)) / x.shape[1]


def _checked_step(step_size: float) -> float:
    if not (math.isfinite(step_size) and 0 < step_size <= 1):
        raise UserError(f"step size {step_size}: expected a number above 0, at most 1.")
    return float(step_size)


def _part(index: int, length: int, parts: int) -> int:
    """Of `parts` equal parts of a length the one in which the middle of a pixel lies."""
    return min(parts - 1, int((index + 0.5) * parts / length))
