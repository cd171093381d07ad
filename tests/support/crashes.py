"""A pytest plugin: a test process that crashes leaves the stacks of its threads, which are shown.

pytest's own faulthandler writes to the standard error of each process and ends before the
interpreter does, and so misses what happens at exit.
"""

import faulthandler
from pathlib import Path

import pytest

FOLDER = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    faulthandler.enable()
    if not config.pluginmanager.has_plugin("cacheprovider"):
        return
    folder = config.stash[FOLDER] = config.cache.mkdir("crashes")
    worker = getattr(config, "workerinput", None)
    if worker is None:
        for file in folder.iterdir():
            file.unlink()
    name = "main" if worker is None else worker["workerid"]
    faulthandler.enable((folder / f"{name}.txt").open("wb", buffering=0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    folder = config.stash.get(FOLDER, None)
    for file in sorted(folder.iterdir()) if folder else ():
        if text := file.read_text(errors="replace"):
            terminalreporter.section(f"crash of {file.stem}", "!", red=True, bold=True)
            terminalreporter.write(text)
