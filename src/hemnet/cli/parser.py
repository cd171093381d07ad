"""The command line: `hemnet COMMAND …`.

Exit code 0 is success, 2 a user's mistake, 1 anything else. What a user or the machine did wrong is
one clear message; a traceback is a bug of ours.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn

from hemnet.errors import UserError, explain, is_wrong_name
from hemnet.version import __version__

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


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
            formatter_class=argparse.RawDescriptionHelpFormatter,
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


def main(argv: Sequence[str] | None = None) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the name of a file need not be text
            stream.reconfigure(errors="backslashreplace")
    args = build_parser().parse_args(argv)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # notes on odd metadata of image files
    try:
        args.run(args)
    except UserError as error:
        print(f"hemnet: {error}", file=sys.stderr)
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
        print(f"hemnet: {reason}", file=sys.stderr)
        sys.exit(2 if is_wrong_name(error) else 1)
    sys.exit(0)
