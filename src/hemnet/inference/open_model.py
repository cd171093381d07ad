"""Models by name: a run, a saved model, an exported file, one of ours, a hub id; and devices."""

from __future__ import annotations

from pathlib import Path

import torch

from hemnet.errors import UserError
from hemnet.inference.exported_model import ExportedModel
from hemnet.models.bundled import bundled_folder
from hemnet.models.pretrained import from_pretrained
from hemnet.models.saving import CONFIG
from hemnet.models.segmenter import Segmenter
from hemnet.run_folder import RunFolder


def open_model(source: str | Path, trust: bool = False) -> Segmenter | ExportedModel:
    """Like `load_model`, or a file that `hemnet export` wrote; `trust` is for a `.pt2` file."""
    if Path(source).is_file():
        return ExportedModel(source, trust)
    return load_model(source)


def load_model(source: str | Path) -> Segmenter:
    """The model of a run folder or a `save_pretrained` folder, one of ours, or of a hub id."""
    path = Path(source)
    if path.is_file():
        raise UserError(
            f"{source} is a file: what is asked for here needs a run folder, a folder that "
            "save_pretrained wrote, a model that comes with hemnet, or a hub id such as user/model."
        )
    if not path.is_dir():
        return from_pretrained(source)
    run = RunFolder(path)
    if (run.model / CONFIG).is_file():
        return from_pretrained(run.model)
    if (path / CONFIG).is_file():
        return from_pretrained(path)
    if run.holds_run:
        raise UserError(
            f"the run {source} has saved no model yet: it does so at its first validation. "
            "Continue its training with `resume=True`."
        )
    if bundled_folder(source) is not None:
        return from_pretrained(source)
    raise UserError(
        f"{source} is neither a run folder (with {run.model.name}/{CONFIG}) nor a saved model "
        f"(with {CONFIG})."
    )


def find_device(name: str = "auto") -> torch.device:
    """cpu, cuda or mps; auto is the fastest there is."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if name not in available:
        raise UserError(f"`device={name}`: expected auto, cpu, cuda or mps.")
    if not available[name]:
        raise UserError(f"`device={name}`: this machine has none. Use `device=auto`.")
    return torch.device(name)
