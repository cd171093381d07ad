"""Recall in one picture: accuracy by unit, and cost as positions grow.

    python benchmarks/recall_picture.py --runs docs/results/recall.jsonl \\
        --cost benchmarks/results/recall_cost.json --out docs/images/recall.png

A dot on the left is a run of `recall.py learn`, the line in grey what the majority gives. On the
right, time of `recall.py cost`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hemnet.study.figure_style import EMANET, FAINT, INK, new_figure, step_colour, tidy
from recall import majority, read

SHOWN = {  # label: unit, options, K
    "a mean (K = 1)": ("mean", {}, None),
    "paper's preset, K = 16": ("hem", {"preset": "paper"}, 16),
    "EMANet, K = 16": ("emanet", {}, 16),
    "EMANet with gradient, K = 16": ("emanet with gradient", {}, 16),
    "self-attention, O(N²)": ("attention", {}, None),
    "recommended, K = 16": ("hem", {}, 16),
    "recommended, K = 64": ("hem", {}, 64),
}
MARKERS = {3: "o", 6: "^", 12: "s"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--cost", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a picture")
    args = parser.parse_args()
    rows = read(args.runs)
    figure = new_figure(9, 3.4)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for height, case in enumerate(SHOWN.values()):
        ours = case[:2] == ("hem", {})
        for shift, (groups, marker) in enumerate(MARKERS.items()):
            found = [
                row["accuracy"]
                for row in rows
                if (row["unit"], row["options"], row["bases"], row["groups"]) == (*case, groups)
            ]
            y, name = height + 0.25 * (shift - 1), f"{groups} groups" if not height else None
            left.plot([majority(groups)] * 2, [y - 0.1, y + 0.1], color=FAINT, lw=2)
            colour = step_colour(0.4) if ours else INK if "attention" in case else EMANET
            left.plot(
                found, [y] * len(found), marker, ms=4.5, alpha=0.7, color=colour, label=name,
                ls="none",
            )  # fmt: skip
    left.set_yticks(range(len(SHOWN)), list(SHOWN))
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=8, loc="upper right")
    tidy(left, "Recall: grey is the majority", "accuracy, %")
    lengths = json.loads(args.cost.read_text())["lengths"]
    positions = [row["positions"] for row in lengths]
    for key, name, colour in (
        ("attention", "self-attention", INK),
        ("hem 64", "recommended, K = 64", step_colour(0.8)),
        ("hem 16", "recommended, K = 16", step_colour(0.4)),
    ):
        right.plot(
            positions, [row[key]["ms"] for row in lengths], "o-", ms=4, color=colour, label=name
        )
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xticks(positions, [f"{n:,}" for n in positions])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=8)
    tidy(right, "Forward and backward of one image", "positions", "ms")
    figure.savefig(args.out)


if __name__ == "__main__":
    main()
