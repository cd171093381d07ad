"""Gathers what a run has left behind and puts the page together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hemnet.data.dataset import Part, SegmentationDataset
from hemnet.data.transforms import normalise
from hemnet.errors import UserError
from hemnet.files import read_object, replacing
from hemnet.inference.evaluate import evaluate, guessed, normalisation
from hemnet.inference.metrics import Evaluation, ImageScore
from hemnet.inspection.em_trace import UnitTrace, spread_out, trace_unit
from hemnet.inspection.examples import Example, examples
from hemnet.models.segmenter import Segmenter
from hemnet.training.load import load_model, run_dataset
from hemnet.training.run_log import is_metrics

REPORT, METRICS = "report.html", "metrics.jsonl"
SHOWN, LOOKED_AT = 6, 24  # examples shown; images they are chosen from without an evaluation


@dataclass(frozen=True)
class Run:
    """All that the sections of the page draw from."""

    folder: Path
    model: Segmenter
    dataset: SegmentationDataset
    environment: dict[str, Any]
    training: list[dict[str, Any]]  # lines of metrics.jsonl, by kind
    validation: list[dict[str, Any]]
    scores: dict[str, Any]  # miou, iou, pixel_accuracy of the saved model
    baseline: Evaluation | None  # what the data set's own guess reaches
    confusion: Tensor | None  # where the whole data set was evaluated
    examples: list[tuple[Example, ImageScore]]
    watched: Example  # the one whose way through the EM unit is drawn
    unit: UnitTrace | None  # None for a model without an EM unit


def write_report(
    run: str | Path,
    dataset: SegmentationDataset | None = None,
    evaluation: Evaluation | None = None,
    *,
    device: torch.device | str = "cpu",
    refresh: int | None = None,
) -> Path:
    """Write `report.html` into a run folder and return its path.

    `dataset` is what the run was validated on (None: opened as the run did), `evaluation` of the
    run's model on all of it. Without one the run's own validation gives the figures, and only a
    few images are looked at. `refresh`: the run goes on, and a browser reads the page again after
    so many seconds.
    """
    from hemnet.report.sections import SECTIONS

    if dataset is None:
        dataset = run_dataset(run)
    gathered = gather(Path(run), dataset, evaluation, torch.device(device))
    body = "\n".join(section(gathered) for section in SECTIONS)
    path = gathered.folder / REPORT
    with replacing(path) as file:
        file.write(_page(f"{gathered.folder.name} · hemnet", body, refresh).encode())
    return path


def gather(
    folder: Path,
    dataset: SegmentationDataset,
    evaluation: Evaluation | None,
    device: torch.device,
) -> Run:
    model = load_model(folder).to(device)
    lines = _read_metrics(folder / METRICS)
    names = set(dataset.info.classes)
    validation = [
        line for line in lines if line["kind"] == "validation" and line["iou"].keys() == names
    ]
    looked_at = evaluation or evaluate(
        model, Part(dataset, spread_out(len(dataset), LOOKED_AT)), progress=None
    )
    scores = looked_at.to_json()
    if evaluation is None and validation:
        scores = max(validation, key=lambda line: line["miou"])  # of which the model was saved
    ranked = looked_at.ranked()[::-1]
    chosen = [ranked[i] for i in spread_out(len(ranked), SHOWN)]
    found = examples(model, dataset, [image.id for image in chosen])
    watched = max(found, key=lambda example: len(example.mask.unique()))  # shows most classes
    others = [e.image for e in found if e is not watched and e.image.shape == watched.image.shape]
    return Run(
        folder=folder,
        model=model,
        dataset=dataset,
        environment=read_object(folder / "environment.json"),
        training=[line for line in lines if line["kind"] == "train"],
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


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """Complete lines only: a run may be writing the last one."""
    if not path.is_file():
        return []
    lines = []
    for number, text in enumerate(
        path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    ):
        if not text.endswith("\n"):
            break
        try:
            lines.append(json.loads(text))
        except ValueError:
            raise UserError(f"{path} is damaged in line {number + 1}: it is not JSON.") from None
    return [line for line in lines if is_metrics(line)]


def _page(title: str, body: str, refresh: int | None = None) -> str:
    style = files("hemnet.report").joinpath("style.css").read_text(encoding="utf-8")
    again = f'<meta http-equiv="refresh" content="{refresh}">\n' if refresh else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'{again}<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
