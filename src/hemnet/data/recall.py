"""`recall`: a generated data set that a mean over the whole image cannot solve.

Groups of things lie on textured ground. The things of a group and one lamp share a look: a hue, a
pattern of stripes and an outline, all continuous and drawn anew in every image. Every thing is to
be labelled with the state of its own group's lamp, lit or unlit, which stands at least `REACH` of
the image away. A pixel therefore has to find, among up to twelve lamps, the one that looks like
itself. How many lamps are lit, which a mean over the image can tell, gives no more than the
majority: that figure (`guess`) belongs beside every result.

An image is a function of (seed, split, index), the size and the number of groups.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hemnet.data.dataset import Info
from hemnet.data.generated import Drawing, GeneratedDataset
from hemnet.data.scene_renderer import Array, Canvas
from hemnet.data.scenes import border_spots
from hemnet.errors import UserError

GROUND, LAMP, LIT, UNLIT = range(4)
GROUPS = (2, 12)
REACH = 0.25  # least gap between a lamp and its things, as a share of the shorter side
EXTENT = 1.3  # no outline leaves the circle of this many radii

RECALL = Info(
    "recall",
    "Generated groups of things and lamps",
    ("ground", "lamp", "lit", "unlit"),
    ((150, 150, 140), (30, 30, 40), (250, 190, 50), (70, 70, 160)),
    {"train": None, "val": None},
    context_classes=(LIT, UNLIT),
    baseline="the majority of the lamps, all that a mean over the image tells",
)


@dataclass(frozen=True)
class Look:
    """What ties a thing to its lamp; every number is continuous."""

    hue: float  # 0 … 1, a circle
    stripes: float  # dark and bright ones across a radius
    contrast: float  # of the stripes
    power: float  # of the outline |u|^p + |v|^p = 1: 1 is a diamond, 2 an ellipse, 5 nearly a box
    aspect: float  # width over length

    def place(self) -> NDArray[np.float64]:
        """Coordinates in which looks are kept apart; the hue counts most."""
        turn = 2 * np.pi * self.hue
        rest = (self.stripes / 2, 2 * self.contrast, np.log(self.power) / 2, 2 * self.aspect)
        return np.array([2 * np.cos(turn), 2 * np.sin(turn), *rest])


@dataclass(frozen=True)
class Item:
    """A lamp or a thing, in pixels."""

    group: int
    y: float
    x: float
    radius: float
    angle: float


@dataclass(frozen=True)
class Layout:
    """Where everything stands; lamp g, its look and its state are group g's."""

    looks: tuple[Look, ...]
    lit: tuple[bool, ...]
    lamps: tuple[Item, ...]
    things: tuple[Item, ...]

    @property
    def majority(self) -> int:
        """The state of most lamps; lit where it is a draw."""
        return LIT if 2 * sum(self.lit) >= len(self.lit) else UNLIT


class Recall(GeneratedDataset):
    """`length` images of `size` (a side, or height and width); train and val share none.

    `groups` is their number in every image; None draws it between 2 and 12.
    """

    info = RECALL

    min_size = 64

    def __init__(
        self,
        split: str = "train",
        *,
        size: int | Sequence[int] = 128,
        length: int | None = None,
        seed: int = 0,
        groups: int | None = None,
    ) -> None:
        super().__init__(split, size=size, length=length, seed=seed)
        if groups is not None and not GROUPS[0] <= groups <= GROUPS[1]:
            raise UserError(f"{groups} groups: expected {GROUPS[0]} to {GROUPS[1]}.")
        self.groups = groups

    def draw(self, rng: np.random.Generator) -> Drawing:
        return paint(rng, plan(rng, *self.size, self.groups), *self.size)

    def guess(self, index: int, mask: Tensor) -> Tensor:
        majority = plan(self.generator(index), *self.size, self.groups).majority
        return torch.where((mask == LIT) | (mask == UNLIT), majority, mask)


def plan(rng: np.random.Generator, height: int, width: int, groups: int | None = None) -> Layout:
    """Choose looks and states, the lamps' places near the border and the things' far from them."""
    drawn = int(rng.integers(GROUPS[0], GROUPS[1] + 1))
    count = drawn if groups is None else groups
    looks = _looks(rng, count)
    lit = tuple(bool(v) for v in rng.random(count) < 0.5)
    short = min(height, width)
    lamps: list[Item] = []
    for group in range(count):
        radius = short * rng.uniform(0.075, 0.09)
        margin = EXTENT * radius
        spots = np.concatenate([border_spots(rng, height, width, margin) for _ in range(3)])
        gaps = [np.hypot(spots[:, 0] - other.y, spots[:, 1] - other.x) for other in lamps]
        y, x = spots[int(np.min(gaps, axis=0).argmax()) if gaps else 0]  # well apart
        lamps.append(Item(group, float(y), float(x), radius, float(rng.uniform(0, 2 * np.pi))))
    things: list[Item] = []
    for number in range(max(count, int(rng.integers(8, 15)))):
        lamp = lamps[number % count]
        radius = short * 0.06 * 1.5 ** rng.random()
        angle = float(rng.uniform(0, 2 * np.pi))
        spots = EXTENT * radius + rng.random((96, 2)) * (
            height - 2 * EXTENT * radius,
            width - 2 * EXTENT * radius,
        )
        far = np.hypot(spots[:, 0] - lamp.y, spots[:, 1] - lamp.x)
        spots = spots[far >= REACH * short + EXTENT * (lamp.radius + radius)]
        room = np.full(len(spots), np.inf)  # to the nearest other item, over what both need
        for item, share in (*((lamp, 1.25) for lamp in lamps), *((t, 0.85) for t in things)):
            gap = np.hypot(spots[:, 0] - item.y, spots[:, 1] - item.x)
            room = np.minimum(room, gap - share * (item.radius + radius))
        free = np.flatnonzero(room >= 0)
        if len(free):
            y, x = spots[free[0]]
            things.append(Item(number % count, float(y), float(x), radius, angle))
    return Layout(looks, lit, tuple(lamps), tuple(things))


def _looks(rng: np.random.Generator, count: int) -> tuple[Look, ...]:
    """Each is the one of a dozen draws that is least like those before it."""
    chosen: list[Look] = []
    for _ in range(count):
        draws = rng.random((12, 5))
        looks = [
            Look(hue, 0.6 + 2 * s, 0.75 * c, 1.1 * 4.5**p, 0.6 + 0.4 * a)
            for hue, s, c, p, a in draws.tolist()
        ]
        places = np.array([look.place() for look in looks])
        gaps = [np.linalg.norm(places - other.place(), axis=1) for other in chosen]
        chosen.append(looks[int(np.min(gaps, axis=0).argmax()) if gaps else 0])
    return tuple(chosen)


def paint(rng: np.random.Generator, layout: Layout, height: int, width: int) -> Drawing:
    """Image (3, H, W) and mask (H, W). The draws do not depend on which lamps are lit."""
    canvas = Canvas(rng, height, width, 4)
    canvas.mask[:] = GROUND
    grey = canvas.pixels.mean(0)
    canvas.pixels += 0.75 * (grey - canvas.pixels)  # hues belong to things and lamps
    for thing in layout.things:
        label = LIT if layout.lit[thing.group] else UNLIT
        _body(canvas, layout.looks[thing.group], thing, label)
    for lamp in layout.lamps:
        _lamp(canvas, layout.looks[lamp.group], lamp, layout.lit[lamp.group])
    return canvas.finish()


def _lamp(canvas: Canvas, look: Look, lamp: Item, lit: bool) -> None:
    """A dark disc that carries a body with the group's look; a bright or a black core in it."""
    window = canvas.window(lamp.y, lamp.x, lamp.radius + 2)
    assert window is not None  # lamps stand inside
    rows, columns, dy, dx = window
    away, part = np.hypot(dy, dx), canvas.pixels[:, rows, columns]
    part += np.clip(0.5 + lamp.radius - away, 0, 1) * (26 - part)
    _body(canvas, look, lamp, LAMP, share=0.86)
    core = np.clip(0.5 + 0.36 * lamp.radius - away, 0, 1)
    part += core * (np.float32(250 if lit else 16) - part)
    canvas.label(rows, columns, away - lamp.radius, LAMP)


def _body(canvas: Canvas, look: Look, item: Item, label: int, share: float = 1.0) -> None:
    radius = share * item.radius
    window = canvas.window(item.y, item.x, EXTENT * radius + 2)
    assert window is not None  # everything stands inside
    rows, columns, dy, dx = window
    cos, sin = np.float32(np.cos(item.angle)), np.float32(np.sin(item.angle))
    u, v = (cos * dx + sin * dy) / radius, (cos * dy - sin * dx) / radius
    distance = _outline(u, v, look) * np.float32(radius)
    red, green, blue = colorsys.hsv_to_rgb(look.hue, 0.8, 1.0)
    hue = np.array([red, green, blue], np.float32)[:, None, None]
    wave = np.sin(np.float32(np.pi * look.stripes) * u)
    shade = np.float32(190) * (1 - np.float32(look.contrast) * (0.5 + 0.5 * wave))
    part = canvas.pixels[:, rows, columns]
    part += np.clip(0.5 - distance, 0, 1) * (hue * shade - part)
    canvas.label(rows, columns, distance, label)


def _outline(u: Array, v: Array, look: Look) -> Array:
    """Signed distance, roughly, to an outline of about the area of a disc of radius 1."""
    power = np.float32(look.power)
    a, b = np.abs(u) * np.float32(look.aspect**0.5), np.abs(v) / np.float32(look.aspect**0.5)
    size = np.float32(0.86 if power > 2 else 1.0)
    return (a**power + b**power) ** (1 / power) / size - 1
