"""Line charts as inline SVG, coloured by the page's style sheet, so that they follow its theme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 14, 40


@dataclass(frozen=True)
class Series:
    """style is a class of the style sheet: "a", "b", … and "faint" for raw values."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "a"
    dots: bool = False


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About `wanted` round numbers that cover the range: 1, 2, 2.5 or 5 · 10ⁿ apart."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"ticks need finite numbers, not {low} to {high}")
    if high <= low:
        room = max(abs(low) * 0.05, 1e-9)
        low, high = low - room, high + room
    rough = (high - low) / max(1, wanted - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def line_chart(
    series: Sequence[Series],
    *,
    x_label: str,
    y_label: str,
    y_from: float | None = None,
    marker: tuple[float, str] | None = None,
    whole_x: bool = False,
) -> str:
    """Lines over a common axis. `marker` draws a vertical line with a name."""
    xs = [x for line in series for x in line.x]
    ys = [y for line in series for y in line.y if math.isfinite(y)]
    if not xs or not ys:
        return ""
    y_ticks = ticks(min(ys) if y_from is None else y_from, max(ys))
    y_low, y_high = y_ticks[0], y_ticks[-1]
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
    shown = [v for v in ticks(x_low, x_high, 6) if x_low <= v <= x_high]
    shown = [v for v in shown if v == round(v)] if whole_x else shown
    parts += [_text(place(v, y_low)[0], HEIGHT - BOTTOM + 17, number(v)) for v in shown]
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
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def number(value: float) -> str:
    """Short: 0.05, 12, 1,500, 20k."""
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
