"""From what a user asks for to what the page shows, without HTTP."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hemnet.app import drawing
from hemnet.app.explore import Explorer, Seen, Solution, distinct, step_text
from hemnet.app.limits import Limits, read_upload, safe_stem, shown_name, shrink
from hemnet.app.samples import Sample, samples
from hemnet.app.sessions import Session, Sessions
from hemnet.errors import UserError
from hemnet.inference.prediction_files import save_classes

SHOWN, MOST_SHOWN = 6, 12  # bases at first, and at most


@dataclass(frozen=True)
class Wishes:
    """What the controls say; None is what the model itself does, or the first choice."""

    iterations: int | None = None
    step_size: float | None = None
    shown: int | None = None  # iteration; None: the last
    bases: Sequence[int] | None = None  # from 1; None: the most distinct
    place: tuple[int, int] | None = None  # pixel of the file


@dataclass(frozen=True)
class View:
    """EM as it is asked for, drawn. Without an EM unit only bars, and no solution."""

    solution: Solution | None = None
    shown: int = 1
    bases: tuple[int, ...] = ()  # from 1
    maps: str = ""
    chart: str = ""
    bars: str = ""
    listed: tuple[int, ...] = ()  # bases that have a bar, from 1


@dataclass(frozen=True)
class Look:
    """A new image, drawn."""

    stage: str
    legend: str
    status: str
    place: tuple[int, int]  # the pixel that is explained at first
    size: tuple[int, int]  # width and height of the file
    view: View


class Answers:
    """One explorer for all users; `key` says whose page asks."""

    def __init__(
        self,
        explorer: Explorer,
        limits: Limits,
        folder: Path,
        own: Sequence[Sample] | None = None,
    ) -> None:
        self.explorer, self.limits, self.folder = explorer, limits, folder
        self.sessions = Sessions(limits.memory)
        self.samples = list(own or samples(explorer.names))

    def sample(self, key: str | None, number: Any) -> Look:
        if not isinstance(number, int) or not 0 <= number < len(self.samples):
            raise UserError(f"sample {number!r}: there are {len(self.samples)}, from 0.")
        sample = self.samples[number]
        size = sample.picture.size
        picture = shrink(sample.picture, self.limits.side)
        return self._look(key, lambda: self.explorer.see(picture, sample.name, size))

    def upload(self, key: str | None, name: str, content: bytes) -> Look:
        """`name` is only displayed: on disk the image has a name of ours, while it is read."""

        def look() -> Seen:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                path = Path(folder) / "image"
                path.write_bytes(content)
                picture, size = read_upload(path, self.limits, shown_name(name))
            return self.explorer.see(picture, shown_name(name), size)

        return self._look(key, look)

    def _look(self, key: str | None, look: Callable[[], Seen]) -> Look:
        start = time.perf_counter()
        seen, explorer = look(), self.explorer
        session = self.sessions.begin(key, seen)
        middle = seen.size[0] // 2, seen.size[1] // 2
        found = Look(
            drawing.stage(seen, explorer.palette, explorer.plain),
            drawing.legend(explorer, seen),
            "",
            middle,
            seen.size,
            self._view(session, Wishes(place=middle)),
        )
        return replace(found, status=drawing.status(seen, time.perf_counter() - start))

    def class_map(self, key: str | None) -> tuple[str, bytes]:
        """Name and content of the file that `hemnet predict` writes for the user's image."""
        seen = self.sessions.get(key).seen
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder) / "classes.png"
            save_classes(seen.classes, self.explorer.palette, path)
            return f"{safe_stem(seen.name)}_classes.png", path.read_bytes()

    def view(self, key: str | None, wishes: Wishes) -> View:
        return self._view(self.sessions.get(key), wishes)

    def _view(self, session: Session, wishes: Wishes) -> View:
        seen, explorer = session.seen, self.explorer
        if explorer.unit is None:
            bars = "" if wishes.place is None else drawing.pixel_head(explorer, seen, *wishes.place)
            return View(bars=bars)
        solution = session.solve(explorer, self._settings(wishes))
        assert session.own is not None
        shown = solution.iterations if wishes.shown is None else wishes.shown
        shown = min(max(1, shown), solution.iterations)
        gamma = solution.responsibilities(seen.x, shown)
        bases = self._bases(wishes.bases, session)
        bars = ""
        listed: list[int] = []
        if wishes.place is not None:
            bars, listed = drawing.pixel_bars(explorer, seen, gamma, *wishes.place)
        return View(
            solution,
            shown,
            tuple(k + 1 for k in bases),
            drawing.maps(explorer, seen, solution, gamma, shown, bases),
            drawing.bound_chart(solution, session.own, shown),
            bars,
            tuple(k + 1 for k in listed),
        )

    def _settings(self, wishes: Wishes) -> tuple[int | None, float | None]:
        """Iterations and step size to solve with; None twice where they are the model's own."""
        own = self.explorer.own.steps
        same = wishes.iterations in (None, len(own))
        # A learned step size has more digits than a slider.
        if same and (wishes.step_size is None or step_text([wishes.step_size]) == step_text(own)):
            return None, None
        return wishes.iterations, wishes.step_size

    def _bases(self, wanted: Sequence[int] | None, session: Session) -> list[int]:
        """From 0. The most distinct are those of the model's own last iteration."""
        assert self.explorer.unit is not None
        if wanted is None:
            own, seen = session.own, session.seen
            assert own is not None
            return distinct(own.responsibilities(seen.x, own.iterations), seen.grid, SHOWN)
        count = self.explorer.unit.bases.value.shape[0]
        wrong = [k for k in wanted if not 1 <= k <= count]
        if wrong:
            raise UserError(f"basis {wrong[0]}: this model has the bases 1 to {count}.")
        return [k - 1 for k in wanted]
