"""Rasterise the polygons and run lengths of labelling tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Area = NDArray[np.bool_]


@dataclass(frozen=True)
class Shape:
    """One annotated region: a union of polygons, a circle, run lengths, or a mask."""

    name: str  # of its class
    polygons: Sequence[NDArray[np.float64]] = ()  # N,2 each: x, y in pixels
    circle: tuple[float, float, float] | None = None  # x, y, radius
    runs: Sequence[int] | str | None = None  # COCO's, column by column
    patch: tuple[int, int, Area] | None = None  # x, y of a mask's top left corner

    def area(self, height: int, width: int) -> Area:
        """The pixels of the region, (height, width)."""
        if self.runs is not None:
            return decode_runs(self.runs, height, width)
        found = np.zeros((height, width), bool)
        for polygon in self.polygons:
            _fill(found, polygon)
        if self.circle is not None:
            x, y, radius = self.circle
            rows, columns = np.ogrid[:height, :width]
            found |= (columns + 0.5 - x) ** 2 + (rows + 0.5 - y) ** 2 <= radius**2
        if self.patch is not None:
            left, top, mask = self.patch
            part = mask[max(0, -top) : height - top, max(0, -left) : width - left]
            top, left = max(0, top), max(0, left)
            found[top : top + part.shape[0], left : left + part.shape[1]] |= part
        return found


def _fill(area: Area, polygon: NDArray[np.float64]) -> None:
    """Adds the pixels whose centres lie inside; Pillow's polygons are half a pixel too large."""
    from matplotlib.path import Path as Outline  # takes long, and only annotations need it

    height, width = area.shape
    left, top = np.maximum(np.floor(polygon.min(0)), 0).astype(int)
    right, bottom = np.minimum(np.ceil(polygon.max(0)), (width, height)).astype(int)
    if len(polygon) < 3 or right <= left or bottom <= top:
        return
    x, y = np.meshgrid(np.arange(left, right) + 0.5, np.arange(top, bottom) + 0.5)
    inside = Outline(polygon).contains_points(np.column_stack((x.ravel(), y.ravel())))
    area[top:bottom, left:right] |= inside.reshape(x.shape)


@dataclass
class Rasterised:
    """A label map, and what is odd about it."""

    labels: NDArray[np.uint8]
    contested: int  # pixels that shapes of different classes claim
    empty: int  # shapes without a pixel


def rasterise(
    shapes: Sequence[Shape], ids: Mapping[str, int], height: int, width: int
) -> Rasterised:
    """Class ids (height, width), 0 where no shape is.

    Where shapes overlap, the smaller one wins: it usually lies on top of the larger one.
    """
    found = [(shape.area(height, width), ids[shape.name]) for shape in shapes if shape.name in ids]
    labels = np.zeros((height, width), np.uint8)
    claimed, contested = np.zeros((height, width), bool), np.zeros((height, width), bool)
    for area, label in sorted(found, key=lambda item: -int(item[0].sum())):
        contested |= area & claimed & (labels != label)
        claimed |= area
        labels[area] = label
    return Rasterised(labels, int(contested.sum()), sum(not area.any() for area, _ in found))


def decode_runs(counts: Sequence[int] | str, height: int, width: int) -> Area:
    """Decode COCO's run lengths of 0s and 1s, column by column; a string is compressed."""
    runs = _decompressed(counts) if isinstance(counts, str) else list(counts)
    if sum(runs) != height * width or min(runs, default=0) < 0:
        raise ValueError(f"run lengths of {sum(runs)} pixels for an image of {height * width}")
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return flat.reshape(width, height).T


def _decompressed(text: str) -> list[int]:
    """COCO's compression: 5 bits a character, lowest first; from the third on, differences."""
    runs: list[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            if code & 16:
                value -= 1 << shift
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return runs


def points(values: Any) -> NDArray[np.float64]:
    """[[x, y], …] or [x, y, x, y, …] → N,2."""
    found = np.asarray(values, np.float64).reshape(-1, 2)
    if not np.isfinite(found).all():
        raise ValueError("coordinates that are not finite")
    return found
