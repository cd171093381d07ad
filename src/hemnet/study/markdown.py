"""The documents of the studies as Markdown, from the templates in documents.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hemnet.report.templates import templates_of
from hemnet.study.ablation import EMANET, FLOORS


def column_title(column: str) -> str:
    return "EMANet" if column == EMANET else f"η = {column}"


def cell_text(cell: dict[str, Any] | None, bold: bool = False) -> str:
    if cell is None or cell["mean"] is None:
        return "–"
    text = f"{cell['mean']:.2f}"
    text = f"**{text}**" if bold else text
    return text if cell["sd"] is None else f"{text} ± {cell['sd']:.2f}"


def grid_table(summary: dict[str, Any], corner: str = "T") -> str:
    """Iterations by step size, the best of each column in bold."""
    trained = summary.get("trained", {})
    heads = [
        column_title(c) + (f" _({trained[c]})_" if c in trained else "") for c in summary["columns"]
    ]
    rows = [
        [
            str(t),
            *(
                cell_text(summary["cells"][c].get(str(t)), summary["best_iterations"].get(c) == t)
                for c in summary["columns"]
            ),
        ]
        for t in summary["iterations"]
    ]
    return str(_documents.table([corner, *heads], rows))


def _estimate(value: dict[str, Any]) -> str:
    return f"{value['value']:+.2f} ± {value['margin']:.2f}"


_templates = templates_of("hemnet.study", escape=False)
_templates.filters |= {
    "title": column_title,
    "cell": cell_text,
    "grid": grid_table,
    "estimate": _estimate,
}
_templates.globals["FLOORS"] = FLOORS
_documents: Any = _templates.get_template("documents.md").module


def ablation_document(
    summary: dict[str, Any], context: dict[str, Any] | None, paper: dict[str, Any]
) -> str:
    return str(_documents.ablation(summary, context, paper))


def iterations_document(summary: dict[str, Any], paper: dict[str, Any]) -> str:
    return str(_documents.iterations(summary, paper))


def gradients_document(measured: dict[float, dict[str, Any]], when: str) -> str:
    """Mean absolute gradients by iteration, N-step / E-step."""
    count = max(len(m["n_step"]) for m in measured.values())
    rows = [
        [
            f"{eta:g}",
            *(f"{n:.1e} / {e:.1e}" for n, e in zip(m["n_step"], m["e_step"], strict=True)),
            f"{m['total']:.1e}",
        ]
        for eta, m in measured.items()
    ]
    head = ["η", *(f"t = {t}" for t in range(1, count + 1)), "total"]
    return str(_documents.gradients(head, rows, when))


def attention_document(bases: Sequence[dict[str, Any]]) -> str:
    """Every basis with the classes that it attends to most."""
    rows = []
    for basis in sorted(bases, key=lambda b: -b["share_of_attention"]):
        top = sorted(basis["classes"].items(), key=lambda item: -item[1])[:3]
        text = ", ".join(f"{name} {100 * share:.0f}%" for name, share in top if share >= 0.05)
        rows.append([str(basis["basis"]), f"{100 * basis['share_of_attention']:.1f}%", text])
    return str(_documents.attention(rows))


def compare_document(summary: dict[str, Any], size: Sequence[int]) -> str:
    ranked = sorted(summary["rows"], key=lambda r: -(r["miou"]["mean"] or 0))
    context = any(row["context_miou"]["runs"] for row in ranked)
    rows = [
        [
            row["head"],
            cell_text(row["miou"]),
            *([cell_text(row["context_miou"])] if context else []),
            f"{row['params'] / 1e6:.3f}",
            f"{row['flops'] / 1e9:.3f}",
            f"{row['images_per_second']:.0f}",
            f"{row['inference_bytes'] / 2**20:.1f}",
            f"{row['training_bytes'] / 2**20:.1f}",
            "–" if row["paper"] is None else "{1:.2f} / {2:.2f}".format(*row["paper"]),
        ]
        for row in ranked
    ]
    head = ["head", "mIoU", *(["mIoU, context classes"] if context else []), "params (M)",
            "GFLOPs", "images/s", "memory, inference (MiB)", "training (MiB an image)",
            "paper's Table 3: one scale / six and flip"]  # fmt: skip
    return str(_documents.compare(summary, head, rows, size))
