"""Tables of the studies as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hemnet.study.ablation import FLOORS, TITLES


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
    extra = summary.get("titles", {})
    heads = [" ".join((column_title(c), extra.get(c, ""))).strip() for c in summary["columns"]]
    return markdown([corner, *heads], rows)


def _estimate(value: dict[str, Any]) -> str:
    return f"{value['value']:+.2f} ± {value['margin']:.2f}"


def statistics_text(summary: dict[str, Any]) -> str:
    """What the seeds can and cannot tell, in plain words."""
    if summary["pooled_sd"] is None:
        return "With one seed a cell, no difference can be told from chance.\n"
    claims, lines = summary["claims"], []
    lines.append(
        f"Runs that differ in their seed alone have a standard deviation of "
        f"{summary['pooled_sd']:.2f} points (pooled over all cells, what a seed does to all of "
        f"them taken out, {summary['freedom']} degrees of freedom). Two cells of "
        f"{len(summary['seeds'])} seeds each are distinguishable (95%, not corrected for the "
        f"number of pairs) from a difference of {summary['least_difference']:.2f} points on. "
        "Intervals below are 95%."
    )
    if "hemnet_minus_emanet" in claims:
        gap = claims["hemnet_minus_emanet"]
        lines.append(f"- All HEMNet runs minus all EMANet runs: {_estimate(gap)} points.")
        by_row = claims["best_minus_emanet"].items()
        text = "; ".join(
            f"T = {t}: {_estimate(row)} (η = {row['best_step_size']})" for t, row in by_row
        )
        lines.append(f"- The best step size of a row minus EMANet: {text}.")
    for floor, gaps in claims["minus_floors"].items():
        text = "; ".join(f"{column_title(c)}: {_estimate(gap)}" for c, gap in gaps.items())
        lines.append(f"- All runs of a column minus {FLOORS[floor]}: {text}.")
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


def floors_text(summary: dict[str, Any]) -> str:
    found = summary["floors"].items()
    text = "; ".join(f"{FLOORS[name]} {cell_text(floor, False)}" for name, floor in found)
    return f"Without attention: {text}.\n" if text else ""


def failures_text(summary: dict[str, Any]) -> str:
    missing = summary["runs_wanted"] - summary["runs_done"]
    if not missing:
        return ""
    lines = [f"{missing} of {summary['runs_wanted']} runs are missing.\n"]
    lines += [f"- {name} failed: {error}" for name, error in summary["failed"].items()]
    return "\n".join(lines) + "\n"


def ablation_document(summary: dict[str, Any], context: dict[str, Any] | None, paper: str) -> str:
    parts = ["# Iterations and step size in training (Table 1)\n", failures_text(summary)]
    seeds = ", ".join(map(str, summary["seeds"]))
    parts += [
        f"Validation mIoU in percent, mean ± standard deviation over the seeds {seeds}; the best "
        "of each column in bold.\n",
        grid_table(summary),
    ]
    parts += [floors_text(summary), statistics_text(summary)]
    if context is not None:
        parts += ["## Classes that need context alone\n", grid_table(context)]
        parts += [floors_text(context), statistics_text(context)]
    parts += ["## The paper's Table 1\n", "PASCAL VOC val, ResNet-50, one run a cell.\n", paper]
    return "\n".join(part for part in parts if part)


def iterations_document(summary: dict[str, Any], paper: dict[str, Any]) -> str:
    parts = [
        "# Iterations in evaluation (Table 2)\n",
        "mIoU in percent of the best networks of each column of Table 1, all seeds; in bold the "
        "best number of iterations, _(T)_ the number in training.\n",
        grid_table(_with_trained(summary), "iterations"),
    ]
    for column, gain in summary["gain"].items():
        if gain["mean"] is not None:
            sd = "" if gain["sd"] is None else f" ± {gain['sd']:.2f}"
            parts.append(
                f"- {column_title(column)}: best at {summary['best_iterations'][column]}, trained "
                f"with {summary['trained'][column]}: {gain['mean']:+.2f}{sd} points a model."
            )
    parts += ["\n## The paper's Table 2\n", grid_table(_with_trained(paper), "iterations")]
    return "\n".join(parts)


def _with_trained(summary: dict[str, Any]) -> dict[str, Any]:
    return summary | {"titles": {c: f"_({t})_" for c, t in summary["trained"].items()}}


def gradients_document(measured: dict[float, dict[str, Any]], when: str) -> str:
    """Mean absolute gradients by iteration, N-step / E-step."""
    count = max(len(m["n_step"]) for m in measured.values())
    rows = []
    for eta, found in measured.items():
        cells = [
            f"{n:.1e} / {e:.1e}" for n, e in zip(found["n_step"], found["e_step"], strict=True)
        ]
        rows.append([f"{eta:g}", *cells, f"{found['total']:.1e}"])
    return "\n".join(
        [
            f"# Gradients to x {when} (Figure 3)\n",
            "Mean absolute ∂loss/∂x by the N-step / by the E-step of each iteration, and of both "
            "together over all.\n",
            markdown(["η", *(f"t = {t}" for t in range(1, count + 1)), "total"], rows),
        ]
    )


def attention_document(rows: Sequence[dict[str, Any]]) -> str:
    """Every basis with the classes that it attends to most."""
    lines = []
    for row in sorted(rows, key=lambda r: -r["share_of_attention"]):
        top = sorted(row["classes"].items(), key=lambda item: -item[1])[:3]
        text = ", ".join(f"{name} {100 * share:.0f}%" for name, share in top if share >= 0.05)
        lines.append([str(row["basis"]), f"{100 * row['share_of_attention']:.1f}%", text])
    return "\n".join(
        [
            "# What each basis attends to (Figure 4)\n",
            "Of the responsibilities of the last iteration over the validation set.\n",
            markdown(["basis", "of all attention", "classes"], lines),
        ]
    )


def compare_document(summary: dict[str, Any], size: Sequence[int]) -> str:
    rows = []
    ranked = sorted(summary["rows"], key=lambda r: -(r["miou"]["mean"] or 0))
    context = any(row["context_miou"]["runs"] for row in ranked)
    for row in ranked:
        printed = row["paper"]
        cells = [row["head"], cell_text(row["miou"], False)]
        cells += [cell_text(row["context_miou"], False)] if context else []
        cells += [
            f"{row['params'] / 1e6:.3f}",
            f"{row['flops'] / 1e9:.3f}",
            f"{row['images_per_second']:.0f}",
            f"{row['inference_bytes'] / 2**20:.1f}",
            f"{row['training_bytes'] / 2**20:.1f}",
            "–" if printed is None else f"{printed[1]:.2f} / {printed[2]:.2f}",
        ]
        rows.append(cells)
    head = ["head", "mIoU", *(["mIoU, context classes"] if context else []), "params (M)",
            "GFLOPs", "images/s", "memory, inference (MiB)", "training (MiB an image)",
            "paper's Table 3: one scale / six and flip"]  # fmt: skip
    parts = [
        "# Heads under one budget\n",
        f"The same recipe, seeds and backbone for all; costs at {size[0]}×{size[1]}. Memory is of "
        "activations. The paper's mIoU is PASCAL VOC val with ResNet-101, for reference only.\n",
        markdown(head, rows),
    ]
    if summary["hemnet_minus"]:
        gaps = "; ".join(
            f"{head} {_estimate(gap)}" for head, gap in summary["hemnet_minus"].items()
        )
        parts.append(f"HEMNet minus (95% intervals): {gaps}.\n")
    parts += [f"- {name} failed: {error}" for name, error in summary["failed"].items()]
    return "\n".join(parts)
