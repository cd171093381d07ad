"""Render results as HTML fragments. Pictures are data URLs, so there is nothing to fetch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from hemnet.app.explore import Explorer, OpenImage
from hemnet.data.labels import Colour
from hemnet.inspection.em_trace import EMTrace, step_text
from hemnet.report.charts import Series, line_chart
from hemnet.report.images import data_address, encoded, feature_map, heat_map
from hemnet.report.templates import percent, templates_of

BARS = 6  # bases of a pixel that have a bar of their own, at most
SMALLEST = 0.01  # responsibility that is worth one

_parts = templates_of("hemnet.app").get_template("parts.html").module


def html_of(part: str, *args: Any) -> str:
    """The output of a macro in parts.html."""
    return str(getattr(_parts, part)(*args))


class MapTile(NamedTuple):
    name: str
    text: str
    address: str


class Bar(NamedTuple):
    name: str
    value: float
    text: str = ""
    colour: Colour | None = None


class Line(NamedTuple):
    """An entry of the chart's key."""

    style: str
    text: str


def draw_stage(image: OpenImage, palette: Sequence[Colour], plain: Sequence[int]) -> str:
    """The picture under its classes; the opacity is the style sheet's --tint."""
    photo = data_address(image.picture, photograph=True)
    return html_of("stage", image, photo, _tint(image, palette, plain))


def _tint(image: OpenImage, palette: Sequence[Colour], plain: Sequence[int]) -> str:
    """Class colours as a PNG, with a palette where possible; `plain` classes are transparent."""
    if image.classes.dtype == np.uint8:
        tint = Image.fromarray(image.classes)
        tint.putpalette([value for colour in palette for value in colour])
        opaque = bytes(0 if k in plain else 255 for k in range(256))
        return encoded(tint, "PNG", transparency=opaque, compress_level=1)
    table = np.resize(np.array(palette, np.uint8), (int(image.classes.max()) + 1, 3))
    return encoded(Image.fromarray(table[image.classes]), "PNG", compress_level=1)


def draw_legend(explorer: Explorer, image: OpenImage) -> str:
    """Classes in the image, the largest first, with their shares."""
    return html_of(
        "legend",
        [(explorer.palette[k % 256], explorer.names[k], s) for k, s in explorer.shares(image)],
    )


def draw_maps(
    explorer: Explorer,
    image: OpenImage,
    trace: EMTrace,
    gamma: Tensor,
    t: int,
    bases: Sequence[int],
) -> str:
    """Features, features rebuilt, and the attention gamma: K,h,w of bases (from 0), at one t."""
    size, place = (image.picture.height, image.picture.width), image.placement
    share = trace.explained(t)
    kept = f"{percent(share)} of the variance" if share >= 0 else "worse than the mean"
    tiles = [
        MapTile(name, text, feature_map(image.colours.picture(features[0]), size, place))
        for name, text, features in (
            ("features x", "three main directions", trace.features),
            ("rebuilt x̃", kept, trace.rebuilt(t)),
        )
    ]
    main = explorer.main_classes(image, gamma)
    # One scale for all iterations would need them all; the largest of this one is said below.
    highest = float(gamma[list(bases)].max()) if bases else 0.0
    for k in bases:
        which, part = main[k]
        text = f"{percent(part)} on {explorer.names[which]}"
        tiles.append(MapTile(f"basis {k + 1}", text, heat_map(gamma[k], highest, size, place)))
    return html_of("maps", image, tiles, highest if bases else None, trace.is_global_mean(t))


def draw_bound(trace: EMTrace, own: EMTrace, t: int) -> str:
    """The bound over the iterations, beside that of the model's own settings where they differ."""
    if not trace.bound:
        text = "EMANet's unit scales its bases to length 1: there is no bound it would raise."
        return html_of("note", text)
    lines = [Series(range(len(trace.bound)), trace.bound, "a", dots=True)]
    key = [Line("a", f"η {step_text(trace.plan.steps)}, {trace.iterations} iterations")]
    if own.bound != trace.bound:
        lines.insert(0, Series(range(len(own.bound)), own.bound, "b"))
        text = f"the model's own: η {step_text(own.plan.steps)}, {own.iterations} iterations"
        key.append(Line("b", text))
    chart = line_chart(
        lines, x_label="iteration", y_label="ELBO per position", marker=(t, f"shown: {t}")
    )
    return html_of("bound", chart, key, trace)


def draw_pixel(
    explorer: Explorer, image: OpenImage, gamma: Tensor | None, x: int, y: int
) -> tuple[str, list[int]]:
    """A pixel of the file: its class and a bar for each basis that explains it, with their numbers.

    gamma: K,h,w, None without an EM unit. A style element marks the pixel on the picture and on
    every map.
    """
    which = int(image.classes[image.pixel(x, y)])
    shown: list[int] = []
    bars: list[Bar] = []
    if gamma is not None:
        row, column = image.position(x, y)
        here = gamma[:, row, column]
        order = here.argsort(descending=True).tolist()
        shown = [k for k in order[:BARS] if here[k] >= SMALLEST] or order[:1]
        main = explorer.main_classes(image, gamma)
        for k in shown:
            best, part = main[k]
            text = f"{percent(part)} on {explorer.names[best]}"
            bars.append(Bar(f"basis {k + 1}", float(here[k]), text, explorer.palette[best % 256]))
        if len(shown) < len(order):
            rest = float(here[order[len(shown) :]].sum())
            bars.append(Bar(f"{len(order) - len(shown)} others", rest))
    colour = explorer.palette[which % 256]
    return html_of("pixel", image, x, y, colour, explorer.names[which], bars), shown
