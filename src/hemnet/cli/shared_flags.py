"""Flags that several commands have: of data, of inference, and where to compute."""

from __future__ import annotations

import argparse
import atexit
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hemnet.training.config import DataConfig
from hemnet.training.config_parser import meanings

if TYPE_CHECKING:
    import torch

    from hemnet.inference.options import InferenceOptions


TIMEOUT = 1800  # seconds that a process waits for slower ones, at the end


def _numbers(kind: type) -> Callable[[str], list[float]]:
    """Reads a word such as 0.5 or 0.5,1."""

    def read(text: str) -> list[float]:
        try:
            return [kind(part) for part in text.split(",") if part]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text}: expected numbers, such as 2 or 2,3"
            ) from None

    return read


# Type of a field → how argparse reads its flag.
READERS: dict[str, dict[str, Any]] = {
    "bool": {"action": "store_true", "default": None},
    "float": {"type": float, "metavar": "X"},
    "int": {"type": int, "metavar": "N"},
    "int | None": {"type": int, "metavar": "N"},
    "tuple[float, ...]": {"type": _numbers(float), "metavar": "X", "nargs": "+"},
    "int | tuple[int, int] | None": {"type": _numbers(int), "metavar": "N", "nargs": "+"},
}
SHORTER = {"batch_size": ["--batch"]}


# Arguments of `open_dataset` as flags; what says nothing else has the help of the configuration.
DATA: dict[str, dict[str, Any]] = {
    "root": {"type": Path},
    "split": {},
    "skip_missing": {"action": "store_true"},
    "classes": {"help": "for folder and list: a file, names with commas, or a number"},
    "label_map": {"help": "re-number label values, such as 0:255,1:0, or a file"},
    "labels": {},
    "columns": {"nargs": 2, "metavar": ("IMAGE", "MASK")},
    "size": {"type": int},
    "length": {"type": int, "help": "number of generated images"},
    "groups": {"type": int, "help": "groups in an image of recall (default: 2 to 12)"},
}


def add_data(parser: Any, names: Iterable[str], *, short: bool = False, **helps: str) -> None:
    """`--data.name`, and the short `--name` where that can mean nothing else."""
    known = meanings(DataConfig) | helps
    for name in names:
        flags = ["--split"] if name == "split" else [f"--data.{name}"]
        if short and name not in ("split", "columns"):
            flags.insert(0, f"--{name.replace('_', '-')}")
        text = known.get(name, "").replace("null", "left out")
        parser.add_argument(*flags, dest=name, **{"help": text, **DATA.get(name, {})})


def given_data(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `open_dataset` that were given."""
    given = {name: getattr(args, name, None) for name in ("name", *DATA)}
    if given["label_map"]:
        from hemnet.data.class_lists import parse_label_map

        given["label_map"] = parse_label_map(given["label_map"])
    return {name: value for name, value in given.items() if value not in (None, False)}


def add_options(parser: argparse.ArgumentParser, kind: type[InferenceOptions]) -> None:
    """A flag for every field, with its line of the docstring and its default as help."""
    group, default, helps = parser.add_argument_group("inference"), kind(), meanings(kind)
    for item in fields(kind):
        flags = [f"--{item.name.replace('_', '-')}", *SHORTER.get(item.name, [])]
        value = getattr(default, item.name)
        values = value if isinstance(value, tuple) else () if value in (None, False) else (value,)
        shown = " ".join(f"{number:.3g}" for number in values)
        text = helps[item.name].replace("null", "left out") + (f" ({shown})" if shown else "")
        group.add_argument(*flags, dest=item.name, help=text, **READERS[str(item.type)])
    group.add_argument("--workers", type=int, default=2, help="readers of images (%(default)s)")
    group.add_argument(
        "--trust", action="store_true", help="load a .pt2 file, which could run any program"
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or mps (%(default)s)")


def given_options(args: argparse.Namespace, kind: type[InferenceOptions]) -> dict[str, Any]:
    """The options that were given, as the class takes them."""
    given: dict[str, Any] = {}
    for item in fields(kind):
        value = getattr(args, item.name)
        if isinstance(value, list):
            value = tuple(number for part in value for number in part)
            if len(value) == 1 and "int" in str(item.type):  # a square window
                value = value[0]
        if value is not None:
            given[item.name] = value
    return given


def chosen_device(name: str) -> tuple[torch.device, bool]:
    """Where to compute, and whether this process is the one that speaks."""
    from hemnet.inference.open_model import find_device

    device = find_device(name)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # started by torchrun or accelerate
        from hemnet.training.distributed import join

        # A GPU is the process's own; without one it has to be said that they talk all the same.
        state = join(cpu=device.type == "cpu", timeout=TIMEOUT)
        atexit.register(state.destroy_process_group)
        return state.device, state.is_main_process
    return device, True
