"""Recall in one picture: images of it, accuracy by unit, and cost as positions grow.

    python benchmarks/recall_picture.py --runs docs/results/recall.jsonl \\
        --images docs/results/recall_images.jsonl \\
        --cost benchmarks/results/recall_cost.json --out docs/images/recall.png

Above, images of `data.name: recall`. A dot on the left is a run of `recall.py learn` or of
`recall_images.py`, the line in grey what the majority gives. On the right, `recall.py cost`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hemnet.data import Recall
from hemnet.study.figure_style import EMANET, FAINT, INK, new_figure, step_colour, tidy
from recall import read

SHOWN = {  # label: unit, options, K on points and on images
    "a mean (K = 1)": ("mean", {}, None, None),
    "paper's preset, K = 16": ("hem", {"preset": "paper"}, 16, None),
    "EMANet, K = 16 (images 32)": ("emanet", {}, 16, 32),
    "EMANet with gradient, K = 16": ("emanet with gradient", {}, 16, None),
    "self-attention, O(N²)": ("attention", {}, None, None),
    "recommended, 16 (images 32)": ("hem", {}, 16, 32),
    "recommended, K = 64": ("hem", {}, 64, None),
}
KEYS = "options", "bases", "groups"
EXAMPLES = (2, 0), (3, 1), (4, 2), (6, 3), (9, 4), (12, 5)  # groups, number of the image
MARKERS = {3: "o", 6: "^", 12: "s", None: "D"}  # by number of groups; None: images


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--cost", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a picture")
    args = parser.parse_args()
    rows = read(args.runs) + read(args.images)
    figure = new_figure(9, 5.2)
    above, below = figure.subfigures(2, 1, height_ratios=(2, 5))
    for axes, (groups, index) in zip(above.subplots(1, 6), EXAMPLES, strict=True):
        image, _ = Recall("val", size=128, groups=groups).read(index)
        axes.imshow(image.permute(1, 2, 0))
        axes.set_title(f"{groups} groups", fontsize=8)
        axes.set_axis_off()
    left, right = below.subplots(1, 2, width_ratios=(3, 2))
    for height, (unit, options, *bases) in enumerate(SHOWN.values()):
        ours = (unit, options) == ("hem", {})
        for shift, (groups, marker) in enumerate(MARKERS.items()):
            case = unit, options, bases[groups is None], groups
            found = [row for row in rows if tuple(row[key] for key in ("unit", *KEYS)) == case]
            if not found:
                continue
            y = height + 0.2 * (shift - 1.5)
            left.plot([found[0]["majority"]] * 2, [y - 0.1, y + 0.1], color=FAINT, lw=2)
            colour = step_colour(0.4) if ours else INK if unit == "attention" else EMANET
            left.plot(
                [row["accuracy"] for row in found], [y] * len(found), marker, ms=4, alpha=0.7,
                color=colour, ls="none",
            )  # fmt: skip
    for groups, marker in MARKERS.items():
        name = f"{groups} groups" if groups else "images, 2 to 12"
        left.plot([], [], marker, color=INK, ms=4, label=name)
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
    tidy(right, "Forward and backward", "positions", "ms")
    figure.savefig(args.out, dpi=130)  # images with noise make large files


if __name__ == "__main__":
    main()
