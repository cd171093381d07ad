"""Figure 3 of the paper: the bound and the gradients to x, by iteration, for several step sizes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hemnet.data import Batch, SegmentationDataset
from hemnet.data.loading import training_batches
from hemnet.errors import UserError
from hemnet.inference.evaluate import evaluate
from hemnet.inspection.em_trace import find_unit
from hemnet.inspection.gradient_flow import effective_weights, model_gradient_flow
from hemnet.models.segmenter import Segmenter
from hemnet.nn.attention import HighwayEMAttention
from hemnet.study.feature_cache import shared_store
from hemnet.study.grid import Cell, Datasets
from hemnet.study.recipe import for_head
from hemnet.training.config import TrainConfig
from hemnet.training.loss import SegmentationLoss
from hemnet.training.memory import passes_of
from hemnet.training.optim import make_optimizer, rate_at, set_rate, trained
from hemnet.training.setup import augmentation_of, build_model, evaluation_options
from hemnet.training.summary import resolved_loss

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
    config, (train_set, val_set) = cell.config, data
    optim, device = config.optim, device_of(config)
    model = build_model(config, train_set.info).to(device)
    model.to(memory_format=layout_of(config))
    store = shared_store()
    store.expect(config)
    store.attach(model)
    loss = SegmentationLoss(resolved_loss(config.loss, train_set), train_set.num_classes).to(device)
    optimizer = make_optimizer(model, optim)
    fixed = fixed_samples(config, train_set, model, cell.place["samples"])
    batches = iter(
        training_batches(
            train_set,
            augmentation_of(config, model),
            batch_size=optim.batch_size // passes_of(optim),
            seed=config.run.seed,
            device=device,
        )
    )
    measured: list[dict[str, Any]] = []
    for step in range(optim.steps + 1):
        if step % cell.place["every"] == 0 or step == optim.steps:
            measured.append({"step": step, **measure(model, loss, fixed)})
        if step == optim.steps:
            break
        set_rate(optimizer, rate_at(step, optim))
        torch.manual_seed(config.run.seed * optim.steps + step)  # dropout
        parts = [next(batches) for _ in range(passes_of(optim))]
        total = max(sum(float(loss.total(part.masks)) for part in parts), 1.0)
        for part in parts:
            images = part.images.contiguous(memory_format=layout_of(config))
            (loss.of(model, images, part.masks, part.valid) / total).backward()
        if optim.clip is not None:
            torch.nn.utils.clip_grad_norm_(trained(model), optim.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {"measurements": measured, **_validation(model, config, val_set)}


def device_of(config: TrainConfig) -> torch.device:
    wanted = config.run.device in ("auto", "cuda") and torch.cuda.is_available()
    return torch.device("cuda" if wanted else "cpu")


def layout_of(config: TrainConfig) -> torch.memory_format:
    return torch.channels_last if config.run.channels_last else torch.contiguous_format


def _validation(
    model: Segmenter, config: TrainConfig, dataset: SegmentationDataset | None
) -> dict[str, float]:
    if dataset is None:
        return {}
    found = evaluate(model, dataset, evaluation_options(config), progress=None)
    return {"miou": found.miou}


def fixed_samples(
    config: TrainConfig, dataset: SegmentationDataset, model: Segmenter, samples: int
) -> list[Batch]:
    """The same randomly chosen training samples for every model, in batches nearly as in training.

    100 samples at a batch size of 16 are seven batches of 14 or 15.
    """
    size = min(config.optim.batch_size // passes_of(config.optim), samples)
    device = next(model.parameters()).device
    batches = iter(
        training_batches(
            dataset,
            augmentation_of(config, model),
            batch_size=size,
            seed=SAMPLE_SEED,
            device=device,
        )
    )
    count = math.ceil(samples / size)
    drawn = [next(batches) for _ in range(count)]
    images = torch.cat([batch.images for batch in drawn])[:samples]
    masks = torch.cat([batch.masks for batch in drawn])[:samples]
    ids = iter([name for batch in drawn for name in batch.ids])
    return [
        Batch(some, labels, [next(ids) for _ in labels])
        for some, labels in zip(images.tensor_split(count), masks.tensor_split(count), strict=True)
    ]


def mean_loss(loss: SegmentationLoss, batch: Batch, model: nn.Module) -> torch.Tensor:
    total = loss.of(model, batch.images, batch.masks, batch.valid)
    return total / max(float(loss.total(batch.masks)), 1.0)


def measure(model: Segmenter, loss: SegmentationLoss, fixed: Sequence[Batch]) -> dict[str, Any]:
    """Mean absolute gradients and the bound by iteration, averaged over the fixed samples.

    In the mode the model is in: batch norms in training mode see the batch, as in training.
    """
    sums: dict[str, torch.Tensor] = {}
    unit = find_unit(model)
    assert unit is not None
    if not unit.norm.weight.any():
        raise UserError(
            "no gradient reaches the unit's iterations: it adds nothing to its input yet. Measure "
            "a trained model, or one that starts otherwise, with --model.options.gain 0.3"
        )
    samples = sum(len(batch.masks) for batch in fixed)
    for batch in fixed:
        share = len(batch.masks) / samples
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
            sums[key] = sums.get(key, torch.zeros_like(value)) + value * share
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
    loss = SegmentationLoss(resolved_loss(config.loss, dataset), dataset.num_classes)
    fixed = fixed_samples(config, dataset, model, samples)
    unit = find_unit(model)
    found = {}
    for eta in step_sizes:
        assert isinstance(unit, HighwayEMAttention)
        unit.iterations, unit.step_size = iterations, eta
        found[eta] = measure(model, loss, fixed)
    return found
