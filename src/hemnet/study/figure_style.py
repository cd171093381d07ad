"""The style of all figures: one colour per step size; saved as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

# Dark to light with growing η: told apart in grey and by colour-blind readers.
_STEP_COLOURS = {0.1: "#440154", 0.2: "#3b528b", 0.4: "#21918c", 0.8: "#5ec962", 1.0: "#e69f00"}
_MARKERS = {0.1: "o", 0.2: "s", 0.4: "^", 0.8: "D", 1.0: "v"}
EMANET, FLOOR = "#d55e00", "#767676"  # the baselines
INK, FAINT = "#22262b", "#9aa0a6"
HEAT = "cividis"  # even in lightness, and nearly the same to colour-blind eyes
WIDTH = 7.0  # inches of a full-width figure; text stays readable at half of it


def step_colour(eta: float) -> str:
    """The colour of a step size; others than the paper's are interpolated."""
    if eta in _STEP_COLOURS:
        return _STEP_COLOURS[eta]
    return str(to_hex(colormaps["viridis"](min(max(eta, 0.0), 1.0) * 0.9)))


def step_label(eta: float) -> str:
    return f"η = {eta:g}" + (" (plain EM)" if eta == 1 else "")


def line_style(column: str | float) -> dict[str, Any]:
    """How matplotlib draws a column of a table: a step size, or "emanet"."""
    if column == "emanet":
        return {"color": EMANET, "marker": "X", "ls": "--", "label": "EMANet"}
    eta = float(column)
    marker = _MARKERS.get(eta, "P")
    return {"color": step_colour(eta), "marker": marker, "ls": "-", "label": step_label(eta)}


def new_figure(width: float = WIDTH, height: float = 3.2) -> Figure:
    return Figure(figsize=(width, height), dpi=200, layout="constrained")


def tidy(axis: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Set titles and labels, remove needless lines."""
    axis.set_title(title, fontsize=10, loc="left", color=INK)
    axis.set_xlabel(x, fontsize=9.5)
    axis.set_ylabel(y, fontsize=9.5)
    axis.tick_params(labelsize=9, colors=INK)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e6e8ea", linewidth=0.7)
    axis.set_axisbelow(True)


def iteration_axis(axis: Axes, iterations: list[int]) -> None:
    """A logarithmic axis with a tick for each number of iterations."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(iterations, [str(t) for t in iterations])
    axis.minorticks_off()


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """STEM.png and STEM.svg; the same figure gives the same bytes."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    with mpl.rc_context({"svg.hashsalt": "hemnet", "svg.fonttype": "path"}):
        figure.savefig(paths[0])
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
