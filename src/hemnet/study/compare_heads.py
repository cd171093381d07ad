"""All heads under one budget: accuracy and cost, beside the paper's Table 3."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hemnet.data.dataset import Info
from hemnet.errors import UserError
from hemnet.models.costs import count, on_meta, peak_bytes
from hemnet.models.registry import list_models
from hemnet.study import paper_results as paper
from hemnet.study.grid import Cell
from hemnet.study.recipe import for_head
from hemnet.study.uncertainty import difference, pooled_within_seeds, summary_of
from hemnet.training.config import TrainConfig
from hemnet.training.setup import build_model

ROUNDS, REPEATS = 7, 3  # of timing; passes in a round


def compare_cells(base: TrainConfig, heads: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """The same recipe for every head, with the options that it knows."""
    cells = []
    for seed in seeds:
        for head in heads:
            config = for_head(base, head)
            config.run.seed = seed
            cells.append(Cell(f"{head}_seed{seed}", config, {"head": head, "seed": seed}))
    return cells


def costs_of(base: TrainConfig, heads: Sequence[str], info: Info) -> dict[str, dict[str, Any]]:
    """Parameters, FLOPs and activation memory at the training crop; nothing is run."""
    found = {}
    for head in heads:
        config = _headed(base, head)
        model = on_meta(partial(build_model, config, info))
        costs = count(model, config.data.crop)
        found[head] = {
            "params": costs.params,
            "flops": costs.flops,
            "inference_bytes": peak_bytes(model, config.data.crop),
            "training_bytes": peak_bytes(model.train(), config.data.crop, 2, training=True) // 2,
        }
    return found


def _headed(base: TrainConfig, head: str) -> TrainConfig:
    config = for_head(base, head)
    config.model.weights = config.model.init_from = None  # costs do not depend on them
    config.model.freeze_stages = 0
    return config


@torch.inference_mode()
def speeds_of(
    base: TrainConfig, heads: Sequence[str], info: Info, batch: int = 1
) -> dict[str, float]:
    """Images per second in inference at the crop's size, batch norms folded, by the median of
    interleaved rounds, so that a busy machine slows all heads alike."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.randn(batch, 3, *base.data.crop, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    models = {
        head: build_model(_headed(base, head), info)
        .fuse()
        .to(device)
        .to(memory_format=torch.channels_last)
        for head in heads
    }
    seconds: dict[str, list[float]] = {head: [] for head in heads}
    for number in range(ROUNDS + 1):
        for head, model in models.items():
            taken = _timed(model, images)
            if number:  # the first round warms up
                seconds[head].append(taken)
    return {head: batch / median(values) for head, values in seconds.items()}


def _timed(model: torch.nn.Module, images: Tensor) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS):
        model(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / REPEATS


def summarise_comparison(
    heads: Sequence[str],
    results: Mapping[str, dict[str, Any]],
    costs: Mapping[str, dict[str, Any]],
    speeds: Mapping[str, float],
) -> dict[str, Any]:
    rows = []
    for head in heads:
        done = [r for r in results.values() if r["head"] == head and r["status"] == "done"]
        measures = {
            key: summary_of([r[key] for r in done if r.get(key) is not None])
            for key in ("miou", "context_miou")
        }
        row = {"head": head, **costs[head], "images_per_second": speeds[head], **measures}
        rows.append(row | {"paper": paper.TABLE_3.get(head)})
    runs = {row["head"]: row["miou"]["runs"] for row in rows if row["miou"]["runs"]}
    noise = pooled_within_seeds(list(runs.values()))
    ours = runs.pop("hemnet", None)
    gaps = {}
    if noise and ours:
        gaps = {h: difference(ours, theirs, noise).to_json() for h, theirs in runs.items()}
    return {
        "rows": rows,
        "pooled_sd": noise and noise.sd,
        "hemnet_minus": gaps,
        "failed": {n: r["error"] for n, r in results.items() if r["status"] == "failed"},
    }


def check_heads(heads: Sequence[str] | None) -> list[str]:
    known = list_models()
    for head in heads or ():
        if head not in known:
            raise UserError(f"`heads={head}`: expected some of {', '.join(known)}")
    return list(dict.fromkeys(heads or known))
