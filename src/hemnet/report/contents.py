"""Gather everything that the report of a run shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hemnet.data.dataset import SegmentationDataset, Subset
from hemnet.inference.evaluate import evaluate, guessed
from hemnet.inference.metrics import Evaluation, ImageScore
from hemnet.inference.open_model import load_model
from hemnet.inspection.em_trace import EMTrace, analyse, find_unit, spread_out, trace_unit
from hemnet.inspection.examples import Example, examples
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import EMUnit
from hemnet.nn.geometry import Placement
from hemnet.nn.health import Health
from hemnet.run_folder import RunFolder
from hemnet.training.config_parser import run_config

SHOWN, EVALUATED = 6, 24  # examples shown; images they are chosen from without an evaluation
FURTHER = 8  # iterations that the bound is followed for, at least


@dataclass(frozen=True)
class UnitContents:
    """What the EM unit does with the examples of one size."""

    unit: EMUnit
    iterations: int  # T of the predictions in the report
    trace: EMTrace  # of more iterations, where there is a bound to follow; the watched one first
    health: Health
    placement: Placement


@dataclass(frozen=True)
class RunContents:
    """Everything the page shows."""

    folder: RunFolder
    model: Segmenter
    dataset: SegmentationDataset
    training: list[dict[str, Any]]  # lines of metrics.jsonl, by kind
    validation: list[dict[str, Any]]
    scores: dict[str, Any]  # miou, iou, pixel_accuracy of the saved model
    baseline: Evaluation | None  # what the data set's own guess reaches
    confusion: Tensor | None  # where the whole data set was evaluated
    examples: list[tuple[Example, ImageScore]]
    watched: Example  # the one whose way through the EM unit is drawn
    unit: UnitContents | None  # None for a model without an EM unit


def gather(
    folder: RunFolder,
    dataset: SegmentationDataset,
    evaluation: Evaluation | None,
    device: torch.device,
) -> RunContents:
    """Scores and pictures come from the same options: the evaluation's, or else the run's."""
    model = load_model(folder.path).to(device).eval()
    names = set(dataset.info.classes)
    validation = [line for line in folder.read_metrics("validation") if line["iou"].keys() == names]
    config = run_config(folder.path)
    own = None if config is None else config.validation
    evaluated = evaluation or evaluate(
        model, Subset(dataset, spread_out(len(dataset), EVALUATED)), own, progress=None
    )
    scores = evaluated.to_json()
    if evaluation is None and validation:
        scores = folder.saved_validation() or scores
    ranked = evaluated.ranked()[::-1]
    chosen = [ranked[i] for i in spread_out(len(ranked), SHOWN)]
    found = examples(model, dataset, [image.id for image in chosen], evaluated.options)
    watched = max(found, key=lambda example: len(example.mask.unique()))  # shows most classes
    others = [e.image for e in found if e is not watched and e.image.shape == watched.image.shape]
    images = torch.stack([watched.image, *others])
    return RunContents(
        folder=folder,
        model=model,
        dataset=dataset,
        training=folder.read_metrics("train"),
        validation=validation,
        scores=scores,
        baseline=guessed(dataset),
        confusion=None if evaluation is None else evaluation.confusion,
        examples=list(zip(found, chosen, strict=True)),
        watched=watched,
        unit=_watch_unit(model, images, evaluated.options.iterations),
    )


def _watch_unit(model: Segmenter, images: Tensor, iterations: int | None) -> UnitContents | None:
    unit = find_unit(model)
    if unit is None:
        return None
    analysis = analyse(model, images, iterations)
    assert analysis.features is not None
    trace = trace_unit(unit, analysis.features, iterations)
    own = trace.iterations
    if trace.bound:
        trace = trace_unit(unit, analysis.features, max(own, FURTHER))
    return UnitContents(unit, own, trace, unit.health(), analysis.placement)
