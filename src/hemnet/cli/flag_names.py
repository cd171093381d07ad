"""The library's errors speak of parameters, `root` or `labels=masks`; here they become flags."""

from __future__ import annotations

import argparse
import re

# Of the command that runs, such as `--data.root`; None for those that take a value of any kind.
command_flags: dict[str, argparse.Action | None] = {}
_PARAMETER = re.compile(r"`(\w+)(?:=([^`]*))?`")


def with_flags(message: str) -> str:
    """A message with the command's flags in the place of parameters, where it has them."""

    def flag(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        dashed = name.replace("_", "-")
        known = (f"--{dashed}", f"--{name}", f"--data.{name}", f"--run.{name}")
        chosen = next((text for text in known if text in command_flags), None)
        if chosen is None:
            return found[0]
        action = command_flags[chosen]
        if value is None or (action is not None and action.nargs == 0):
            return chosen
        if value.startswith("{"):  # {0: 0, 255: 1}
            value = value.strip("{}").replace(" ", "")
        return f"{chosen} {'true' if value == 'True' else value}"

    return _PARAMETER.sub(flag, message)
