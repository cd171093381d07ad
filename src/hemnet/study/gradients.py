"""Figure 3 of the paper: the bound and the gradients to x, by iteration, for several step sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import islice
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
from hemnet.study.feature_cache import shared_cache
from hemnet.study.grid import Cell
from hemnet.study.recipe import for_head
from hemnet.training.accelerator import computing
from hemnet.training.config import TrainConfig
from hemnet.training.loss import SegmentationLoss
from hemnet.training.optim import make_optimizer
from hemnet.training.setup import (
    Datasets,
    augmentation_of,
    build_batches,
    build_model,
    settle,
)
from hemnet.training.step import TrainingStep
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
    """One training run for each step size and seed, measured every `every` steps."""
    cells = []
    for seed in seeds:
        for eta in step_sizes:
            config = for_head(base, "hemnet")
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
    """Train as `hemnet train` does, without a run folder, and measure from step 0 on."""
    config, (train_set, val_set) = settle(cell.config), data
    cache = shared_cache()
    cache.expect(config)
    with computing(config.run) as accelerator:
        model = build_model(config, train_set.info).to(accelerator.device)
        cache.attach(model)
        loss = loss_of(config, train_set, accelerator.device)
        fixed = fixed_samples(config, train_set, model, cell.place["samples"])
        optimizer = make_optimizer(model, config.optim)
        step = TrainingStep(model, loss, optimizer, config, accelerator)
        batches = iter(build_batches(config, train_set, model, 0, accelerator))
        measured: list[dict[str, Any]] = []
        for number in range(config.optim.steps + 1):
            if number % cell.place["every"] == 0 or number == config.optim.steps:
                measured.append({"step": number, **measure_flow(model, loss, fixed)})
            if number < config.optim.steps:
                step(number, batches)
        found: dict[str, Any] = {"measurements": measured}
        if val_set is not None:
            options, workers = config.validation, config.data.workers
            found["miou"] = evaluate(model, val_set, options, workers=workers, progress=None).miou
    return found


def loss_of(
    config: TrainConfig, dataset: SegmentationDataset, device: torch.device
) -> SegmentationLoss:
    return SegmentationLoss(resolved_loss(config.loss, dataset), dataset.num_classes).to(device)


def fixed_samples(
    config: TrainConfig, dataset: SegmentationDataset, model: Segmenter, samples: int
) -> list[Batch]:
    """The same randomly chosen training samples for every model, in batches nearly as in training.

    100 samples at a batch size of 16 are seven batches of 14 or 15.
    """
    size = min(config.optim.batch_size // config.optim.passes, samples)
    count = math.ceil(samples / size)
    batches = training_batches(
        dataset,
        augmentation_of(config, model),
        batch_size=size,
        seed=SAMPLE_SEED,
        device=next(model.parameters()).device,
    )
    drawn = list(islice(batches, count))
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


def measure_flow(
    model: Segmenter, loss: SegmentationLoss, fixed: Sequence[Batch]
) -> dict[str, Any]:
    """Mean absolute gradients and the bound by iteration, averaged over the fixed samples.

    In the mode the model is in: batch norms in training mode see the batch, as in training.
    """
    unit = find_unit(model)
    assert unit is not None
    if not unit.norm.weight.any():
        raise UserError(
            "no gradient reaches the unit's iterations: it adds nothing to its input yet. Measure "
            "a trained model, or one that starts otherwise, with model.options.gain 0.3"
        )
    samples = sum(len(batch.masks) for batch in fixed)
    sums: dict[str, torch.Tensor] = {}
    for batch in fixed:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SAMPLE_SEED)  # the same dropout every time
            flow = model_gradient_flow(model, partial(mean_loss, loss, batch))
        for key, value in flow.means().items():
            share = value * (len(batch.masks) / samples)
            sums[key] = sums[key] + share if key in sums else share
    return {
        **{key: value.tolist() for key, value in sums.items()},
        "weights": effective_weights(flow.step_sizes).tolist(),
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
    loss = loss_of(config, dataset, torch.device("cpu"))
    fixed = fixed_samples(config, dataset, model, samples)
    unit = find_unit(model)
    found = {}
    for eta in step_sizes:
        assert isinstance(unit, HighwayEMAttention)
        unit.iterations, unit.step_size = iterations, eta
        found[eta] = measure_flow(model, loss, fixed)
    return found
