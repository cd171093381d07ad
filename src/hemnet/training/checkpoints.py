"""Checkpoints: one file with everything a run needs to go on as if it had never stopped.

A safetensors file: tensors under `model.`, `average.` and `optimizer.`, and the numbers as JSON in
its metadata. Nothing in it is executed on loading. It is written beside its final name, flushed to
the disk and renamed, so that under the final name there is always a complete checkpoint.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from hemnet.errors import UserError
from hemnet.files import atomic_write, link
from hemnet.models.segmenter import Segmenter
from hemnet.run_folder import RunFolder

FORMAT = 1
_GROUP = ("params", "name", "multiple", "weight_decay", "lr", "initial_lr")
_ALIKE = ("momentum_buffer", "exp_avg", "exp_avg_sq")  # have the shape of their parameter
_KINDS = {"int": int, "float": int | float, "float | None": int | float | None}
_KINDS["dict[str, Any]"] = dict


@dataclass
class Progress:
    """How far a run is; plain numbers only."""

    step: int = 0  # optimizer steps done
    validated: int = -1  # the step last validated
    best_miou: float | None = None
    best_step: int = -1
    last_miou: float | None = None
    falls: int = 0  # of the rate, where plateaus set it
    fell_at: int = 0  # the step of the last one
    loss_sum: float = 0.0  # since the last line of the log
    loss_steps: int = 0
    processes: int = 1
    scaler: dict[str, Any] = field(default_factory=dict)  # of fp16's loss scale

    @property
    def is_best(self) -> bool:
        """Whether no step was better than this one."""
        return self.best_step == self.step

    def validate(self, miou: float) -> None:
        """Note what this step's validation found."""
        self.validated, self.last_miou = self.step, miou
        if self.best_miou is None or miou > self.best_miou:
            self.best_miou, self.best_step = miou, self.step


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    average: nn.Module | None = None,
) -> None:
    """Write a checkpoint; at `path` is the old one or the new one, never a part."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    if average is not None:
        tensors |= {f"average.{name}": value for name, value in average.state_dict().items()}
    plain: dict[str, Any] = {}
    for key, value in _optimizer_values(optimizer):
        (tensors if isinstance(value, Tensor) else plain)[key] = value
    content = save(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
        {
            "format": str(FORMAT),
            "progress": json.dumps(asdict(progress)),
            "optimizer": json.dumps({"kind": type(optimizer).__name__, "values": plain}),
        },
    )
    with atomic_write(path, durable=True) as file:
        file.write(content)


def _optimizer_values(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """What an optimizer remembers of each parameter and, such as LAMB's step, of each group."""
    content = optimizer.state_dict()
    for index, state in content["state"].items():
        for name, value in state.items():
            if value is not None:
                yield f"optimizer.{index}.{name}", value
    for number, group in enumerate(content["param_groups"]):
        for name in group.keys() - _settings(optimizer):
            yield f"optimizer.group{number}.{name}", group[name]


def _settings(optimizer: torch.optim.Optimizer) -> set[str]:
    """What a group has from its making on, which the configuration decides."""
    return {*optimizer.defaults, *_GROUP}


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: nn.Module | None = None,
) -> Progress:
    """Put a checkpoint into what was made from the same configuration.

    An average that the run did not have so far begins with its weights.
    """
    tensors, progress, plain = _read(path)
    state = _part(tensors, "model.")
    try:
        model.load_state_dict(state)
        if average is not None:
            average.load_state_dict(_part(tensors, "average.") or state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(
            f"{path} does not fit this model: {reason}. Resume with the run's own configuration"
        ) from None
    try:
        if plain.get("kind", type(optimizer).__name__) != type(optimizer).__name__:
            raise ValueError(f"it is {plain['kind']}'s")
        _load_optimizer(optimizer, tensors | plain.get("values", {}))
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{path} does not fit this optimizer ({error}). Resume with the run's own configuration"
        ) from None
    return progress


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def read_progress(path: Path) -> Progress:
    """How far a checkpoint is, without its tensors."""
    return read_checkpoint(path, tensors=False)[1]


def read_checkpoint(path: Path, tensors: bool = True) -> tuple[dict[str, Tensor], Progress]:
    return _read(path, tensors)[:2]


def _read(path: Path, tensors: bool = True) -> tuple[dict[str, Tensor], Progress, dict[str, Any]]:
    """Tensors, progress, and what of the optimizer is no tensor."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            keys = file.keys() if tensors else ()
            found = {key: file.get_tensor(key) for key in keys}
        if metadata.get("format") != str(FORMAT):
            raise ValueError("it is no checkpoint of this version of hemnet")
        progress = Progress(**json.loads(metadata["progress"]))
        _check_progress(progress)
        return found, progress, dict(json.loads(metadata.get("optimizer", "{}")))
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"the checkpoint {path} cannot be read: {error}") from None


def _check_progress(progress: Progress) -> None:
    for item in fields(Progress):
        value, kind = getattr(progress, item.name), _KINDS[str(item.type)]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{item.name} is {value!r}, expected {item.type}")
    if progress.step < 0 or progress.processes < 1 or progress.loss_steps < 0:
        raise ValueError("its numbers are below zero")


def _load_optimizer(optimizer: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    """Values of any shape and type: what an optimizer keeps is its own matter."""
    content = optimizer.state_dict()
    groups, parameters = (
        content["param_groups"],
        [p for g in optimizer.param_groups for p in g["params"]],
    )
    state: dict[int, dict[str, Any]] = {}
    for key, value in values.items():
        part, _, rest = key.partition(".")
        if part != "optimizer":
            continue
        place, name = rest.split(".", 1)
        if place.startswith("group"):
            groups[int(place.removeprefix("group"))][name] = value
            continue
        parameter = parameters[int(place)]
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            # In the memory format of its parameter, as it was.
            value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        elif name in _ALIKE:
            raise ValueError(f"{key} has the shape {list(getattr(value, 'shape', []))}")
        state.setdefault(int(place), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for index, each in state.items():  # torch gives them the type of the parameter
        for name, value in each.items():
            now = optimizer.state[parameters[index]]
            if isinstance(value, Tensor) and now[name].dtype != value.dtype:
                now[name] = value.to(now[name].device)


class Checkpoints:
    """The checkpoints of a run folder, and the model that others load from it.

    `last` is written first, and everything else follows from it: a kill in between leaves `best`
    and model/ a step behind, which `repair` sees and puts right when the run is resumed.
    """

    def __init__(self, folder: RunFolder, *, validates: bool, keep: str = "best") -> None:
        self.last, self.best, self.model_folder = folder.last, folder.best, folder.model
        self.follows_last = keep == "last" or not validates  # what the model folder holds

    def save(
        self,
        model: Segmenter,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        average: Segmenter | None = None,
    ) -> None:
        """Write what a run is; others find its average in the model folder, if it has one."""
        save_checkpoint(self.last, model, optimizer, progress, average)
        self._derive(average or model, progress)

    def load(
        self,
        model: Segmenter,
        optimizer: torch.optim.Optimizer,
        average: Segmenter | None = None,
    ) -> Progress | None:
        """The last checkpoint, if there is one."""
        if not self.last.exists():
            return None
        return load_checkpoint(self.last, model, optimizer, average)

    def repair(self, model: Segmenter, progress: Progress) -> None:
        """`model` is what the model folder would hold: the average, if there is one."""
        for rest in self.model_folder.glob(".saving-*"):
            shutil.rmtree(rest, ignore_errors=True)
        self._derive(model, progress)

    def _derive(self, model: Segmenter, progress: Progress) -> None:
        if progress.is_best or self.follows_last:
            model.save_pretrained(self.model_folder)
        if progress.is_best:
            link(self.last, self.best)
