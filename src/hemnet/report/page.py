"""Puts the page of a run together."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

import torch

from hemnet.data.dataset import SegmentationDataset
from hemnet.files import write_text
from hemnet.inference.metrics import Evaluation
from hemnet.inference.options import EvaluationOptions
from hemnet.report.contents import gather
from hemnet.report.sections import SECTIONS
from hemnet.run_folder import RunFolder
from hemnet.training.setup import run_dataset


def write_report(
    run: str | Path,
    dataset: SegmentationDataset | None = None,
    evaluation: Evaluation | None = None,
    *,
    options: EvaluationOptions | None = None,
    device: torch.device | str = "cpu",
    refresh: int | None = None,
) -> Path:
    """Write `report.html` into a run folder and return its path.

    `dataset` is what the run was validated on (None: opened as the run did), `evaluation` of the
    run's model on all of it with `options`. Without one the run's own validation gives the figures,
    and only a few images are looked at. `refresh`: the run goes on, and a browser reads the page
    again after so many seconds.
    """
    folder = RunFolder(run)
    contents = gather(
        folder,
        run_dataset(run) if dataset is None else dataset,
        evaluation,
        options or EvaluationOptions(),
        torch.device(device),
    )
    body = "\n".join(section(contents) for section in SECTIONS)
    write_text(folder.report, _page(f"{folder.path.name} · hemnet", body, refresh))
    return folder.report


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
