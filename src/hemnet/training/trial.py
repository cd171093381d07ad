"""Answers before a long training: does it run, what does it cost, and which rate suits it."""

from __future__ import annotations

import copy
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import torch
from accelerate import Accelerator

from hemnet.data import SegmentationDataset, Subset
from hemnet.errors import UserError
from hemnet.models.costs import count, on_meta
from hemnet.models.segmenter import Segmenter
from hemnet.progress import track
from hemnet.run_folder import RunFolder
from hemnet.training import setup
from hemnet.training.accelerator import computing
from hemnet.training.config import TrainConfig, check_config
from hemnet.training.config_parser import read_config
from hemnet.training.display import at, duration
from hemnet.training.loop import train
from hemnet.training.loss import SegmentationLoss
from hemnet.training.memory import GIB, passes
from hemnet.training.optim import make_optimizer
from hemnet.training.step import TrainingStep
from hemnet.training.summary import look, opening, padding_note, resolved_loss

STEPS, VALIDATED = 4, 2  # of a dry run: steps, and images that are validated
LOWEST, HIGHEST, TRIED = 1e-6, 1.0, 100  # rates, and how many steps lead from one to the other


def dry_run(config: TrainConfig) -> list[str]:
    """Builds everything, trains some steps, validates some images, and says what all would take.

    Nothing is left behind.
    """
    check_config(config)
    sets = train_set, val_set = setup.open_datasets(config.data)
    part = None if val_set is None else Subset(val_set, range(min(VALIDATED, len(val_set))))
    short = copy.deepcopy(config)
    short.optim.steps, short.optim.warmup, short.optim.plateau_patience = STEPS, 0, None
    short.validation.every = STEPS
    short.run.log_every, short.run.tensorboard, short.run.wandb = 1, False, None
    built: list[Segmenter] = []
    with tempfile.TemporaryDirectory(prefix="hemnet-dry-run-") as place:
        folder, data = RunFolder(place), (train_set, part)
        result = train(short, place, data=data, quiet=True, prepare=built.append)
        speeds = [line["images_per_second"] for line in folder.read_metrics("train")]
        validations = folder.read_metrics("validation")
        settled = read_config(folder.config)
    model = built[0]
    if not result.finished:
        raise UserError("the dry run was stopped")
    step = config.optim.batch_size / median(speeds[1:])  # the first is slower than all others
    seconds = step * config.optim.steps
    validation = 0.0
    if validations and part is not None and sets[1] is not None:
        validation = validations[0]["seconds"] / len(part) * len(sets[1])
        seconds += validation * math.ceil(config.optim.steps / config.validation.every)
    config = replace(
        config,
        optim=replace(config.optim, accumulate=settled.optim.accumulate),
        loss=settled.loss,
    )
    device = next(model.parameters()).device
    settings, crop = model.config, config.data.crop
    found_classes = look(config, train_set)
    note = padding_note(config.data, found_classes)
    with torch.device("meta"):
        costs = count(on_meta(lambda: type(model)(settings)), crop)
    # Forward, and twice as much backward.
    effort = 3 * costs.flops * config.optim.batch_size
    text = [
        *opening(config, train_set, val_set, found_classes, model, device),
        *([f"note      {note}"] if note else []),
        f"cost      {costs.flops / 1e9:.1f} GFLOPs forward for a crop of {crop[0]}×{crop[1]}, "
        f"{effort / 1e12:.2f} TFLOPs a step",
        *([f"memory    at most {_peak() / GIB:.2f} GiB so far, {_where()}"] if _peak() else []),
        f"speed     {step:.2g} s a step of {config.optim.batch_size} crops"
        + (f", {validation:.2g} s a validation" if validation else ""),
        f"total     about {duration(seconds)} for {config.optim.steps:,} steps: begun now, it "
        f"ends at {at(seconds)}",
    ]
    return [*text, "dry run: everything was built and one batch went through; nothing was written"]


def _peak() -> int:
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    if sys.platform == "win32":  # which has no such count in the standard library
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _where() -> str:
    return "of the GPU" if torch.cuda.is_available() else "of this process"


@dataclass(frozen=True)
class RateTest:
    """Losses by rate, and the rate that is proposed."""

    rates: list[float]
    losses: list[float]  # smoothed
    best: float


def find_lr(config: TrainConfig, tell: Callable[[str], object] = print) -> RateTest:
    """The learning rate range test (Smith 2017): the rate rises with every step until the loss
    leaves; proposed is a third of the rate at which it was lowest, or the one at which it fell
    fastest, whichever is lower.
    """
    check_config(config)
    config = setup.settle(config)
    train_set, _ = setup.open_datasets(config.data)
    with computing(config.run) as accelerator:
        if config.optim.accumulate == "auto":
            number, _ = passes(config, train_set.num_classes, 1, accelerator.device)
            config = replace(config, optim=replace(config.optim, accumulate=number))
        losses, rates = _rising(config, train_set, accelerator)
    if len(losses) < 10:
        raise UserError(
            f"the loss left after {len(losses)} steps, at a rate of {rates[-1]:.1e}: look at the "
            "data and at model.weights"
        )
    best = propose(rates, losses)
    for rate, loss in list(zip(rates, losses, strict=True))[:: max(1, len(rates) // 12)]:
        tell(f"rate {rate:.1e}  loss {loss:.4f}")
    return RateTest(rates, losses, best)


def _rising(
    config: TrainConfig, dataset: SegmentationDataset, accelerator: Accelerator
) -> tuple[list[float], list[float]]:
    """Losses, smoothed, and the rates they belong to."""
    model = setup.build_model(config, dataset.info).to(accelerator.device)
    resolved = resolved_loss(config.loss, dataset, look(config, dataset))
    loss = SegmentationLoss(resolved, dataset.num_classes).to(accelerator.device)
    optimizer = make_optimizer(model, config.optim)
    step = TrainingStep(model, loss, optimizer, config, accelerator)
    batches = iter(setup.build_batches(config, dataset, model, 0, accelerator))
    losses: list[float] = []
    rates: list[float] = []
    mean, weight = 0.0, 0.0
    for number in track(range(TRIED), "learning rate test", TRIED):
        parts = step.draw(batches)
        value = float(step.backward(number, parts, step.total(parts)))
        if not math.isfinite(value):
            break
        rate = LOWEST * (HIGHEST / LOWEST) ** (number / (TRIED - 1))
        step.update(rate)
        mean, weight = 0.8 * mean + 0.2 * value, 0.8 * weight + 0.2
        losses.append(mean / weight)
        rates.append(rate)
        if losses[-1] > 3 * min(losses):
            break
    return losses, rates


def propose(rates: list[float], losses: list[float]) -> float:
    """Of a range test; see `find_lr`."""
    lowest = min(range(len(losses)), key=losses.__getitem__)
    falls = [(after - before) for before, after in pairwise(losses[: lowest + 1])]
    steepest = min(range(len(falls)), key=falls.__getitem__) if falls else lowest
    return float(f"{min(rates[lowest] / 3, rates[steepest + 1 if falls else lowest]):.1e}")
