"""Renderer of `scenes`: textured ground, shaded things with soft edges, lamps, camera noise."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hemnet.data.labels import VOID

Array = NDArray[np.floating[Any]]  # float32 throughout, for speed

GROUND_COLOURS = np.array(
    [(104, 146, 74), (214, 190, 138), (70, 124, 172), (132, 128, 124)], np.float32
)
THING_COLOURS = np.array([(208, 58, 50), (240, 186, 46), (146, 82, 200)], np.float32)


@lru_cache(maxsize=64)
def _stretch(size: int, knots: int) -> Array:
    """Smooth interpolation from `knots` values to `size` pixels, as a matrix (size, knots)."""
    place = np.linspace(0, knots - 1, size)
    left = np.minimum(place.astype(int), knots - 2)
    share = place - left
    share = share * share * (3 - 2 * share)
    matrix = np.zeros((size, knots), np.float32)
    rows = np.arange(size)
    matrix[rows, left] = 1 - share
    matrix[rows, left + 1] = share
    return matrix


def smooth_noise(
    rng: np.random.Generator, height: int, width: int, rows: int, columns: int, fields: int = 1
) -> Array:
    """(fields, height, width) noise that varies over rows × columns knots."""
    knots = rng.standard_normal((fields, rows, columns), np.float32)
    return _stretch(height, rows) @ knots @ _stretch(width, columns).T


class Canvas:
    """An image being painted, and its mask beside it."""

    def __init__(self, rng: np.random.Generator, height: int, width: int, grounds: int) -> None:
        self.rng, self.height, self.width = rng, height, width
        self.unit = min(height, width) / 128
        self.mask, self.pixels = self._ground(grounds)  # (H, W), (3, H, W) in 0 … 255

    def _ground(self, grounds: int) -> tuple[NDArray[np.uint8], Array]:
        rng, height, width, unit = self.rng, self.height, self.width, self.unit
        fields = smooth_noise(rng, height, width, 4, 4, grounds)
        fields += 0.25 * smooth_noise(rng, height, width, 14, 14, grounds)
        fields += rng.normal(0, 0.5, (grounds, 1, 1)).astype(np.float32)
        # argmax over the four fields, in pairs: several times as fast as numpy's.
        left, right = fields[1] > fields[0], fields[3] > fields[2]
        later = np.maximum(fields[2], fields[3]) > np.maximum(fields[0], fields[1])
        mask = np.where(later, right + np.uint8(2), left.view(np.uint8))
        blotch, warp = smooth_noise(rng, height, width, 26, 26, 2)
        grain = rng.random((height, width), np.float32) - 0.5
        y, x = (np.arange(n, dtype=np.float32) / unit for n in (height, width))
        slope, phase = rng.uniform(-0.5, 0.5), rng.uniform(0, 6.3)
        meadow = 0.10 * np.repeat(grain[::2], 2, axis=0)[:height] + 0.05 * blotch
        sand = 0.05 * np.sin(0.55 * (y[:, None] + slope * x) + 1.2 * warp + phase) + 0.05 * grain
        water = 0.09 * np.sin(0.9 * y[:, None] + 1.6 * warp + phase)
        rock = 0.11 * blotch + 0.10 * grain
        texture = np.where(later, np.where(right, rock, water), np.where(left, sand, meadow))
        light = 1 + 0.05 * smooth_noise(rng, height, width, 3, 3)[0]
        colours = GROUND_COLOURS * rng.uniform(0.88, 1.12, (grounds, 3)).astype(np.float32)
        pixels = np.ascontiguousarray(colours.T).take(mask, axis=1)  # planes: whole rows are fast
        pixels *= (1 + texture) * light
        return mask, pixels

    def window(self, y: float, x: float, reach: float) -> tuple[slice, slice, Array, Array] | None:
        """The part of the canvas within `reach` of a point, and its offsets from the point."""
        top, bottom = max(0, int(y - reach)), min(self.height, int(y + reach) + 2)
        left, right = max(0, int(x - reach)), min(self.width, int(x + reach) + 2)
        if top >= bottom or left >= right:
            return None
        dy = np.arange(top, bottom, dtype=np.float32)[:, None] - np.float32(y)
        dx = np.arange(left, right, dtype=np.float32)[None] - np.float32(x)
        return slice(top, bottom), slice(left, right), dy, dx

    def label(self, rows: slice, columns: slice, distance: Array, label: int) -> None:
        """Label where `distance` to the outline is negative; the outline itself is void."""
        part = self.mask[rows, columns]
        part[distance < 0] = label
        part[np.abs(distance) < max(0.8, 0.8 * self.unit)] = VOID

    def thing(
        self,
        label: int,
        colour: int,
        shape: int,
        centre: tuple[float, float],
        radius: float,
        angle: float,
        tint: tuple[float, float, float],
    ) -> None:
        window = self.window(*centre, 1.5 * radius + 3)
        if window is None:
            return
        rows, columns, dy, dx = window
        distance = _outline(shape, dy / radius, dx / radius, angle) * radius
        part = self.pixels[:, rows, columns]
        shift = max(1, round(2 * self.unit))  # its shadow, down and to the right
        shadow = np.clip(0.175 - distance[:-shift, :-shift] * (0.175 / self.unit), 0, 0.35)
        part[:, shift:, shift:] *= 1 - shadow
        # Light from the upper left, faint stripes, a darker rim.
        shade = 0.98 - (0.22 / radius) * (dy + dx)
        shade += 0.05 * np.sin((9 / radius) * (dx - dy) + angle)
        shade -= 0.25 * np.clip(1 + distance / (0.22 * radius), 0, 1)
        hue = THING_COLOURS[colour] * np.array(tint, np.float32)
        part += np.clip(0.5 - distance, 0, 1) * (hue[:, None, None] * shade - part)
        self.label(rows, columns, distance, label)

    def lamp(
        self,
        label: int,
        colour: int,
        lit: bool,
        centre: tuple[float, float],
        radius: float,
        glow: float,
    ) -> None:
        window = self.window(*centre, glow * radius)
        if window is None:
            return
        rows, columns, dy, dx = window
        away = np.hypot(dy, dx)
        part, hue = self.pixels[:, rows, columns], THING_COLOURS[colour][:, None, None]
        if lit:
            halo = np.clip((glow - away / radius) / (glow - 1), 0, 1) ** 2
            part += 0.75 * halo * (0.6 * hue + 100 - part)
        frame, glass, core = (
            np.clip(0.5 + share * radius - away, 0, 1) for share in (1.0, 0.85, 0.42)
        )
        part += frame * (26 - part)
        part += glass * (hue * np.float32(1.08 if lit else 0.42) - part)
        part += core * (np.float32(250 if lit else 22) - part)
        self.label(rows, columns, away - radius, label)

    def finish(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Exposure and noise of a camera, then 8 bits."""
        exposure = self.rng.uniform(0.85, 1.12)
        sigma = self.rng.uniform(2, 7)
        # The sum of two random bytes is bell-shaped enough, and three times as fast as normals.
        pair = np.frombuffer(self.rng.bytes(2 * self.pixels.size), np.uint8)
        pair = pair.reshape(2, self.height, self.width, 3)
        noise = pair[0].astype(np.float32)
        noise += pair[1]
        noise -= 255
        noise *= sigma / 104  # the standard deviation of that sum
        image = self.pixels * np.float32(exposure)
        image += noise.transpose(2, 0, 1)
        return image.clip(0, 255, out=image).astype(np.uint8), self.mask


def _outline(shape: int, v: Array, u: Array, angle: float) -> Array:
    """Signed distance, roughly, to a shape of radius 1: disc, box, diamond, flower."""
    if shape == 0:
        return np.hypot(v, u) - 1
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    if shape == 3:
        return np.hypot(v, u) - 1 - np.float32(0.18) * np.cos(5 * (np.arctan2(v, u) - angle))
    a, b = np.abs(cos * v - sin * u), np.abs(sin * v + cos * u)
    if shape == 1:
        over = np.hypot(np.maximum(a - 0.65, 0), np.maximum(b - 0.65, 0)) - 0.2
        return over + np.minimum(np.maximum(a, b) - 0.65, 0)
    return (a + 0.62 * b) * np.float32(0.85) - np.float32(0.85)
