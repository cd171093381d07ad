"""Load saved models: from a folder, from the package, or from the hub.

Nothing in such a folder is executed, and a model is built only after the names and shapes of its
tensors were checked against the configuration.
"""

from __future__ import annotations

import json
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from hemnet.errors import UserError
from hemnet.models.bundled import bundled_folder, is_hub_id, not_found
from hemnet.models.registry import make_config
from hemnet.models.saving import CONFIG, FORMAT, WEIGHTS
from hemnet.models.segmenter import ModelConfig, Segmenter
from hemnet.renamed_options import current_options
from hemnet.version import __version__

log = logging.getLogger("hemnet")


def from_pretrained(source: str | Path, revision: str | None = None) -> Segmenter:
    """A saved model, in evaluation mode. Nothing in its files is executed.

    Args:
        source: a folder that `save_pretrained` wrote, the name of a model that comes with the
            package (`list_pretrained`), or a hub id such as "user/model". In this order.
        revision: of the hub: a branch, tag or commit.
    """
    folder = _folder(source, revision)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{source} is not a saved model: it has no {name}")
    config = read_config(folder / CONFIG)
    _check_tensors(config, folder / WEIGHTS)
    try:
        state = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{folder / WEIGHTS} cannot be read: {error}") from None
    try:
        model = Segmenter(config)
    except (RuntimeError, ValueError, OverflowError) as error:  # such as a gain beyond float32
        raise UserError(f"{folder / CONFIG} cannot be used: {error}") from None
    model.load_state_dict(state)
    return model.eval()


def _folder(source: str | Path, revision: str | None) -> Path:
    folder, ours = Path(source), bundled_folder(source)
    holds = any((folder / name).is_file() for name in (CONFIG, WEIGHTS))
    if holds or (folder.is_dir() and ours is None):
        found = folder
    elif ours is not None:
        found = ours
        if folder.exists():  # a data set is often called so, too
            log.warning("%s holds no model: taking the one that comes with hemnet", folder)
    elif is_hub_id(str(source)):
        return _download(str(source), revision)
    else:
        raise UserError(not_found(str(source)))
    if revision is not None:
        raise UserError(f"revision {revision!r} is for models of the hub, and {found} is local")
    return found


def read_config(path: Path) -> ModelConfig:
    """A `config.json`, checked field by field like the arguments of `create_model`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged, it cannot be read: {error}") from None
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> ModelConfig:
    """Parse the content of a `config.json`; `path` is for messages."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged, it is not JSON: {error}") from None
    if not isinstance(content, dict) or "format" not in content:
        raise UserError(f"{path} does not describe a hemnet model")
    if content.pop("format") != FORMAT:
        raise UserError(f"{path} was written by a newer hemnet than {__version__}: update hemnet")
    content.pop("hemnet_version", None)
    content.setdefault("align_corners", True)  # as before there was a choice
    known = {field.name for field in fields(ModelConfig)}
    if content.keys() != known:
        wrong = sorted(content.keys() ^ known)
        raise UserError(f"{path} is damaged: missing or unknown {', '.join(wrong)}")
    if content["model"] == "hemnet" and isinstance(content["options"], dict):
        # As before there was a choice.
        before = {"gain_lr_mult": 1.0, "initial_bases": "running_average"}
        content["options"] = before | current_options(content["options"])
    try:
        return make_config(content.pop("model"), **content)
    except (UserError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be used: {error}") from None


def _check_tensors(config: ModelConfig, path: Path) -> None:
    """Compare names and shapes of the file's tensors with the model's, without loading either."""
    try:
        with torch.device("meta"):
            expected: dict[str, Tensor] = Segmenter(config).state_dict()
    except (UserError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path.with_name(CONFIG)} cannot be used: {error}") from None
    try:
        with safe_open(path, "pt") as file:
            found: dict[str, Any] = {
                key: file.get_slice(key).get_shape()
                for key in file.keys()  # noqa: SIM118
            }
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read, it is damaged or not a safetensors file: {error}"
        ) from None
    # Files from before a unit kept how fast its gain is learned, which their configuration says.
    wrong = sorted(key for key in found.keys() ^ expected.keys() if not key.endswith(".gain.rate"))
    if wrong:
        raise UserError(
            f"{path} does not belong to its {CONFIG}: {len(wrong)} tensors are missing or too "
            f"many, the first is {wrong[0]}"
        )
    for key, tensor in expected.items():
        if key in found and tuple(found[key]) != tuple(tensor.shape):
            raise UserError(
                f"{path} does not belong to its {CONFIG}: {key} has shape {tuple(found[key])}, "
                f"{tuple(tensor.shape)} is needed"
            )


def _download(repo_id: str, revision: str | None) -> Path:
    wanted = f"{repo_id!r} is neither a folder nor a model on the hub"
    try:
        folder = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=[CONFIG, WEIGHTS]
        )
    except HFValidationError:
        raise UserError(f"{wanted} (a hub id looks like user/model)") from None
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "no answer"
        raise UserError(f"{wanted}: {reason}") from None
    return Path(folder)
