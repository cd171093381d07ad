"""Backbone weights from a local file: timm's, torchvision's and mmsegmentation's names.

Only tensors are ever read (safetensors, or `torch.load` with `weights_only`), and everything is
checked before the first parameter changes: a file is used, or the module is as it was.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from hemnet.errors import UserError

logger = logging.getLogger("hemnet")

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
# What training scripts wrap a state dict in, and put before its keys.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "state_dict_ema", "model_ema")
_PREFIXES = re.compile(r"^(?:(?:module|model|backbone|encoder|network|_orig_mod)\.)+")
_STEM = re.compile(r"^stem\.(\d)\.")
ENOUGH = 0.9  # of the tensors
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class WeightsReport:
    """What matched between a weight file and a module."""

    path: Path
    matched: int
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    mean: tuple[float, ...] | None  # of the images it was trained on, when the file says
    std: tuple[float, ...] | None

    def __str__(self) -> str:
        total = self.matched + len(self.missing)
        text = f"{self.path.name}: {self.matched} of {total} backbone tensors loaded"
        if self.missing:
            text += f"; missing in the file: {_some(self.missing)}"
        if self.unused:
            text += f"; not needed: {_some(self.unused)}"
        return text


def load_weights(module: nn.Module, path: str | Path, partial: bool = False) -> WeightsReport:
    """Load a backbone's weights from a file, and log what matched.

    A file that has less than nine tenths of the tensors is another network's: it is refused unless
    `partial`.
    """
    path = Path(path)
    state, metadata = read_state(path)
    target = {k: v for k, v in module.state_dict().items() if not k.endswith(_COUNTER)}
    source = _match(target, {k: v for k, v in state.items() if not k.endswith(_COUNTER)})
    if not source:
        raise UserError(
            f"{path} does not fit this backbone: none of its {len(state)} tensors has the "
            f"name of one of the backbone's (such as {next(iter(target))!r}; the file has "
            f"{next(iter(state), 'nothing')!r}). Was it made for another network?"
        )
    if len(source) < ENOUGH * len(target) and not partial:
        missing = tuple(k for k in target if k not in source)
        raise UserError(
            f"{path} has {len(source)} of this backbone's {len(target)} tensors; missing are "
            f"{_some(missing)}. Was it made for another network? To load those that match: "
            "partial_weights=True (model.partial_weights true)"
        )
    for key, name in source.items():
        if not _fits(state[name], target[key]):
            raise UserError(
                f"{path} does not fit this backbone: {name} has shape "
                f"{tuple(state[name].shape)}, {tuple(target[key].shape)} is needed. "
                "Was it made for another network?"
            )
        if state[name].is_complex() or not torch.isfinite(state[name].float()).all():
            raise UserError(f"{path} is damaged: {name} holds values that are not finite")
    used = set(source.values())
    report = WeightsReport(
        path=path,
        matched=len(source),
        missing=tuple(k for k in target if k not in source),
        unused=tuple(k for k in state if k not in used and not k.endswith(_COUNTER)),
        mean=_numbers(metadata, "mean"),
        std=_numbers(metadata, "std"),
    )
    new = {key: state[name].reshape(target[key].shape) for key, name in source.items()}
    module.load_state_dict(new, strict=False)
    logger.log(logging.WARNING if report.missing else logging.INFO, "%s", report)
    return report


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file by name, and a safetensors file's metadata. Executes nothing."""
    if not path.is_file():
        raise UserError(f"there is no weight file {path}")
    if path.suffix not in SUFFIXES:
        raise UserError(f"{path} is not a weight file: its name must end in {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                return state, dict(file.metadata() or {})
        with warnings.catch_warnings():  # on kinds of tensors that are refused below
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{path} is refused: it is damaged or holds Python objects besides tensors, which "
            "could run code. Save the state dict alone, best as .safetensors"
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle can make torch stumble over anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{path} cannot be read, it is damaged or of another kind: {reason}"
        ) from None
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping):
        raise UserError(f"{path} holds a {type(content).__name__}, not tensors by name")
    state = {str(k): v for k, v in content.items() if isinstance(v, Tensor)}
    if not state:
        raise UserError(f"{path} holds no tensors by name")
    for name, tensor in state.items():
        kind = _unusable(tensor)
        if kind is not None:
            raise UserError(
                f"{path} cannot be used: {name} is a {kind} tensor. Save ordinary ones, such as "
                "tensor.dequantize() or tensor.to_dense() give"
            )
    return state, {}


def _unusable(tensor: Tensor) -> str | None:
    """Why a tensor's values cannot be used, in a word; None where they can."""
    if tensor.is_meta:
        return "meta (without values)"
    if tensor.is_quantized:
        return "quantised"
    if tensor.is_nested:
        return "nested"
    if tensor.layout != torch.strided:
        return "sparse"
    # A damaged file can give it a shape that reaches beyond its storage.
    last = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    if tensor.numel() and (last + 1) * tensor.element_size() > tensor.untyped_storage().nbytes():
        return "damaged"
    return None


def _match(target: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, str]:
    """Key of the module → name in the file, for all that match."""
    names = {_PREFIXES.sub("", name): name for name in state}
    if "stem.7.running_mean" in names:  # mmsegmentation's ResNets with a deep stem
        names = {_STEM.sub(_as_timm, plain): name for plain, name in names.items()}
    found = {key: names[plain] for key in target if (plain := _plain(key)) in names}
    if not found and any(name.startswith("features.") for name in names):
        return _match_in_order(target, names)
    return found


def _as_timm(stem: re.Match[str]) -> str:
    """The last batch norm of a deep stem lies outside of timm's."""
    return "bn1." if stem[1] == "7" else f"conv1.{stem[1]}."


def _plain(key: str) -> str:
    """A feature extractor's key as the whole network calls it: stages_0.x → stages.0.x."""
    key = _PREFIXES.sub("", key)
    return re.sub(r"^(\w+)_(\d+)(?=\.)", r"\1.\2", key)


def _match_in_order(target: Mapping[str, Tensor], names: dict[str, str]) -> dict[str, str]:
    """torchvision's MobileNet, EfficientNet and ConvNeXt: other names, the same layers in order.

    Returns nothing unless every layer of the module meets a layer with the same kinds of tensors.
    """
    theirs: dict[str, dict[str, str]] = {}
    for plain in sorted((n for n in names if n.startswith("features.")), key=_natural):
        layer, _, leaf = plain.rpartition(".")
        theirs.setdefault(layer, {})[{"layer_scale": "gamma"}.get(leaf, leaf)] = names[plain]
    ours: dict[str, dict[str, str]] = {}
    for key in target:
        layer, _, leaf = key.rpartition(".")
        ours.setdefault(layer, {})[leaf] = key
    found: dict[str, str] = {}
    if len(theirs) < len(ours):
        return {}
    for mine, other in zip(ours.values(), theirs.values(), strict=False):
        if mine.keys() != other.keys():
            return {}
        found.update({mine[leaf]: other[leaf] for leaf in mine})
    return found


def _natural(key: str) -> list[tuple[int, Any]]:
    """Sorts features.2 before features.10, and a layer's own tensors before its children's."""
    layer, _, leaf = key.rpartition(".")
    parts = [(1, int(p)) if p.isdigit() else (2, p) for p in layer.split(".")]
    return [*parts, (0, leaf)]


def _fits(given: Tensor, wanted: Tensor) -> bool:
    squeezed = tuple(n for n in given.shape if n != 1) == tuple(n for n in wanted.shape if n != 1)
    return given.shape == wanted.shape or (squeezed and wanted.dim() == 1)


def _numbers(metadata: Mapping[str, str], key: str) -> tuple[float, ...] | None:
    try:
        values = tuple(float(v) for v in json.loads(metadata[key]))
    except (KeyError, ValueError, TypeError):
        return None
    return values if len(values) == 3 else None


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
