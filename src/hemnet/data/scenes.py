"""`scenes`: a generated data set that cannot be solved without looking far away.

Things (discs, boxes, diamonds, flowers) lie on textured ground. Their colour is seen at once, but
whether a red thing is labelled "red lit" or "red unlit" depends on one lamp: the red lamp, which
stands at least `REACH` of the image away from every red thing and is either lit or not. Up to
three colours, each with its own lamp, share an image, so a pixel has to find the lamp of its own
colour. Nothing near a thing tells: the same scene with the lamp switched differs only at the lamp.

A scene is a function of (seed, split, index) and the size, and needs no files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hemnet.data.dataset import Info
from hemnet.data.generated import Drawing, GeneratedDataset
from hemnet.data.scene_renderer import Canvas

GROUNDS = ("meadow", "sand", "water", "rock")
COLOURS = ("red", "gold", "violet")
LAMP = len(GROUNDS)
FIRST_THING = LAMP + 1
REACH = 0.3  # least gap between a lamp's glow and its things, as a share of the shorter side

SCENES = Info(
    "scenes",
    "Generated scenes",
    (*GROUNDS, "lamp", *(f"{c} {state}" for c in COLOURS for state in ("lit", "unlit"))),
    (
        *((96, 148, 70), (222, 197, 140), (70, 130, 190), (128, 124, 122), (30, 30, 40)),
        *((230, 60, 50), (120, 25, 25), (250, 200, 50), (140, 100, 10)),
        *((190, 110, 235), (85, 35, 125)),
    ),
    {"train": None, "val": None},
    context_classes=tuple(range(FIRST_THING, FIRST_THING + 2 * len(COLOURS))),
)


@dataclass(frozen=True)
class Lamp:
    colour: int
    lit: bool
    y: float
    x: float
    radius: float

    GLOW = 1.7  # the light ends this many radii from the centre


@dataclass(frozen=True)
class Thing:
    colour: int
    shape: int
    y: float
    x: float
    radius: float
    angle: float
    tint: tuple[float, float, float]


@dataclass(frozen=True)
class Scene:
    """Where everything stands; in pixels. Later things cover earlier ones."""

    lamps: tuple[Lamp, ...]
    things: tuple[Thing, ...]

    def class_of(self, thing: Thing) -> int:
        lit = next(lamp.lit for lamp in self.lamps if lamp.colour == thing.colour)
        return FIRST_THING + 2 * thing.colour + (not lit)


class Scenes(GeneratedDataset):
    """`length` scenes of `size` (a side, or height and width); train and val share none."""

    info = SCENES

    def draw(self, rng: np.random.Generator) -> Drawing:
        return paint(rng, plan(rng, *self.size), *self.size)


def plan(rng: np.random.Generator, height: int, width: int) -> Scene:
    """Choose the lamps, near the border, and the things, far from their own lamp."""
    short = min(height, width)
    count = int(rng.integers(2, len(COLOURS) + 1))
    colours = [int(c) for c in rng.permutation(len(COLOURS))]
    lamps: list[Lamp] = []
    for colour in colours if rng.random() < 0.3 else colours[:count]:  # now and then one to spare
        radius = short * rng.uniform(0.075, 0.095)
        spots = border_spots(rng, height, width, 1.3 * radius)
        gaps = [np.hypot(spots[:, 0] - other.y, spots[:, 1] - other.x) for other in lamps]
        y, x = spots[int(np.min(gaps, axis=0).argmax()) if gaps else 0]  # well apart
        lamps.append(Lamp(colour, bool(rng.random() < 0.5), float(y), float(x), radius))

    things: list[Thing] = []
    wanted = int(rng.integers(3, 8))
    for number in range(wanted):
        colour = colours[number % count]
        lamp = next(lamp for lamp in lamps if lamp.colour == colour)
        radius = short * 0.055 * 2.8 ** rng.random()  # from small to almost three times as large
        spots = rng.random((24, 2)) * (height, width)
        need = REACH * short + Lamp.GLOW * lamp.radius + EXTENT * radius
        far = np.hypot(spots[:, 0] - lamp.y, spots[:, 1] - lamp.x) >= need
        for other in lamps:  # things may hide behind each other, not under a lamp
            gap = np.hypot(spots[:, 0] - other.y, spots[:, 1] - other.x)
            far &= gap >= 1.2 * other.radius + 0.7 * radius
        draws = rng.random(5)
        if far.any():
            y, x = spots[int(far.argmax())]
            red, green, blue = (float(v) for v in 0.86 + 0.28 * draws[2:])
            angle, shape = float(draws[0] * 2 * np.pi), int(draws[1] * 4)
            tint = (red, green, blue)
            things.append(Thing(colour, shape, float(y), float(x), radius, angle, tint))
    return Scene(tuple(lamps), tuple(things))


EXTENT = 1.3  # no shape leaves the circle of this many radii


def border_spots(
    rng: np.random.Generator, height: int, width: int, margin: float
) -> NDArray[np.float64]:
    """16 places in the band along the border, (16, 2)."""
    spots = rng.random((16, 2)) * (height - 2 * margin, width - 2 * margin) + margin
    side = rng.integers(0, 4, 16)
    depth = margin + rng.random(16) * 0.12 * min(height, width)
    spots[side == 0, 0] = depth[side == 0]
    spots[side == 1, 0] = height - depth[side == 1]
    spots[side == 2, 1] = depth[side == 2]
    spots[side == 3, 1] = width - depth[side == 3]
    return spots


def paint(rng: np.random.Generator, scene: Scene, height: int, width: int) -> Drawing:
    """Image (3, H, W) and mask (H, W). The draws do not depend on which lamps are lit."""
    canvas = Canvas(rng, height, width, len(GROUNDS))
    for thing in scene.things:
        canvas.thing(
            scene.class_of(thing),
            thing.colour,
            thing.shape,
            (thing.y, thing.x),
            thing.radius,
            thing.angle,
            thing.tint,
        )
    for lamp in scene.lamps:
        canvas.lamp(LAMP, lamp.colour, lamp.lit, (lamp.y, lamp.x), lamp.radius, Lamp.GLOW)
    return canvas.finish()
