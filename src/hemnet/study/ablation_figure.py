"""Table 1 as figures: heat maps beside the paper's, and curves over the iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from hemnet.study.ablation import EMANET
from hemnet.study.figure_style import (
    FLOOR,
    HEAT,
    INK,
    iteration_axis,
    line_style,
    new_figure,
    save_figure,
    tidy,
)
from hemnet.study.uncertainty import t_critical

_FLOOR_STYLES = {"fcn": (":", "no attention"), "plain": ("-.", "without its unit")}


def draw_heat(ours: dict[str, Any], paper: dict[str, Any], title: str, stem: Path) -> list[Path]:
    """Two tables side by side, each with its own scale; frames mark the best of a column."""
    tables = [(title, ours), ("the paper: VOC, ResNet-50", paper)]
    widths = [len(summary["columns"]) for _, summary in tables]
    rows = max(len(summary["iterations"]) for _, summary in tables)
    figure = new_figure(7.4, 0.9 + 0.34 * rows)
    axes = figure.subplots(1, 2, gridspec_kw={"width_ratios": widths}, squeeze=False)[0]
    for axis, (name, summary) in zip(axes, tables, strict=True):
        _heat(axis, summary)
        axis.set_title(name, fontsize=10.5, loc="left", color=INK)
    axes[0].set_ylabel("iterations in training, T", fontsize=10)
    return save_figure(figure, stem)


def _heat(axis: Axes, summary: dict[str, Any]) -> None:
    rows, columns = summary["iterations"], summary["columns"]
    means = np.array(
        [[summary["cells"][c].get(str(t), {}).get("mean") for c in columns] for t in rows], float
    )
    # Step sizes share the scale; EMANet, which may lie far below them, is darkest there.
    scaled = means[:, [c != EMANET for c in columns]] if len(columns) > 1 else means
    known = scaled[np.isfinite(scaled)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 1.0)
    # Colours never spread further than the noise: what cannot be told apart looks alike.
    span = max(high - low, summary.get("least_difference") or 1e-9)
    decimals = 1 if high - low > 5 else 2
    low = (low + high - span) / 2
    axis.set_facecolor("#eeeeee")
    axis.imshow(means, cmap=HEAT, vmin=low, vmax=low + span, aspect="auto")
    names = ["EMANet" if c == EMANET else f"η {c}" for c in columns]
    axis.set_xticks(range(len(columns)), names, fontsize=9.5)
    axis.set_yticks(range(len(rows)), [str(t) for t in rows], fontsize=9.5)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    for i, t in enumerate(rows):
        for j, column in enumerate(columns):
            value = means[i, j]
            if not np.isfinite(value):
                axis.text(j, i, "–", ha="center", va="center", fontsize=9.5)
                continue
            dark = sum(colormaps[HEAT]((value - low) / span)[:3]) < 1.45
            best = summary["best_iterations"].get(column) == t
            axis.text(
                j, i, f"{value:.{decimals}f}", ha="center", va="center", fontsize=9.5,
                color="white" if dark else "black", fontweight="bold" if best else "normal",
            )  # fmt: skip
            if best:
                frame = Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, fill=False, lw=1.6)
                frame.set_edgecolor("white" if dark else "black")
                axis.add_patch(frame)


def draw_lines(summary: dict[str, Any], y: str, stem: Path) -> list[Path]:
    """mIoU over T, one line for each step size, with 95% intervals of the means."""
    figure = new_figure(5.6, 3.6)
    axis = figure.subplots()
    rows = summary["iterations"]
    count = len(summary["columns"])
    for number, column in enumerate(summary["columns"]):
        cells = [(t, summary["cells"][column][str(t)]) for t in rows]
        known = [(t, cell) for t, cell in cells if cell["mean"] is not None]
        # Side by side, so that intervals do not hide each other.
        x = [t * 2 ** (0.05 * (number - (count - 1) / 2)) for t, _ in known]
        means = [cell["mean"] for _, cell in known]
        sd = summary["pooled_sd"]
        margin = [
            0.0 if sd is None else t_critical(summary["freedom"]) * sd / len(cell["runs"]) ** 0.5
            for _, cell in known
        ]
        axis.errorbar(
            x, means, yerr=margin, lw=1.6, ms=5, elinewidth=0.9, capsize=0, **line_style(column)
        )
    for name, floor in summary["floors"].items():
        style, label = _FLOOR_STYLES[name]
        ends, mean = (rows[0], rows[-1]), floor["mean"]
        axis.errorbar(ends, (mean, mean), color=FLOOR, lw=1.2, ls=style, label=label)
    tidy(axis, x="iterations in training, T", y=y)
    iteration_axis(axis, rows)
    axis.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save_figure(figure, stem)
