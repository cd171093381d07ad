"""What MODEL means on the command line: a run folder, a saved model's folder or a hub id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hemnet.errors import UserError
from hemnet.hub import CONFIG, from_pretrained
from hemnet.nn.segmenter import Segmenter

RUN_CONFIG, RUN_MODEL = "config.yaml", "model"


def load_model(source: str | Path) -> Segmenter:
    """The model of a run folder, of a `save_pretrained` folder or of a hub id, ready to use."""
    path = Path(source)
    if path.is_file():
        raise UserError(
            f"{source} is a file: give a run folder, a folder that save_pretrained wrote, or a "
            "hub id such as user/model."
        )
    if not path.is_dir():
        return from_pretrained(str(source))
    if (path / RUN_MODEL / CONFIG).is_file():
        return from_pretrained(path / RUN_MODEL)
    if (path / CONFIG).is_file():
        return from_pretrained(path)
    if (path / RUN_CONFIG).is_file():
        raise UserError(
            f"the run {source} has saved no model yet: it does so at its first validation. "
            f"Continue it with `hemnet train --resume --out {source}`."
        )
    raise UserError(
        f"{source} is neither a run folder (with {RUN_MODEL}/{CONFIG}) nor a saved model "
        f"(with {CONFIG})."
    )


def run_settings(run: str | Path) -> dict[str, Any]:
    """The configuration a run was started with, section by section; empty if it is no run."""
    path = Path(run) / RUN_CONFIG
    if not path.is_file():
        return {}
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} cannot be read as YAML: {reason}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} is not the configuration of a run.")
    return settings
