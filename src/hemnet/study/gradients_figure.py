"""Figure 3: the bound, both gradients by iteration, and the total during training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hemnet.study.figure_style import FAINT, line_style, new_figure, save_figure, step_colour, tidy

Curves = dict[float, dict[str, Any]]  # step size → a measurement

FLOOR = 1e-4  # of the largest value: what is smaller is zero to the eye


def draw_flow(
    start: Curves, stem: Path, training: dict[float, list[dict[str, Any]]] | None = None
) -> list[Path]:
    """(a) bound, (b) N-step, (c) E-step by iteration, and (d) the total over training steps."""
    count = 3 if training is None else 4
    shape = (1, 3) if count == 3 else (2, 2)
    figure = new_figure(7.2, 2.9 if count == 3 else 5.4)
    axes = figure.subplots(*shape, squeeze=False).flatten()
    _bound(axes[0], start)
    top = max(max(m["n_step"] + m["e_step"]) for m in start.values())
    _gradients(axes[1], start, "n_step", top, "(b) by the N-step")
    _gradients(axes[2], start, "e_step", top, "(c) by the E-step")
    for eta, measured in start.items():
        scale = measured["n_step"][-1] / measured["weights"][-1]
        expected = [scale * w if w * scale > top * FLOOR else math.nan for w in measured["weights"]]
        # A broad pale line: where the law holds, it lies under the measurement.
        axes[1].plot(
            range(1, len(expected) + 1), expected, color=step_colour(eta), lw=6, alpha=0.25,
            marker="o" if sum(e == e for e in expected) == 1 else None, ms=9, mew=0, zorder=1,
        )  # fmt: skip
    if training is not None:
        _totals(axes[3], training)
    handles, labels = axes[0].get_legend_handles_labels()
    handles.append(Line2D([], [], color=FAINT, lw=6, alpha=0.5))
    labels.append("expected: η(1−η)$^{T−t}$")
    figure.legend(
        handles, labels, loc="outside lower center", frameon=False, fontsize=9,
        ncols=3, columnspacing=1.4, handletextpad=0.5,
    )  # fmt: skip
    return save_figure(figure, stem)


def _line(axis: Axes, x: Sequence[float], y: Sequence[float], eta: float) -> None:
    axis.plot(x, y, ms=4, lw=1.5, **line_style(eta))


def _bound(axis: Axes, start: Curves) -> None:
    for eta, measured in start.items():
        _line(axis, range(1, len(measured["elbo"]) + 1), measured["elbo"], eta)
    tidy(axis, "(a) likelihood bound", "iteration t", "ELBO per position (nats)")
    _whole(axis, start)


def _gradients(axis: Axes, start: Curves, key: str, top: float, title: str) -> None:
    for eta, measured in start.items():
        shown = [v if v > top * FLOOR else math.nan for v in measured[key]]
        _line(axis, range(1, len(shown) + 1), shown, eta)
    tidy(axis, title, "iteration t", "mean |∂loss/∂x|")
    axis.set_yscale("log")
    axis.set_ylim(top * FLOOR * 0.8, top * 2)  # one scale for both paths
    _whole(axis, start)


def _totals(axis: Axes, training: dict[float, list[dict[str, Any]]]) -> None:
    power = math.floor(math.log10(max(m["total"] for runs in training.values() for m in runs)))
    for eta, measured in training.items():
        totals = [m["total"] / 10.0**power for m in measured]
        _line(axis, [m["step"] for m in measured], totals, eta)
    tidy(axis, "(d) by both, in training", "training step", f"mean |∂loss/∂x| (10$^{{{power}}}$)")
    axis.set_ylim(0)


def _whole(axis: Axes, start: Curves) -> None:
    count = max(len(measured["elbo"]) for measured in start.values())
    step = max(1, round(count / 8))
    axis.set_xticks(range(1, count + 1, step))
