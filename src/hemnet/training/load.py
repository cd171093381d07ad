"""What MODEL means on the command line: a run, a saved model, an exported file, ours, a hub id."""

from __future__ import annotations

from pathlib import Path

from hemnet.data.dataset import SegmentationDataset
from hemnet.errors import UserError
from hemnet.inference.exported_model import ExportedModel
from hemnet.models.bundled import boxed
from hemnet.models.pretrained import CONFIG, from_pretrained
from hemnet.models.segmenter import Segmenter
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import read_config
from hemnet.training.setup import open_datasets

RUN_CONFIG, RUN_MODEL = "config.yaml", "model"


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
    if (path / RUN_MODEL / CONFIG).is_file():
        return from_pretrained(path / RUN_MODEL)
    if (path / CONFIG).is_file():
        return from_pretrained(path)
    if (path / RUN_CONFIG).is_file():
        raise UserError(
            f"the run {source} has saved no model yet: it does so at its first validation. "
            f"Continue it with `hemnet train --resume --out {source}`."
        )
    if boxed(source) is not None:
        return from_pretrained(source)
    raise UserError(
        f"{source} is neither a run folder (with {RUN_MODEL}/{CONFIG}) nor a saved model "
        f"(with {CONFIG})."
    )


def run_config(run: str | Path) -> TrainConfig | None:
    """The configuration a run was started with; None where the folder holds no run."""
    path = Path(run) / RUN_CONFIG
    return read_config(path) if path.is_file() else None


def run_dataset(run: str | Path) -> SegmentationDataset:
    """What a run validates on; what it trains on, if it has no validation."""
    config = run_config(run)
    if config is None:
        raise UserError(f"{run} is not a run folder: it has no {RUN_CONFIG}.")
    train, validation = open_datasets(config.data)
    return validation or train
