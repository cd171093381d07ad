"""Being told to stop: Ctrl-C and SIGTERM let the step finish and a checkpoint be written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self


class Stopped(BaseException):
    """Raised by a signal where work may be dropped at any line."""


class StopSignals:
    """Inside `with`, `requested` is the signal that asked to stop, or None.

    A second Ctrl-C interrupts at once. A second SIGTERM does not: launchers send several.
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._raise = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python's rule for handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    @contextmanager
    def immediately(self) -> Iterator[None]:
        """Inside, a signal raises `Stopped` at once: for work that only reads."""
        if self.requested is not None:
            raise Stopped
        self._raise = True
        try:
            yield
        finally:
            self._raise = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = signal.Signals(number)
        if self._raise:
            self._raise = False
            raise Stopped
