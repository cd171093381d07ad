"""Table 2 of the paper: how many iterations to run in evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hemnet.data.dataset import SegmentationDataset
from hemnet.errors import UserError
from hemnet.files import read_object, write_json
from hemnet.inference.evaluate import evaluate
from hemnet.inference.metrics import subset_miou
from hemnet.inference.open_model import load_model
from hemnet.inference.options import InferenceOptions
from hemnet.inspection.em_trace import find_unit
from hemnet.nn.attention import EMAttention
from hemnet.study import paper_results as paper
from hemnet.study.grid import read_result
from hemnet.study.uncertainty import summary_of

EVALUATIONS = "evaluations.json"


@dataclass(frozen=True)
class Trained:
    """A trained model and where it belongs in the table."""

    path: Path
    column: str
    iterations: int  # in training


def models_of(sources: Sequence[Path]) -> list[Trained]:
    """Every column's models with its best iterations, for grids; other models as they are."""
    found: list[Trained] = []
    for source in sources:
        if (source / "runs").is_dir():
            found += _best_of_grid(source)
        else:
            model = load_model(source)
            unit = find_unit(model)
            if unit is None:
                raise UserError(f"{source} is a model without EM iterations")
            plain = isinstance(unit, EMAttention)
            column = "emanet" if plain else _number(unit.step_size)
            found.append(Trained(source, column, unit.iterations))
    if not found:
        raise UserError(f"no trained models with EM iterations in {', '.join(map(str, sources))}")
    return found


def _number(step_size: Any) -> str:
    return f"{step_size:g}" if isinstance(step_size, int | float) else str(step_size)


def _best_of_grid(grid: Path) -> list[Trained]:
    """Chosen by the mean over the seeds that all rows of a column have in common."""
    columns: dict[str, dict[int, dict[int, tuple[Path, float]]]] = {}  # column → T → seed → run
    for folder in sorted((grid / "runs").iterdir()):
        result = read_result(folder)
        if result and result["status"] == "done" and result["iterations"] > 0:
            rows = columns.setdefault(result["column"], {})
            rows.setdefault(result["iterations"], {})[result["seed"]] = folder, result["miou"]
    found = []
    for column, rows in columns.items():
        common = set.intersection(*(set(row) for row in rows.values()))
        if not common:
            raise UserError(
                f"the runs of column {column} in {grid} have no seed in common: go on with the "
                "ablation first"
            )
        best = max(rows, key=lambda t: fmean(rows[t][seed][1] for seed in common))
        found += [Trained(rows[best][seed][0], column, best) for seed in sorted(common)]
    return found


def evaluate_all(
    models: Sequence[Trained],
    dataset: SegmentationDataset,
    iterations: Sequence[int],
    out: Path,
    batch: int,
) -> list[dict[str, Any]]:
    """mIoU of every model at every number of iterations; results in `out` are reused."""
    kept = out / EVALUATIONS
    done = read_object(kept)
    rows = []
    for model in models:
        missing = [t for t in iterations if _key(model, dataset, t) not in done]
        network = load_model(model.path) if missing else None
        for t in missing:
            assert network is not None
            options = InferenceOptions(iterations=t, batch_size=batch)
            text = f"{model.path.name}, {t} iterations"
            found = evaluate(network, dataset, options, progress=text)
            context = dataset.info.context_classes
            done[_key(model, dataset, t)] = {
                "miou": found.miou,
                "context_miou": subset_miou(found, context) if context else None,
            }
            write_json(kept, done)
        rows += [
            {
                "model": str(model.path),
                "column": model.column,
                "trained": model.iterations,
                "iterations": t,
                **done[_key(model, dataset, t)],
            }
            for t in iterations
        ]
    return rows


def _key(model: Trained, dataset: SegmentationDataset, iterations: int) -> str:
    return f"{model.path} | {dataset.info.name} {dataset.split} {len(dataset)} | {iterations}"


def summarise_iterations(rows: Sequence[dict[str, Any]], key: str = "miou") -> dict[str, Any]:
    columns = sorted({r["column"] for r in rows}, key=lambda c: (c == "emanet", c))
    iterations = sorted({r["iterations"] for r in rows})
    cells = {
        column: {
            t: summary_of([r[key] for r in rows if (r["column"], r["iterations"]) == (column, t)])
            for t in iterations
        }
        for column in columns
    }
    best = {c: max(row, key=lambda t: float(row[t]["mean"])) for c, row in cells.items()}
    return {
        "measure": key,
        "iterations": iterations,
        "columns": columns,
        "cells": {c: {str(t): cell for t, cell in row.items()} for c, row in cells.items()},
        "best_iterations": best,
        "trained": {r["column"]: r["trained"] for r in rows},
        "gain": {c: _gain(rows, c, best[c], key) for c in columns},
    }


def _gain(rows: Sequence[dict[str, Any]], column: str, best: int, key: str) -> dict[str, Any]:
    """Best iterations minus those of training, model by model: seeds differ in level alone."""
    mine = [r for r in rows if r["column"] == column]
    trained = {r["model"]: r[key] for r in mine if r["iterations"] == r["trained"]}
    pairs = [r[key] - trained[r["model"]] for r in mine
             if r["iterations"] == best and r["model"] in trained]  # fmt: skip
    found = summary_of(pairs)
    return {"mean": found["mean"], "sd": found["sd"], "models": len(pairs)}


def paper_iterations() -> dict[str, Any]:
    """The paper's table in the same form."""
    return paper.as_summary(paper.TABLE_2) | {"trained": dict(paper.TABLE_2_TRAINED)}
