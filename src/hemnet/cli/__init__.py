"""The command line. One module per sub-command of `hemnet`, put together in `parser`.

Each has `HELP` (one line), `add_arguments(parser)` and `run(args)`; heavy imports happen inside
`run`, so that `hemnet --help` answers at once.
"""

from hemnet.cli.parser import COMMANDS, build_parser, main, subcommands

__all__ = ["COMMANDS", "build_parser", "main", "subcommands"]
