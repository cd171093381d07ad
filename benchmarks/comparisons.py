"""The comparisons on real images: which runs of `real_data.py` belong together, and differences.

Runs are paired by seed, and by film where one was left out of the training images.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Run = dict[str, Any]
Pair = tuple[str | None, int]  # film left out, seed

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "docs" / "results" / "real_data.jsonl"
PREVIOUS = "hemnet:gain=0.3,gain_rate=10"  # the default before the one measured here
FROZEN = {"backbone": "tf_efficientnet_lite0", "optimizer": "adamw", "steps": 400, "batch": 8}
CROPS = {"optimizer": None, "steps": 400, "batch": 8, "crop": 193, "scale": [0.5, 2.0]}


@dataclass(frozen=True)
class Comparison:
    """Runs that have all these settings; None stands for a setting that a run does not have.

    `rates` is the learning rate of each head, one number where all have the same; `ours` the unit
    that is compared with the others.
    """

    title: str
    settings: dict[str, Any]
    rates: float | dict[str, float]
    films: bool = False
    ours: str = "hemnet"

    def rate(self, unit: str) -> float:
        if isinstance(self.rates, float):
            return self.rates
        name = unit.partition(":")[0]
        return self.rates.get(name, self.rates["hemnet"])

    def miou(self, runs: Sequence[Run], unit: str) -> dict[Pair, float]:
        return self.values(runs, unit, "miou")

    def values(self, runs: Sequence[Run], unit: str, measure: str) -> dict[Pair, float]:
        settings = {"freeze_stages": None, "holdout": False} | self.settings
        settings |= {"unit": unit, "rate": self.rate(unit)}
        return {
            (run.get("leave_out"), run["seed"]): run[measure]
            for run in runs
            if ("leave_out" in run) == self.films
            and all(run.get(key) == value for key, value in settings.items())
        }

    def gains(self, runs: Sequence[Run], baseline: str) -> list[float]:
        """mIoU of `ours` less the baseline's, pair by pair."""
        return differences(self.miou(runs, self.ours), self.miou(runs, baseline))


VOC_FROZEN = Comparison(
    "VOC, frozen, rates tuned",
    FROZEN | {"data": "voc"},
    {"plain": 0.0003, "emanet": 0.001, "hemnet": 0.0003},
)
CAMVID_FROZEN = Comparison(
    "CamVid, frozen, rates tuned",
    FROZEN | {"data": "camvid", "window": [19, 25]},
    {"plain": 0.0001, "emanet": 0.0001, "hemnet": 0.0003},
)
CAMVID_RESNET = Comparison(
    "CamVid, frozen ResNet-50, rates tuned",
    FROZEN | {"data": "camvid", "backbone": "resnet50", "batch": 4},
    {"plain": 0.0001, "emanet": 0.001, "hemnet": 0.0001},
)
CAMVID_CROPS = Comparison(
    "CamVid, frozen, small crops, SGD", CROPS | {"data": "camvid", "frozen": True}, 0.05
)
CAMVID_FILMS = Comparison(
    "CamVid, unseen film, frozen",
    FROZEN | {"data": "camvid", "window": [19, 25]},
    0.0003,
    films=True,
)
COMPARISONS = (
    VOC_FROZEN,
    Comparison("VOC, frozen ResNet-50, rates tuned",
               FROZEN | {"data": "voc", "backbone": "resnet50", "batch": 4},
               {"plain": 0.001, "emanet": 0.0001, "hemnet": 0.001}),
    Comparison("VOC, frozen, small crops, SGD", CROPS | {"data": "voc", "frozen": True}, 0.05),
    CAMVID_FROZEN,
    CAMVID_RESNET,
    CAMVID_CROPS,
    CAMVID_FILMS,
    replace(CAMVID_CROPS, title="CamVid, unseen film, small crops, SGD", films=True),
    Comparison("VOC, frozen, 1600 steps (gain from 0.3)",
               FROZEN | {"data": "voc", "steps": 1600}, 0.001, ours=PREVIOUS),
    Comparison("VOC, last stages trained (gain from 0.3)",
               FROZEN | {"data": "voc", "batch": 4, "freeze_stages": 3}, 0.0005, ours=PREVIOUS),
    Comparison("CamVid, last stages trained (gain from 0.3)",
               FROZEN | {"data": "camvid", "steps": 500, "batch": 4, "freeze_stages": 3}, 0.0005,
               ours=PREVIOUS),
    Comparison("CamVid, unseen film, last stages trained (gain from 0.3)",
               FROZEN | {"data": "camvid", "batch": 4, "freeze_stages": 3}, 0.0005, films=True,
               ours=PREVIOUS),
)  # fmt: skip


def read_runs(path: Path = RUNS) -> list[Run]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def differences(ours: dict[Pair, float], other: dict[Pair, float]) -> list[float]:
    return [ours[pair] - other[pair] for pair in ours if pair in other]


def standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
