"""Checkpoints: one file with everything a run needs to go on as if it had never stopped.

A safetensors file: tensors under `model.` and `optimizer.`, and the numbers as JSON in its
metadata. Nothing in it is executed on loading. It is written beside its final name, flushed to
the disk and renamed, so that under the final name there is always a complete checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from hemnet.errors import UserError
from hemnet.nn.segmenter import Segmenter

FORMAT = 1
LAST, BEST = "last.safetensors", "best.safetensors"


@dataclass
class Progress:
    """How far a run is; plain numbers only."""

    step: int = 0  # optimizer steps done
    validated: int = -1  # the step last validated
    best_miou: float | None = None
    best_step: int = -1
    last_miou: float | None = None
    loss_sum: float = 0.0  # since the last line of the log
    loss_steps: int = 0
    processes: int = 1
    scaler: dict[str, Any] = field(default_factory=dict)  # of fp16's loss scale


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write a checkpoint; at `path` is the old one or the new one, never a part."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            if value is not None:
                tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content = save(plain, {"format": str(FORMAT), "progress": json.dumps(asdict(progress))})
    write_atomically(path, content)


def load_checkpoint(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint into a model and an optimizer made from the same configuration."""
    tensors, progress = read_checkpoint(path)
    state = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(
            f"{path} does not fit this model: {reason}. Resume with the run's own configuration"
        ) from None
    _load_optimizer(path, optimizer, tensors)
    return progress


def read_progress(path: Path) -> Progress:
    """How far a checkpoint is, without its tensors."""
    return read_checkpoint(path, tensors=False)[1]


def read_checkpoint(path: Path, tensors: bool = True) -> tuple[dict[str, Tensor], Progress]:
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            keys = file.keys() if tensors else ()
            found = {key: file.get_tensor(key) for key in keys}
        if metadata.get("format") != str(FORMAT):
            raise ValueError("it is no checkpoint of this version of hemnet")
        return found, Progress(**json.loads(metadata["progress"]))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"the checkpoint {path} cannot be read: {error}") from None


def _load_optimizer(
    path: Path, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        part, _, rest = key.partition(".")
        if part != "optimizer":
            continue
        index, name = rest.split(".", 1)
        fits = int(index) < len(parameters) and value.shape in ((), parameters[int(index)].shape)
        if not fits:
            raise UserError(
                f"{path} does not fit this optimizer. Resume with the run's own configuration"
            )
        if value.shape:  # in the memory format of its parameter, as it was
            value = torch.empty_like(parameters[int(index)], dtype=value.dtype).copy_(value)
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


class Keeper:
    """The checkpoints of a run folder, and the model that others load from it.

    `last` is written first, and everything else follows from it: a kill in between leaves `best`
    and model/ a step behind, which `mend` sees and puts right when the run is resumed.
    """

    def __init__(self, out: Path, *, validates: bool) -> None:
        self.last, self.best = (out / "checkpoints" / name for name in (LAST, BEST))
        self.model_folder, self.validates = out / "model", validates

    def save(self, model: Segmenter, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        save_checkpoint(self.last, model, optimizer, progress)
        self._derive(model, progress)

    def load(self, model: Segmenter, optimizer: torch.optim.Optimizer) -> Progress | None:
        """The last checkpoint, if there is one."""
        return load_checkpoint(self.last, model, optimizer) if self.last.exists() else None

    def mend(self, model: Segmenter, progress: Progress) -> None:
        for rest in self.model_folder.glob(".saving-*"):
            shutil.rmtree(rest, ignore_errors=True)
        self._derive(model, progress)

    def _derive(self, model: Segmenter, progress: Progress) -> None:
        is_best = progress.best_step == progress.step
        if is_best or not self.validates:
            model.save_pretrained(self.model_folder)
        if is_best:
            _link(self.last, self.best)


def _link(path: Path, name: Path) -> None:
    """A second name for a file, which keeps it when the first is replaced."""
    beside = name.with_name(name.name + ".part")
    beside.unlink(missing_ok=True)
    try:
        os.link(path, beside)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, beside)
    os.replace(beside, name)


def write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)  # gives the space back
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
