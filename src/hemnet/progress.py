"""Progress bars for everything over two seconds; silent when the output is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

T = TypeVar("T")
_tell: ContextVar[Callable[[str], object] | None] = ContextVar("tell", default=None)


def stage(text: str) -> None:
    """Says what long work is at, to whoever listens."""
    tell = _tell.get()
    if tell is not None:
        tell(text)


@contextmanager
def telling(tell: Callable[[str], object]) -> Iterator[None]:
    """Inside, `tell` hears of each stage."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def log_console() -> Console:
    """Standard error; a terminal only where it is one.

    Notebooks and CI set FORCE_COLOR, which rich takes for a terminal: logs would fill with bars.
    """
    console = Console(stderr=True, highlight=False)
    if not console.file.isatty():
        console = Console(stderr=True, highlight=False, force_terminal=False)
    return console


@contextmanager
def progress_bar(*, in_bytes: bool = False) -> Iterator[Progress]:
    """A rich progress bar on standard error, which leaves standard output to results."""
    counters = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(),)
    console = log_console()
    columns = (TextColumn("{task.description}"), BarColumn(), *counters, TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield bar


def track(items: Iterable[T], text: str, total: int | None = None) -> Iterator[T]:
    """Yield the items and draw how many have passed."""
    with progress_bar() as bar:
        yield from bar.track(items, total=total, description=text)
