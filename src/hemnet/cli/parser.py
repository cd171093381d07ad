"""The command line: `hemnet COMMAND …`.

Exit code 0 is success, 2 a user's mistake, 1 anything else. What a user or the machine did wrong is
one clear message; a traceback is a bug of ours.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NoReturn

from hemnet.cli.flag_names import command_flags, with_flags
from hemnet.errors import UserError, explain, is_wrong_name
from hemnet.version import __version__

log = logging.getLogger("hemnet")

# Command → module with HELP, add_arguments and run.
COMMANDS = {
    "demo": "hemnet.cli.demo",
    "evaluate": "hemnet.cli.evaluate",
    "predict": "hemnet.cli.predict",
    "export": "hemnet.cli.export",
    "convert": "hemnet.cli.convert",
    "costs": "hemnet.cli.costs",
    "data": "hemnet.cli.data",
    "study": "hemnet.cli.study",
    "app": "hemnet.cli.app",
    "train": "hemnet.cli.train",
}


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Puts the names of all models and data sets for `{models}` and `{datasets}`.

    Only when help is printed: the registries import torch, which takes seconds.
    """

    def _format_text(self, text: str) -> str:
        if "{models}" in text:
            from hemnet.models import list_models

            text = text.replace("{models}", _listed(list_models()))
        if "{datasets}" in text:
            from hemnet.data import list_datasets

            text = text.replace("{datasets}", _listed(list_datasets()))
        return super()._format_text(text)


def _listed(names: list[str]) -> str:
    return textwrap.fill(", ".join(names), 90, subsequent_indent="  ")


class Parser(argparse.ArgumentParser):
    """argparse with flags that were renamed, and with the settings of a training run as flags.

    With `takes_settings`, `args.settings` holds every `--section.name value` and whatever else is
    not known here: the configuration's reader says what is wrong with it. With `settings_after`
    this is so only where that flag is given.
    """

    takes_settings = False
    settings_after: str | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.old_flags: dict[str, str] = {}  # old name → name

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = [self._renamed(word) for word in (sys.argv[1:] if args is None else args)]
        wanted = self.settings_after
        if not self.takes_settings or (wanted and not any(_name(w) == wanted for w in words)):
            return super().parse_known_args(words, namespace)
        settings, rest = split_settings(words)
        found, unknown = super().parse_known_args(rest, namespace)
        found.settings = [*settings, *unknown]
        return found, []

    def _renamed(self, word: str) -> str:
        old, equals, value = word.partition("=")
        new = self.old_flags.get(old)
        if new is None:
            return word
        log.warning("%s is now called %s; the old name still works", old, new)
        return f"{new}{equals}{value}"


def split_settings(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """`--section.name value` and `--section.name=value` in one list, the rest in the other."""
    settings: list[str] = []
    rest: list[str] = []
    value_of_setting = False
    for word in words:
        if word.startswith("--"):
            value_of_setting = "." in _name(word)
            (settings if value_of_setting else rest).append(word)
            value_of_setting &= "=" not in word
        else:
            (settings if value_of_setting else rest).append(word)
            value_of_setting = False
    return settings, rest


def _name(word: str) -> str:
    return word.partition("=")[0]


def build_parser() -> Parser:
    parser = Parser(
        prog="hemnet",
        description="Highway Expectation-Maximization Networks: attention and segmentation.",
        epilog="`hemnet COMMAND --help` shows a command's options and examples.",
    )
    parser.add_argument("--version", action="version", version=f"hemnet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, path in COMMANDS.items():
        module = importlib.import_module(path)
        sub = commands.add_parser(
            name,
            help=module.HELP,
            description=module.__doc__,
            formatter_class=HelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a parser's sub-commands, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _flags(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> dict[str, argparse.Action | None]:
    """Of the command that was given."""
    flags: dict[str, argparse.Action | None] = {}
    if args.command == "train" or getattr(args, "settings", None):  # of a configuration
        from hemnet.training.config import DataConfig, RunConfig

        for section, kind in (("data", DataConfig), ("run", RunConfig)):
            flags |= dict.fromkeys(f"--{section}.{field.name}" for field in fields(kind))
    for name in (args.command, getattr(args, "action", None)):
        parser = subcommands(parser).get(str(name), parser)
    return flags | {flag: action for action in parser._actions for flag in action.option_strings}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the name of a file need not be text
            stream.reconfigure(errors="backslashreplace")
    parser = build_parser()
    args = parser.parse_args(argv)
    command_flags.clear()
    command_flags.update(_flags(parser, args))
    warnings.filterwarnings("ignore", module=r"PIL\.")  # notes on odd metadata of image files
    try:
        args.run(args)
    except UserError as error:
        print(f"hemnet: {with_flags(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("hemnet: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output (such as `head`) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        reason = explain(error)
        if reason is None:
            raise
        print(f"hemnet: {with_flags(reason)}", file=sys.stderr)
        sys.exit(2 if is_wrong_name(error) else 1)
    sys.exit(0)
