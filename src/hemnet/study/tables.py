"""Tables of the studies as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hemnet.study.ablation import TITLES


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [head, [":---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def column_title(column: str) -> str:
    return TITLES.get(column, f"η = {column}")


def cell_text(cell: dict[str, Any] | None, mark: bool) -> str:
    if cell is None or cell["mean"] is None:
        return "–"
    text = f"{cell['mean']:.2f}"
    text = f"**{text}**" if mark else text
    return text if cell["sd"] is None else f"{text} ± {cell['sd']:.2f}"


def grid_table(summary: dict[str, Any], corner: str = "T") -> str:
    """Iterations by step size, the best of each column in bold."""
    rows = []
    for t in summary["iterations"]:
        cells = [
            cell_text(summary["cells"][c].get(str(t)), summary["best_iterations"].get(c) == t)
            for c in summary["columns"]
        ]
        rows.append([str(t), *cells])
    return markdown([corner, *map(column_title, summary["columns"])], rows)


def _estimate(value: dict[str, Any]) -> str:
    return f"{value['value']:+.2f} ± {value['margin']:.2f}"


def statistics_text(summary: dict[str, Any]) -> str:
    """What the seeds can and cannot tell, in plain words."""
    if summary["pooled_sd"] is None:
        return "With one seed a cell, no difference can be told from chance.\n"
    claims, lines = summary["claims"], []
    lines.append(
        f"Runs that differ in their seed alone have a standard deviation of "
        f"{summary['pooled_sd']:.2f} points (pooled over all cells, {summary['freedom']} degrees "
        f"of freedom). Two cells of {len(summary['seeds'])} seeds each are distinguishable "
        f"(95%, not corrected for the number of pairs) from a difference of "
        f"{summary['least_difference']:.2f} points on. Intervals below are 95%."
    )
    if "hemnet_minus_emanet" in claims:
        gap = claims["hemnet_minus_emanet"]
        lines.append(f"- All HEMNet runs minus all EMANet runs: {_estimate(gap)} points.")
        by_row = claims["best_minus_emanet"].items()
        text = "; ".join(
            f"T = {t}: {_estimate(row)} (η = {row['best_step_size']})" for t, row in by_row
        )
        lines.append(f"- The best step size of a row minus EMANet: {text}.")
    slopes = "; ".join(
        f"{column_title(c)}: {_estimate(s)}" for c, s in claims["per_doubling"].items()
    )
    lines.append(f"- What doubling T changes: {slopes}.")
    crossing = claims["step_size_by_iterations"]
    if crossing is not None:
        words = "falls" if crossing["value"] < 0 else "rises"
        clear = "clearly" if crossing["clear"] else "but not distinguishably"
        lines.append(
            f"- The gain from doubling η {words}, {clear}, as T doubles: {_estimate(crossing)}."
        )
    return "\n".join(lines) + "\n"


def failures_text(summary: dict[str, Any]) -> str:
    missing = summary["runs_wanted"] - summary["runs_done"]
    if not missing:
        return ""
    lines = [f"{missing} of {summary['runs_wanted']} runs are missing.\n"]
    lines += [f"- {name} failed: {error}" for name, error in summary["failed"].items()]
    return "\n".join(lines) + "\n"


def ablation_document(summary: dict[str, Any], context: dict[str, Any] | None, paper: str) -> str:
    parts = ["# Iterations and step size in training (Table 1)\n", failures_text(summary)]
    parts += [f"Validation mIoU in percent, mean ± standard deviation over "
              f"{len(summary['seeds'])} seeds; the best of each column in bold.\n",
              grid_table(summary)]  # fmt: skip
    if summary["floor"]:
        parts.append(f"The same network without attention: {summary['floor']['mean']:.2f}.\n")
    parts.append(statistics_text(summary))
    if context is not None:
        parts += ["## Classes that need context alone\n", grid_table(context)]
        if context["floor"]:
            parts.append(f"The same network without attention: {context['floor']['mean']:.2f}.\n")
        parts.append(statistics_text(context))
    parts += ["## The paper's Table 1\n", "PASCAL VOC val, ResNet-50, one run a cell.\n", paper]
    return "\n".join(part for part in parts if part)
