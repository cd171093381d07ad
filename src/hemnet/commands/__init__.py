"""One module per sub-command of `hemnet`.

Each has `HELP` (one line), `add_arguments(parser)` and `run(args)`; heavy imports happen inside
`run`, so that `hemnet --help` answers at once.
"""
