"""What the shipped unit gains on real images, run by run, from the runs of `real_data.py`.

    python benchmarks/gains_picture.py docs/results/real_data.jsonl --out docs/images/gains.png

A comparison is a table of its own in docs/results.md. Its runs are paired by seed, and by film
where one was left out; a dot is a pair, the bar its mean ± one standard error.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from rich.table import Table

from common import console
from hemnet.study.figure_style import EMANET, FAINT, INK, new_figure, step_colour, tidy

Run = dict[str, Any]
FROZEN = {"backbone": "tf_efficientnet_lite0", "optimizer": "adamw", "steps": 400, "batch": 8}
BEFORE = "hemnet:gain=0.3,gain_rate=10"  # what was recommended before, in titles "start 0.3"
CROPS = {"optimizer": None, "steps": 400, "batch": 8, "crop": 193, "scale": [0.5, 2.0]}


class Comparison(NamedTuple):
    """Runs that have all these settings; None is for what a run does not have.

    `rates` is the learning rate of each head, a number where all have the same; `ours` the unit
    that is compared.
    """

    title: str
    settings: dict[str, Any]
    rates: float | dict[str, float]
    films: bool = False
    ours: str = "hemnet"

    def rate(self, unit: str) -> float:
        if isinstance(self.rates, float):
            return self.rates
        return self.rates[unit.partition(":")[0]]


COMPARISONS = (
    Comparison("VOC, frozen, rates tuned", FROZEN | {"data": "voc"},
               {"plain": 0.0003, "emanet": 0.001, "hemnet": 0.0003}),
    Comparison("VOC, frozen, 1600 steps (start 0.3)",
               FROZEN | {"data": "voc", "steps": 1600}, 0.001, ours=BEFORE),
    Comparison("VOC, frozen ResNet-50, rates tuned",
               FROZEN | {"data": "voc", "backbone": "resnet50", "batch": 4},
               {"plain": 0.001, "emanet": 0.0001, "hemnet": 0.001}),
    Comparison("VOC, frozen, small crops, SGD", CROPS | {"data": "voc", "frozen": True}, 0.05),
    Comparison("VOC, last stages trained (start 0.3)",
               FROZEN | {"data": "voc", "batch": 4, "freeze_stages": 3}, 0.0005, ours=BEFORE),
    Comparison("CamVid, frozen, rates tuned", FROZEN | {"data": "camvid", "window": [19, 25]},
               {"plain": 0.0001, "emanet": 0.0001, "hemnet": 0.0003}),
    Comparison("CamVid, frozen ResNet-50, rates tuned",
               FROZEN | {"data": "camvid", "backbone": "resnet50", "batch": 4},
               {"plain": 0.0001, "emanet": 0.001, "hemnet": 0.0001}),
    Comparison("CamVid, frozen, small crops, SGD",
               CROPS | {"data": "camvid", "frozen": True}, 0.05),
    Comparison("CamVid, last stages trained (start 0.3)",
               FROZEN | {"data": "camvid", "steps": 500, "batch": 4, "freeze_stages": 3}, 0.0005,
               ours=BEFORE),
    Comparison("CamVid, unseen film, frozen",
               FROZEN | {"data": "camvid", "window": [19, 25]}, 0.0003, films=True),
    Comparison("CamVid, unseen film, small crops, SGD",
               CROPS | {"data": "camvid", "frozen": True}, 0.05, films=True),
    Comparison("CamVid, unseen film, last stages trained (start 0.3)",
               FROZEN | {"data": "camvid", "batch": 4, "freeze_stages": 3}, 0.0005, films=True,
               ours=BEFORE),
)  # fmt: skip


def gains(runs: list[Run], comparison: Comparison, baseline: str) -> list[float]:
    """mIoU of HEMNet less the baseline's, pair by pair."""
    ours, other = (_miou(runs, comparison, unit) for unit in (comparison.ours, baseline))
    return [ours[pair] - other[pair] for pair in ours if pair in other]


def _miou(runs: list[Run], comparison: Comparison, unit: str) -> dict[Any, float]:
    settings = {"freeze_stages": None, "holdout": False} | comparison.settings
    settings |= {"unit": unit, "rate": comparison.rate(unit)}
    return {
        (run.get("leave_out"), run["seed"]): run["miou"]
        for run in runs
        if ("leave_out" in run) == comparison.films
        and all(run.get(key) == value for key, value in settings.items())
    }


def error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def draw(rows: list[tuple[str, list[float], list[float]]]) -> Figure:
    """A row for each comparison: its title, the gains over the plain head and over EMANet's."""
    figure = new_figure(9, 4.6)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    for height, (_, *both) in enumerate(rows):
        for axis, values in zip((left, right), both, strict=True):
            axis.plot(values, [height] * len(values), "o", ms=4, alpha=0.6, color=FAINT)
            mean = statistics.mean(values) if values else math.nan
            colour = step_colour(0.4) if mean > 0 else EMANET
            axis.errorbar(mean, height, xerr=error(values), fmt="D", ms=5, capsize=3, color=colour)
    for axis, name in ((left, "the head without attention"), (right, "EMANet's unit")):
        tidy(axis, f"HEMNet − {name}", "mIoU, points")
        axis.axvline(0, color=INK, lw=0.8)
    left.set_yticks(range(len(rows)), [title for title, *_ in rows])
    left.invert_yaxis()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="JSON lines, one a run")
    parser.add_argument("--out", type=Path, required=True, help="a picture")
    args = parser.parse_args()
    runs = [json.loads(line) for line in args.runs.read_text().splitlines()]
    rows = [(c.title, gains(runs, c, "plain"), gains(runs, c, "emanet")) for c in COMPARISONS]
    shown = Table("comparison", "pairs", "− plain", "± se", "pairs", "− EMANet", "± se")
    for title, *both in rows:
        cells = [
            (str(len(v)), f"{statistics.mean(v):+.2f}" if v else "", f"{error(v):.2f}" if v else "")
            for v in both
        ]
        shown.add_row(title, *cells[0], *cells[1])
    console.print(shown)
    draw(rows).savefig(args.out)


if __name__ == "__main__":
    main()
