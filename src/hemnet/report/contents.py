"""What a run has left behind, gathered for its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hemnet.data.dataset import SegmentationDataset, Subset
from hemnet.data.transforms import normalise
from hemnet.inference.evaluate import evaluate, guessed, normalisation
from hemnet.inference.metrics import Evaluation, ImageScore
from hemnet.inference.open_model import load_model
from hemnet.inference.options import EvaluationOptions
from hemnet.inspection.em_trace import UnitTrace, spread_out, trace_unit
from hemnet.inspection.examples import Example, examples
from hemnet.models.segmenter import Segmenter
from hemnet.run_folder import RunFolder

SHOWN, EVALUATED = 6, 24  # examples shown; images they are chosen from without an evaluation


@dataclass(frozen=True)
class RunContents:
    """All that the sections of the page draw from."""

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
    unit: UnitTrace | None  # None for a model without an EM unit


def gather(
    folder: RunFolder,
    dataset: SegmentationDataset,
    evaluation: Evaluation | None,
    options: EvaluationOptions,
    device: torch.device,
) -> RunContents:
    """`options` are those of the evaluation: its scores and the pictures are of one prediction."""
    model = load_model(folder.path).to(device)
    names = set(dataset.info.classes)
    validation = [line for line in folder.read_metrics("validation") if line["iou"].keys() == names]
    evaluated = evaluation or evaluate(
        model, Subset(dataset, spread_out(len(dataset), EVALUATED)), options, progress=None
    )
    scores = evaluated.to_json()
    if evaluation is None and validation:
        scores = folder.saved_validation() or scores
    ranked = evaluated.ranked()[::-1]
    chosen = [ranked[i] for i in spread_out(len(ranked), SHOWN)]
    found = examples(model, dataset, [image.id for image in chosen], options)
    watched = max(found, key=lambda example: len(example.mask.unique()))  # shows most classes
    others = [e.image for e in found if e is not watched and e.image.shape == watched.image.shape]
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
        unit=trace_unit(model, _normalised(model, [watched.image, *others])),
    )


def _normalised(model: Segmenter, images: list[Tensor]) -> Tensor:
    """Images 3,H,W uint8 of one size → B,3,H,W as the model takes them."""
    settings, device = normalisation(model), next(model.parameters()).device
    return normalise(torch.stack(images).to(device), settings.mean, settings.std)
