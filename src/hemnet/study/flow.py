"""Figure 3 of the paper: the bound and the gradients to x, by iteration, for several step sizes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hemnet.config import TrainConfig
from hemnet.data import Batch, SegmentationDataset
from hemnet.data.loading import training_batches
from hemnet.engine.build import augmentation_of, build_model
from hemnet.engine.loss import SegmentationLoss
from hemnet.engine.optim import make_optimizer, rate_at, set_rate
from hemnet.nn.segmenter import Segmenter
from hemnet.study.gradients import effective_weights, model_gradient_flow
from hemnet.study.grid import Cell, Datasets
from hemnet.study.recipe import for_head
from hemnet.study.unit import find_unit

SAMPLE_SEED = 20_210_202  # of the fixed samples: not one that training is likely to use


def gradient_cells(
    base: TrainConfig,
    iterations: int,
    step_sizes: Sequence[float],
    seeds: Sequence[int],
    *,
    every: int,
    samples: int,
) -> list[Cell]:
    """One training run for each step size and seed, measured every so many steps."""
    cells = []
    for seed in seeds:
        for eta in step_sizes:
            config = copy.deepcopy(base)
            for_head(config, "hemnet")
            config.model.options |= {"iterations": iterations, "step_size": eta}
            config.run.seed = seed
            place = {
                "step_size": eta, "iterations": iterations, "seed": seed, "every": every,
                "samples": samples,
            }  # fmt: skip
            name = f"T{iterations}_eta{eta:g}_every{every}_seed{seed}"
            cells.append(Cell(name, config, place, measured_training))
    return cells


def measured_training(cell: Cell, run: Path, data: Datasets) -> dict[str, Any]:
    """Train as `hemnet train` does, in memory, and measure before the first step and on."""
    config, (train_set, _) = cell.config, data
    model = build_model(config, train_set.info)
    layout = torch.channels_last if config.run.channels_last else torch.contiguous_format
    model.to(memory_format=layout)
    loss = SegmentationLoss(config.loss, train_set.num_classes)
    optimizer = make_optimizer(model, config.optim)
    fixed = fixed_samples(config, train_set, model, cell.place["samples"])
    augmentation, size = augmentation_of(config, model), config.optim.batch_size
    batches = iter(training_batches(train_set, augmentation, batch_size=size, seed=config.run.seed))
    measured = []
    steps, every = config.optim.steps, cell.place["every"]
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            measured.append({"step": step, **measure(model, loss, fixed)})
        if step == steps:
            break
        batch = next(batches)
        set_rate(optimizer, rate_at(step, config.optim))
        torch.manual_seed(config.run.seed * steps + step)  # dropout
        value = mean_loss(loss, batch, model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        measured[-1].setdefault("loss", value.item())
    return {"measurements": measured}


def fixed_samples(
    config: TrainConfig, dataset: SegmentationDataset, model: Segmenter, samples: int
) -> list[Batch]:
    """The same randomly chosen training samples for every model, in batches as in training."""
    size = min(config.optim.batch_size, samples)
    augmentation = augmentation_of(config, model)
    batches = iter(training_batches(dataset, augmentation, batch_size=size, seed=SAMPLE_SEED))
    return [next(batches) for _ in range(max(1, samples // size))]


def mean_loss(loss: SegmentationLoss, batch: Batch, model: nn.Module) -> torch.Tensor:
    total = loss.of(model, batch.images, batch.masks)
    return total / max(float(loss.total(batch.masks)), 1.0)


def measure(model: Segmenter, loss: SegmentationLoss, fixed: Sequence[Batch]) -> dict[str, Any]:
    """Mean absolute gradients and the bound by iteration, averaged over the fixed samples.

    In the mode the model is in: batch norms in training mode see the batch, as in training.
    """
    sums: dict[str, torch.Tensor] = {}
    unit = find_unit(model)
    assert unit is not None
    for batch in fixed:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SAMPLE_SEED)  # the same dropout every time
            flow = model_gradient_flow(model, partial(mean_loss, loss, batch))
        positions = flow.n_step.shape[2]
        found = {
            "elbo": flow.elbo.mean(1) / positions,
            "n_step": flow.n_step.abs().mean((1, 2, 3)),
            "e_step": flow.e_step.abs().mean((1, 2, 3)),
            "bases": flow.bases.abs().mean((1, 2, 3)),
            "total": flow.total.abs().mean(),
            "n_step_total": flow.n_step.sum(0).abs().mean(),
            "e_step_total": flow.e_step.sum(0).abs().mean(),
        }
        for key, value in found.items():
            sums[key] = sums.get(key, torch.zeros_like(value)) + value / len(fixed)
        weights = effective_weights(flow.step_sizes)
    with torch.no_grad():
        health = unit.health() if unit._kept is not None else None
    return {
        **{key: value.tolist() for key, value in sums.items()},
        "weights": weights.tolist(),
        "ratio": None if health is None else health.ratio,
    }


def measure_model(
    model: Segmenter,
    config: TrainConfig,
    dataset: SegmentationDataset,
    iterations: int,
    step_sizes: Sequence[float],
    samples: int,
) -> dict[float, dict[str, Any]]:
    """A trained model as it is, its step size replaced by each of these."""
    model.train()
    loss = SegmentationLoss(config.loss, dataset.num_classes)
    fixed = fixed_samples(config, dataset, model, samples)
    unit = find_unit(model)
    found = {}
    for eta in step_sizes:
        assert unit is not None
        unit.iterations, unit.step_size = iterations, eta
        found[eta] = measure(model, loss, fixed)
    return found
