"""The comparison of heads as a figure: accuracy beside cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hemnet.study.figure_style import EMANET, FAINT, INK, new_figure, save_figure, tidy

OURS = "#21918c"


def draw_compare(summary: dict[str, Any], title: str, stem: Path) -> list[Path]:
    """Bars of mIoU with every run as a dot, and parameters beside them, best first."""
    rows = [row for row in summary["rows"] if row["miou"]["mean"] is not None]
    rows.sort(key=lambda row: row["miou"]["mean"])
    figure = new_figure(7.2, 0.9 + 0.36 * len(rows))
    left, middle, right = figure.subplots(
        1, 3, sharey=True, gridspec_kw={"width_ratios": [2.2, 1, 1]}
    )
    places = range(len(rows))
    colours = [{"hemnet": OURS, "emanet": EMANET}.get(row["head"], FAINT) for row in rows]
    means = [row["miou"]["mean"] for row in rows]
    left.barh(places, means, color=colours, height=0.66)
    for place, row in zip(places, rows, strict=True):
        runs = row["miou"]["runs"]
        left.plot(runs, [place] * len(runs), "o", ms=3.5, mfc="white", mec=INK, mew=0.9)
        text = f"{row['miou']['mean']:.1f}"
        left.text(1.0, place, text, va="center", ha="left", fontsize=9, color="white",
                  fontweight="bold")  # fmt: skip
    left.set_yticks(places, [row["head"] for row in rows])
    middle.barh(places, [row["params"] / 1e6 for row in rows], color=colours, height=0.66)
    right.barh(places, [row["flops"] / 1e9 for row in rows], color=colours, height=0.66)
    for axis, name, unit in (
        (left, title, "mIoU (%), dots: seeds"),
        (middle, "parameters", "millions"),
        (right, "cost of an image", "GFLOPs"),
    ):
        tidy(axis, name, unit)
        axis.grid(visible=False, axis="y")
        axis.grid(axis="x", color="#e6e8ea", linewidth=0.7)
        axis.tick_params(axis="y", length=0)
    left.tick_params(axis="y", labelsize=10)
    return save_figure(figure, stem)
