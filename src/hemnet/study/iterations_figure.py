"""Table 2 as a figure: mIoU over the iterations in evaluation, beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.lines import Line2D

from hemnet.study.figure_style import INK, iteration_axis, line_style, new_figure, save_figure, tidy


def draw_iterations(
    ours: dict[str, Any], paper: dict[str, Any], title: str, stem: Path
) -> list[Path]:
    """A line for each step size; a ring marks the iterations of training."""
    figure = new_figure(7.2, 3.7)
    axes = figure.subplots(1, 2)
    for axis, summary, name in zip(
        axes, (ours, paper), (title, "the paper: VOC, ResNet-50"), strict=True
    ):
        rows = summary["iterations"]
        for column in summary["columns"]:
            style = line_style(column)
            means = [summary["cells"][column][str(t)]["mean"] for t in rows]
            axis.plot(rows, means, ms=4.5, lw=1.6, **style)
            trained = summary["trained"][column]
            if trained in rows:
                there = means[rows.index(trained)]
                axis.plot(trained, there, "o", ms=12, mfc="none", mec=style["color"], mew=1.5)
        tidy(axis, name, "iterations in evaluation", "mIoU (%)")
        iteration_axis(axis, rows)
    entries = [axis.get_legend_handles_labels() for axis in axes]
    known = {
        label: h for handles, labels in entries for h, label in zip(handles, labels, strict=True)
    }
    handles, labels = list(known.values()), list(known)
    handles.append(Line2D([], [], ls="", marker="o", ms=10, mfc="none", mec=INK, mew=1.5))
    labels.append("as trained")
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return save_figure(figure, stem)
