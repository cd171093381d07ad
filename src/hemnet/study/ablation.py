"""Table 1 of the paper: mIoU over the iterations T and the step size η of training, and EMANet."""

from __future__ import annotations

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
    pooled_within_seeds,
    slope,
    summary_of,
)
from hemnet.training.config import TrainConfig

EMANET = "emanet"
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
    """All runs, seed by seed, so that an unfinished grid has complete tables for some seeds."""
    cells = []

    def add(head: str, name: str, row: int, column: str, seed: int, **options: Any) -> None:
        config = for_head(base, head)
        config.model.options |= options
        config.run.seed = seed
        place = {"iterations": row, "column": column, "seed": seed}
        cells.append(Cell(f"{name}_seed{seed}", config, place))

    for seed in seeds:
        for t in iterations:
            for eta in step_sizes:
                name = f"T{t:02}_eta{eta:g}"
                add("hemnet", name, t, f"{eta:g}", seed, iterations=t, step_size=eta)
            if EMANET in baselines:
                add(EMANET, f"T{t:02}_emanet", t, EMANET, seed, iterations=t)
        if "fcn" in baselines:
            add("fcn", "fcn", 0, "fcn", seed)
        if "plain" in baselines:
            width = base.model.channels or head_options("hemnet")[1]
            add("fcn", "plain", 0, "plain", seed, hidden=width)
    return cells


Results = Mapping[str, dict[str, Any]]
Runs = dict[str, dict[int, list[float]]]  # column → iterations → a measure of the runs done


def arrange(results: Results, key: str = "miou") -> Runs:
    table: Runs = {}
    for result in sorted(results.values(), key=lambda r: (r["column"], r["iterations"], r["seed"])):
        if result["status"] == "done" and result[key] is not None:
            row = table.setdefault(result["column"], {})
            row.setdefault(result["iterations"], []).append(result[key])
    return table


def summarise_ablation(
    cells: Sequence[Cell], results: Results, key: str = "miou"
) -> dict[str, Any]:
    """Everything that the table, the figure and the text show, ready for JSON."""
    table = arrange(results, key)
    rows = sorted({c.place["iterations"] for c in cells if c.place["column"] not in FLOORS})
    present = {c.place["column"] for c in cells}
    numbers = sorted((c for c in present if c not in (EMANET, *FLOORS)), key=float)
    columns = numbers + [c for c in (EMANET,) if c in present]
    best: dict[str, int | None] = {}
    for column in columns:
        known = table.get(column, {})
        best[column] = max(known, default=None, key=lambda t: fmean(known[t]))
    noise = pooled_within_seeds([runs for row in table.values() for runs in row.values()])
    seeds = sorted({c.place["seed"] for c in cells})
    return {
        "measure": key,
        "iterations": rows,
        "columns": columns,
        "seeds": seeds,
        "cells": {
            column: {str(t): summary_of(table.get(column, {}).get(t, [])) for t in rows}
            for column in columns
        },
        "best_iterations": best,
        "floors": {name: summary_of(table[name][0]) for name in FLOORS if name in table},
        "runs_wanted": len(cells),
        "runs_done": sum(r["status"] == "done" for r in results.values()),
        "failed": {n: r["error"] for n, r in results.items() if r["status"] == "failed"},
        "pooled_sd": noise and noise.sd,
        "freedom": noise and noise.freedom,
        "least_difference": noise and noise.least_difference(len(seeds)),
        "claims": claims(table, rows, columns, noise) if noise else {},
    }


def claims(
    table: Runs, rows: Sequence[int], columns: Sequence[str], noise: Noise
) -> dict[str, Any]:
    """The paper's three claims as numbers with 95% intervals."""
    found: dict[str, Any] = {}
    steps = [column for column in columns if column != EMANET]

    def runs(column: str, wanted: Sequence[int] = rows) -> list[float]:
        return [value for t in wanted for value in table.get(column, {}).get(t, [])]

    def gap(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
        return difference(ours, theirs, noise).to_json()

    if EMANET in columns and runs(EMANET):
        found["hemnet_minus_emanet"] = gap([v for c in steps for v in runs(c)], runs(EMANET))
        found["best_minus_emanet"] = by_row = {}
        for t in rows:
            mine = {c: runs(c, [t]) for c in steps if runs(c, [t])}
            if mine and runs(EMANET, [t]):
                top = max(mine, key=lambda c: fmean(mine[c]))
                by_row[str(t)] = {"best_step_size": top, **gap(mine[top], runs(EMANET, [t]))}
    found["minus_floors"] = {
        floor: {c: gap(runs(c), table[floor][0]) for c in columns if runs(c)}
        for floor in FLOORS
        if floor in table
    }
    # Slopes over log2 T: what one doubling of the iterations changes.
    found["per_doubling"] = {}
    for column in columns:
        pairs = [(math.log2(t), v) for t in rows for v in runs(column, [t])]
        if len({x for x, _ in pairs}) > 1:
            estimate = slope([x for x, _ in pairs], [y for _, y in pairs], noise)
            found["per_doubling"][column] = estimate.to_json()
    complete = {
        (math.log2(t), math.log2(float(c))): runs(c, [t])
        for t in rows
        for c in steps
        if runs(c, [t])
    }
    crossing = interaction(complete, noise)
    found["step_size_by_iterations"] = None if crossing is None else crossing.to_json()
    return found


def paper_ablation() -> dict[str, Any]:
    """The paper's table in the same form."""
    return paper.as_summary(paper.TABLE_1) | {"floors": {}}
