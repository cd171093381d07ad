"""Run an image through a model, and its EM again with other settings.

The features that enter the EM unit are kept, so that other iterations and step sizes do not need
the network.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hemnet.errors import UserError
from hemnet.inference.exported_model import ExportedModel
from hemnet.inference.prediction_files import full_palette, see_through
from hemnet.inference.predictor import class_names
from hemnet.inference.sliding_window import Classes
from hemnet.inspection.attention import FeatureColours, attention_by_class
from hemnet.inspection.em_trace import EMTrace, analyse, find_unit, has_bound, trace_unit
from hemnet.models.segmenter import Segmenter
from hemnet.nn.geometry import Placement
from hemnet.nn.plan import Plan

MOST_ITERATIONS = 16  # that can be asked for, unless the model itself runs more


@dataclass(frozen=True)
class OpenImage:
    """A user's image and what the model makes of it. H,W: pixels, h,w: the EM unit's positions."""

    name: str
    picture: Image.Image  # RGB, as the model saw it
    size: tuple[int, int]  # width and height of the file
    classes: Classes  # H,W
    features: Tensor | None  # 1,C,h,w; None without a unit
    placement: Placement  # of h,w on H,W

    @property
    def bytes(self) -> int:
        features = 0 if self.features is None else self.features.nbytes
        return 3 * self.picture.width * self.picture.height + self.classes.nbytes + features

    @cached_property
    def colours(self) -> FeatureColours:
        assert self.features is not None
        return FeatureColours.of(self.features[0])

    def pixel(self, x: int, y: int) -> tuple[int, int]:
        """Row and column of the picture that show a pixel of the file."""
        (width, height), (w, h) = self.size, self.picture.size
        if not (0 <= x < width and 0 <= y < height):
            raise UserError(
                f"the pixel ({x}, {y}) lies outside the image: x goes from 0 to {width - 1}, "
                f"y from 0 to {height - 1}."
            )
        return _part(y, height, h), _part(x, width, w)

    def position(self, x: int, y: int) -> tuple[int, int]:
        """Row and column of the unit's position nearest to a pixel of the file."""
        assert self.features is not None
        pixel, grid = self.pixel(x, y), self.features.shape[2:]
        row, column = (self.placement.nearest(p, n) for p, n in zip(pixel, grid, strict=True))
        return row, column


class Explorer:
    """A model and what the explorer computes with it."""

    def __init__(self, model: Segmenter | ExportedModel) -> None:
        self.model = model.eval()
        self.unit = find_unit(model)
        self.names = class_names(model)
        self.palette = full_palette(model.config.palette)
        self.plain = see_through(self.names, self.palette)
        self._turn = threading.Lock()  # one image at a time: features are recorded by a hook

    @property
    def why_no_unit(self) -> str:
        """A sentence for the user where the model has no EM to show; otherwise empty."""
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
        """What the unit does by itself."""
        assert self.unit is not None
        return self.unit.plan()

    @property
    def has_steps(self) -> bool:
        """EMANet's unit takes full steps and nothing else."""
        return self.unit is not None and has_bound(self.own)

    @property
    def most_iterations(self) -> int:
        return max(MOST_ITERATIONS, 0 if self.unit is None else len(self.own.steps))

    def open(
        self, picture: Image.Image, name: str, size: tuple[int, int] | None = None
    ) -> OpenImage:
        """`size` is that of the file if the picture was scaled down."""
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None]
        with self._turn:
            try:
                found = analyse(self.model, pixels)
            except (MemoryError, torch.OutOfMemoryError):
                raise UserError(
                    f"{name}: not enough memory for {picture.width}×{picture.height} pixels. "
                    "Start the explorer with a smaller --side."
                ) from None
        return OpenImage(
            name, picture, size or picture.size, found.classes[0], found.features, found.placement
        )

    def solve(
        self, image: OpenImage, iterations: int | None = None, step_size: float | None = None
    ) -> EMTrace:
        """EM with this many iterations and this step size; None for the unit's own."""
        if iterations is not None and not 1 <= iterations <= self.most_iterations:
            raise UserError(
                f"{iterations} iterations: expected a number from 1 to {self.most_iterations}."
            )
        if step_size is not None and not (math.isfinite(step_size) and 0 < step_size <= 1):
            raise UserError(f"step size {step_size}: expected a number above 0, at most 1.")
        assert self.unit is not None
        assert image.features is not None
        return trace_unit(self.unit, image.features, iterations, step_size)

    def shares(self, image: OpenImage) -> list[tuple[int, float]]:
        """Classes of an image and their shares of it, the largest first."""
        counts = np.bincount(image.classes.reshape(-1), minlength=len(self.names))
        order = np.argsort(-counts, kind="stable")
        return [(int(k), counts[k] / image.classes.size) for k in order if counts[k]]

    def main_classes(self, image: OpenImage, gamma: Tensor) -> list[tuple[int, float]]:
        """For each basis the class it attends to most, and that class's share of its attention.

        gamma: K,h,w.
        """
        labels = torch.from_numpy(image.classes.astype(np.int32))
        mass = attention_by_class(gamma, labels, image.placement, len(self.names))
        best = mass.max(1)
        share = best.values / mass.sum(1).clamp_min(1e-30)
        return list(zip(best.indices.tolist(), share.tolist(), strict=True))


def _part(index: int, length: int, parts: int) -> int:
    """Which of `parts` equal parts of `length` pixels contains the middle of pixel `index`."""
    return min(parts - 1, int((index + 0.5) * parts / length))
