"""All heads under one budget: what they reach and what they cost, beside the paper's Table 3."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hemnet.data.dataset import Info
from hemnet.models.costs import count, on_meta, peak_bytes
from hemnet.models.registry import list_models
from hemnet.study import paper_results as paper
from hemnet.study.grid import Cell
from hemnet.study.recipe import for_head
from hemnet.study.uncertainty import Noise, difference, mean_sd, pooled_within_seeds
from hemnet.training.config import TrainConfig
from hemnet.training.setup import build_model

ROUNDS = 7


def compare_cells(base: TrainConfig, heads: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """The same recipe for every head; EM's options go where they are known."""
    cells = []
    for seed in seeds:
        for head in heads:
            config = copy.deepcopy(base)
            for_head(config, head)
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
    config = copy.deepcopy(base)
    for_head(config, head)
    config.model.weights = config.model.init_from = None  # costs do not depend on them
    config.model.freeze_stages = 0
    return config


@torch.inference_mode()
def speeds_of(
    base: TrainConfig, heads: Sequence[str], info: Info, batch: int = 1
) -> dict[str, float]:
    """Images per second in inference at the crop's size, batch norms folded, by the median of
    interleaved rounds: what disturbs one head's round disturbs its neighbours' too."""
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
    repeats = 3
    start = time.perf_counter()
    for _ in range(repeats):
        model(images)
    if images.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def summarise_comparison(
    heads: Sequence[str],
    results: Mapping[str, dict[str, Any]],
    costs: Mapping[str, dict[str, Any]],
    speeds: Mapping[str, float],
) -> dict[str, Any]:
    rows = []
    groups: dict[str, dict[str, list[float]]] = {}
    for head in heads:
        done = [r for r in results.values() if r["head"] == head and r["status"] == "done"]
        groups[head] = {
            key: [r[key] for r in done if r.get(key) is not None]
            for key in ("miou", "context_miou")
        }
        row: dict[str, Any] = {"head": head, **costs[head], "images_per_second": speeds[head]}
        for key, values in groups[head].items():
            mean, sd = mean_sd(values) if values else (None, None)
            row[key] = {"mean": mean, "sd": sd, "runs": values}
        row["paper"] = paper.TABLE_3.get(head)
        rows.append(row)
    noise = pooled_within_seeds([group["miou"] for group in groups.values() if group["miou"]])
    return {
        "rows": rows,
        "pooled_sd": noise and noise.sd,
        "hemnet_minus": _gaps(groups, noise) if noise else {},
        "failed": {n: r["error"] for n, r in results.items() if r["status"] == "failed"},
    }


def _gaps(groups: Mapping[str, Mapping[str, list[float]]], noise: Noise) -> dict[str, Any]:
    ours = groups.get("hemnet", {}).get("miou", [])
    found = {}
    for head, group in groups.items():
        if head != "hemnet" and ours and group["miou"]:
            gap = difference(ours, group["miou"], noise)
            found[head] = {"value": gap.value, "margin": gap.margin, "clear": bool(gap.clear)}
    return found


def check_heads(heads: Sequence[str] | None) -> list[str]:
    from hemnet.errors import UserError

    known = list_models()
    for head in heads or ():
        if head not in known:
            raise UserError(f"--heads {head}: expected some of {', '.join(known)}")
    return list(dict.fromkeys(heads or known))
