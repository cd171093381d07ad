"""Options of the units under the names they had before: still read, with a warning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

NAMES = {"start": "initial_bases", "gain_rate": "gain_lr_mult"}
VALUES = {"initial_bases": {"average": "running_average"}}

P = ParamSpec("P")
R = TypeVar("R")


def current_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """`options` by today's names and values; where two are one option the later counts."""
    found: dict[str, Any] = {}
    for given, value in options.items():
        name = NAMES.get(given, given)
        new = VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value
        if (name, new) != (given, value):
            text = f"the option {given}={value!r} is {name}={new!r} now: change it where you set it"
            warnings.warn(text, FutureWarning, stacklevel=3)
        found.pop(name, None)
        found[name] = new
    return found


def accepts_old_names(function: Callable[P, R]) -> Callable[P, R]:
    """The same function, which also takes old names of its keyword arguments."""

    @functools.wraps(function)
    def renamed(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **current_options(kwargs))

    return renamed
