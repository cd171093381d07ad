"""What a person sees of a run: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from hemnet.progress import log_console

MEASURED = 3  # steps, after the first, from which the time of all is told


class Meter:
    """Images per second and the share of the time spent waiting for data, between two lines."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._start, self._waited, self._images = time.perf_counter(), 0.0, 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside (validation, checkpoints) is not training."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    def add(self, images: int) -> None:
        self._images += images

    def read(self) -> dict[str, float]:
        elapsed = max(time.perf_counter() - self._start, 1e-9)
        return {
            "images_per_second": round(self._images / elapsed, 3),
            "data_wait": round(min(self._waited / elapsed, 1.0), 4),
        }


class Display:
    """The line of a run; shows nothing when `quiet` (all processes but the first)."""

    def __init__(
        self, steps: int, step: int, batch_size: int, *, every: int = 0, quiet: bool = False
    ) -> None:
        self.steps, self.batch_size, self.quiet = steps, batch_size, quiet
        self.every = every  # steps between two validations; 0 for none
        self.validation_seconds = 0.0  # of the last one
        self._first: tuple[int, float] | None = None
        self.console = log_console()
        self.live = self.console.is_terminal and not quiet
        self.miou: float | None = None
        one_line = Column(no_wrap=True, overflow="ellipsis")
        self.bar = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=12),
            TextColumn("{task.description}", table_column=one_line),
            console=self.console,
            disable=not self.live,
            transient=True,
        )
        self.task = self.bar.add_task("", total=steps, completed=step)
        self.bar.start()

    def step(self, step: int) -> None:
        self.bar.update(self.task, completed=step)
        now = time.perf_counter()
        if self._first is None:  # which is slower than the others
            self._first = step, now
        elif step == min(self._first[0] + MEASURED, self.steps):
            seconds = (now - self._first[1]) / (step - self._first[0])
            left = self.left(step, seconds)
            self.say(f"time      {seconds:.2g} s a step: about {duration(left)}, until {at(left)}")

    def left(self, step: int, seconds: float) -> float:
        """Seconds to the end, at so many a step; of validations as long as the last took."""
        ahead = 0 if not self.every else -(-self.steps // self.every) - step // self.every
        return (self.steps - step) * seconds + ahead * self.validation_seconds

    def line(self, step: int, loss: float, rate: float, speed: dict[str, float]) -> None:
        left = self.left(step, self.batch_size / max(speed["images_per_second"], 1e-9))
        text = (
            f"loss {loss:.4f} · rate {rate:.2g} · {speed['images_per_second']:.1f} images/s · "
            f"{duration(left)} left, until {at(left)}"
        )
        if self.miou is not None:
            text += f" · mIoU {self.miou:.2f}"
        text += f" · data wait {speed['data_wait']:.0%}"
        self.bar.update(self.task, description=text)
        if not self.live:
            self.say(f"step {step}/{self.steps} · {text}")

    def say(self, text: str) -> None:
        if self.live:
            self.bar.console.print(text, markup=False)
        elif not self.quiet:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Leaves the terminal to another progress bar."""
        if self.live:
            self.bar.stop()
        try:
            yield
        finally:
            if self.live:
                self.bar.start()

    def close(self) -> None:
        self.bar.stop()


def at(seconds: float) -> str:
    """The time of day so many seconds from now; with the day where it is another."""
    end = datetime.now() + timedelta(seconds=min(seconds, 3.6e6))
    same = end.date() == datetime.now().date()
    return f"{end:%H:%M}" if same else f"{end:%a %d %b, %H:%M}"


def duration(seconds: float) -> str:
    minutes, seconds = divmod(round(min(seconds, 3.6e6)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
