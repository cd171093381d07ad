"""Line charts as inline SVG, in the colours of the page's style sheet, light or dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 14, 40


@dataclass(frozen=True)
class Series:
    """style is a class of the style sheet: "a", "b", … and "faint" for raw values."""

    x: Sequence[float]
    y: Sequence[float]
    style: str = "a"
    dots: bool = False


def ticks(low: float, high: float, parts: int = 4, whole: bool = False) -> list[float]:
    """Round numbers that divide the range into about `parts`."""
    if low == high:
        room = 1.0 if whole else max(abs(low) * 0.05, 1e-9)
        low, high = low - room, high + room
    locator = MaxNLocator(parts, steps=[1, 2, 2.5, 5, 10], integer=whole)
    return [float(value) for value in locator.tick_values(low, high)]


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    y_from: float | None = None,
    marker: tuple[float, str] | None = None,
) -> Markup:
    """Lines over a common axis of whole numbers. `marker` draws a vertical line with a name."""
    xs = [x for line in series for x in line.x]
    ys = [y for line in series for y in line.y if math.isfinite(y)]
    if not xs or not ys:
        return Markup("")
    y_ticks = ticks(min(ys) if y_from is None else y_from, max(ys))
    y_low, y_high = y_ticks[0], y_ticks[-1]
    x_ticks = ticks(min(xs), max(xs), 5, whole=True)
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_low, x_high = x_low - 1, x_high + 1

    def place(x: float, y: float) -> tuple[float, float]:
        right, down = (x - x_low) / (x_high - x_low), (y_high - y) / (y_high - y_low)
        return LEFT + right * (WIDTH - LEFT - RIGHT), TOP + down * (HEIGHT - TOP - BOTTOM)

    parts = []
    for value in y_ticks:
        _, y = place(x_low, value)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(LEFT - 7, y + 4, number(value), "end"))
    parts += [
        _text(place(value, y_low)[0], HEIGHT - BOTTOM + 17, number(value))
        for value in x_ticks
        if x_low <= value <= x_high
    ]
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 5, x_label, kind="label"))
    if marker is not None and x_low <= marker[0] <= x_high:
        x, top = place(marker[0], y_high)
        parts.append(
            f'<line class="marker" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{HEIGHT - BOTTOM}"/>'
        )
        room = x < WIDTH - RIGHT - 90  # for its name on the right
        side = (x + 5, "start") if room else (x - 5, "end")
        parts.append(_text(side[0], HEIGHT - BOTTOM - 8, marker[1], side[1], "label"))
    for line in series:
        points = [place(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="line {line.style}" points="{path}"/>')
        if line.dots:
            parts += [
                f'<circle class="dot {line.style}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
                for x, y in points
            ]
    title = escape(f"{y_label} over {x_label}")
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def number(value: float) -> str:
    """A number as a short label: 0.05, 12, 1,500, 20k."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6g}".replace("-", "−")


def _text(x: float, y: float, text: str, anchor: str = "middle", kind: str = "tick") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def smooth(values: Sequence[float]) -> list[float]:
    """Moving average with exponential weights over about a thirtieth of the values."""
    weight, total, mass, out = 1 - 1 / max(1.0, len(values) / 30), 0.0, 0.0, []
    for value in values:
        total, mass = weight * total + (1 - weight) * value, weight * mass + (1 - weight)
        out.append(total / mass)
    return out
