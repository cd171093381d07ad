"""Table 1 of the paper: mIoU over the iterations T and the step size η of training, and EMANet."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from hemnet.models.registry import head_options
from hemnet.study import paper_results as paper
from hemnet.study.grid import Cell
from hemnet.study.recipe import for_head
from hemnet.study.uncertainty import (
    Noise,
    difference,
    interaction,
    mean_sd,
    pooled_within_seeds,
    slope,
)
from hemnet.training.config import TrainConfig

EMANET = "emanet"
TITLES = {EMANET: "EMANet"}
FLOORS = {  # networks without attention, which have no iterations
    "fcn": "a classifier on the backbone alone",
    "plain": "the same head without its unit",
}


def ablation_cells(
    base: TrainConfig,
    iterations: Sequence[int],
    step_sizes: Sequence[float],
    seeds: Sequence[int],
    baselines: Sequence[str] = (EMANET, "fcn"),
) -> list[Cell]:
    """All runs, seed by seed, so that a grid that is not complete has whole tables of some."""
    cells = []
    for seed in seeds:
        for t in iterations:
            for eta in step_sizes:
                options = {"iterations": t, "step_size": eta}
                cells.append(
                    _cell(base, "hemnet", f"T{t:02}_eta{eta:g}", t, f"{eta:g}", seed, options)
                )
            if EMANET in baselines:
                name = f"T{t:02}_emanet"
                cells.append(_cell(base, EMANET, name, t, EMANET, seed, {"iterations": t}))
        if "fcn" in baselines:
            cells.append(_cell(base, "fcn", "fcn", 0, "fcn", seed, {}))
        if "plain" in baselines:
            width = base.model.channels or head_options("hemnet")[1]
            cells.append(_cell(base, "fcn", "plain", 0, "plain", seed, {"hidden": width}))
    return cells


def _cell(
    base: TrainConfig,
    head: str,
    name: str,
    row: int,
    column: str,
    seed: int,
    options: dict[str, Any],
) -> Cell:
    config = copy.deepcopy(base)
    for_head(config, head)
    config.model.options |= options
    config.run.seed = seed
    place = {"iterations": row, "column": column, "seed": seed}
    return Cell(f"{name}_seed{seed}", config, place)


Runs = dict[str, dict[int, list[dict[str, Any]]]]  # column → iterations → results that are done


def arrange(results: Mapping[str, dict[str, Any]]) -> Runs:
    table: Runs = {}
    for result in sorted(results.values(), key=lambda r: (r["column"], r["iterations"], r["seed"])):
        if result["status"] == "done":
            table.setdefault(result["column"], {}).setdefault(result["iterations"], []).append(
                result
            )
    return table


def values(table: Runs, column: str, row: int, key: str = "miou") -> list[float]:
    runs = table.get(column, {}).get(row, [])
    return [run[key] for run in runs if run[key] is not None]


def noise_of(table: Runs, key: str = "miou") -> Noise | None:
    groups = [values(table, c, t, key) for c, rows in table.items() for t in rows]
    return pooled_within_seeds([group for group in groups if group])


def summarise_ablation(
    cells: Sequence[Cell], results: Mapping[str, dict[str, Any]], key: str = "miou"
) -> dict[str, Any]:
    """Everything the table, the picture and the text need, as JSON can hold it."""
    table = arrange(results)
    rows = sorted({c.place["iterations"] for c in cells if c.place["column"] not in FLOORS})
    present = {c.place["column"] for c in cells}
    numbers = sorted((c for c in present if c not in (EMANET, *FLOORS)), key=float)
    columns = numbers + [c for c in (EMANET,) if c in present]
    found: dict[str, dict[str, Any]] = {}
    for column in columns:
        found[column] = {}
        for t in rows:
            runs = values(table, column, t, key)
            mean, sd = mean_sd(runs) if runs else (None, None)
            found[column][str(t)] = {"mean": mean, "sd": sd, "runs": runs}
    best = {
        column: max((t for t in rows if values(table, column, t, key)), default=None,
                    key=lambda t: fmean(values(table, column, t, key)))
        for column in columns
    }  # fmt: skip
    floors = {name: values(table, name, 0, key) for name in FLOORS if name in table}
    noise = noise_of(table, key)
    seeds = sorted({c.place["seed"] for c in cells})
    return {
        "measure": key,
        "iterations": rows,
        "columns": columns,
        "seeds": seeds,
        "cells": found,
        "best_iterations": best,
        "floors": {
            name: dict(zip(("mean", "sd"), mean_sd(runs), strict=True)) | {"runs": runs}
            for name, runs in floors.items()
            if runs
        },
        "runs_wanted": len(cells),
        "runs_done": sum(r["status"] == "done" for r in results.values()),
        "failed": {n: r["error"] for n, r in results.items() if r["status"] == "failed"},
        "pooled_sd": noise and noise.sd,
        "freedom": noise and noise.freedom,
        "least_difference": noise and noise.least_difference(len(seeds)),
        "claims": claims(table, rows, columns, noise, key) if noise else {},
    }


def claims(
    table: Runs, rows: Sequence[int], columns: Sequence[str], noise: Noise, key: str
) -> dict[str, Any]:
    """The paper's three sentences as numbers with 95% intervals."""
    found: dict[str, Any] = {}
    steps = [column for column in columns if column != EMANET]

    def runs(column: str, wanted: Sequence[int] = rows) -> list[float]:
        return [value for t in wanted for value in values(table, column, t, key)]

    if EMANET in columns and runs(EMANET):
        everything = [value for column in steps for value in runs(column)]
        found["hemnet_minus_emanet"] = _plain(difference(everything, runs(EMANET), noise))
        by_row = {}
        for t in rows:
            mine = {c: runs(c, [t]) for c in steps if runs(c, [t])}
            if mine and runs(EMANET, [t]):
                top = max(mine, key=lambda c: fmean(mine[c]))
                gap = difference(mine[top], runs(EMANET, [t]), noise)
                by_row[str(t)] = {"best_step_size": top, **_plain(gap)}
        found["best_minus_emanet"] = by_row
    found["minus_floors"] = {
        floor: {
            column: _plain(difference(runs(column), values(table, floor, 0, key), noise))
            for column in columns
            if runs(column)
        }
        for floor in FLOORS
        if values(table, floor, 0, key)
    }
    # Slopes over log2 T: what one doubling of the iterations changes.
    found["per_doubling"] = {}
    for column in columns:
        pairs = [(math.log2(t), v) for t in rows for v in values(table, column, t, key)]
        if len({x for x, _ in pairs}) > 1:
            found["per_doubling"][column] = _plain(
                slope([x for x, _ in pairs], [y for _, y in pairs], noise)
            )
    complete = {
        (math.log2(t), math.log2(float(c))): runs(c, [t])
        for t in rows
        for c in steps
        if runs(c, [t])
    }
    crossing = interaction(complete, noise)
    found["step_size_by_iterations"] = None if crossing is None else _plain(crossing)
    return found


def _plain(estimate: Any) -> dict[str, Any]:
    return {"value": estimate.value, "margin": estimate.margin, "clear": bool(estimate.clear)}


def paper_ablation() -> dict[str, Any]:
    """The paper's table in the same form, one run each."""
    return {
        "iterations": list(paper.ITERATIONS),
        "columns": list(paper.TABLE_1),
        "cells": {
            column: {
                str(t): {"mean": value, "sd": None, "runs": [value]}
                for t, value in zip(paper.ITERATIONS, printed, strict=True)
            }
            for column, printed in paper.TABLE_1.items()
        },
        "best_iterations": {
            column: paper.ITERATIONS[printed.index(max(printed))]
            for column, printed in paper.TABLE_1.items()
        },
        "floors": {},
    }
