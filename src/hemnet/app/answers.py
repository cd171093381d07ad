"""Answer the requests of the page; `routes` puts HTTP around it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hemnet.app import drawing
from hemnet.app.explore import Explorer, OpenImage
from hemnet.app.limits import Limits, read_upload, safe_stem, shown_name
from hemnet.app.samples import Sample, samples
from hemnet.app.sessions import OWN, Session, Sessions, Settings
from hemnet.errors import UserError
from hemnet.image_io import shrink
from hemnet.inference.prediction_files import save_classes
from hemnet.inspection.attention import choose_bases
from hemnet.inspection.em_trace import step_text

SHOWN, MOST_SHOWN = 6, 12  # bases at first, and at most


@dataclass(frozen=True)
class Query:
    """The state of the page's controls; None stands for the model's own setting or the default."""

    iterations: int | None = None
    step_size: float | None = None
    shown: int | None = None  # iteration; None: the last
    bases: Sequence[int] | None = None  # from 1; None: the most distinct
    place: tuple[int, int] | None = None  # pixel of the file


@dataclass(frozen=True)
class EMView:
    """The EM part of the page as HTML. Without an EM unit it has bars only."""

    iterations: int = 1
    shown: int = 1
    bases: tuple[int, ...] = ()  # from 1
    maps: str = ""
    chart: str = ""
    bars: str = ""
    listed: tuple[int, ...] = ()  # bases that have a bar, from 1


@dataclass(frozen=True)
class ImageView:
    """The whole page for a new image, as HTML."""

    stage: str
    legend: str
    status: str
    place: tuple[int, int]  # the pixel that is explained at first
    size: tuple[int, int]  # width and height of the file
    view: EMView


class Answers:
    """One explorer shared by all users; `key` is the session of the page that asks."""

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

    def sample(self, key: str | None, number: Any) -> ImageView:
        if not isinstance(number, int) or not 0 <= number < len(self.samples):
            raise UserError(f"sample {number!r}: there are {len(self.samples)}, from 0.")
        sample = self.samples[number]
        picture = shrink(sample.picture, self.limits.side)
        return self._show(
            key, lambda: self.explorer.open(picture, sample.name, sample.picture.size)
        )

    def upload(self, key: str | None, name: str, content: bytes) -> ImageView:
        """`name` is for display only: the temporary file has a fixed name."""

        def read() -> OpenImage:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                path = Path(folder) / "image"
                path.write_bytes(content)
                picture, size = read_upload(path, self.limits, shown_name(name))
            return self.explorer.open(picture, shown_name(name), size)

        return self._show(key, read)

    def _show(self, key: str | None, read: Callable[[], OpenImage]) -> ImageView:
        start = time.perf_counter()
        image, explorer = read(), self.explorer
        session = self.sessions.begin(key, image)
        middle = image.size[0] // 2, image.size[1] // 2
        stage = drawing.draw_stage(image, explorer.palette, explorer.plain)
        legend = drawing.draw_legend(explorer, image)
        view = self._view(session, Query(place=middle))
        status = drawing.html_of("status", image, time.perf_counter() - start)
        return ImageView(stage, legend, status, middle, image.size, view)

    def class_map(self, key: str | None) -> tuple[str, bytes]:
        """File name and content of the class map, as `hemnet predict` writes it."""
        image = self.sessions.get(key).image
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            path = Path(folder) / "classes.png"
            save_classes(image.classes, self.explorer.palette, path)
            return f"{safe_stem(image.name)}_classes.png", path.read_bytes()

    def view(self, key: str | None, query: Query) -> EMView:
        return self._view(self.sessions.get(key), query)

    def _view(self, session: Session, query: Query) -> EMView:
        image, explorer = session.image, self.explorer
        if explorer.unit is None:
            place = query.place
            bars = "" if place is None else drawing.draw_pixel(explorer, image, None, *place)[0]
            return EMView(bars=bars)
        trace, own = session.solve(explorer, self._settings(query)), session.solve(explorer)
        shown = trace.iterations if query.shown is None else query.shown
        shown = min(max(1, shown), trace.iterations)
        gamma = trace.responsibilities(shown)[0]
        # The most distinct bases are those of the model's own last iteration.
        bases = choose_bases(own.responsibilities(own.iterations)[0], SHOWN, query.bases)
        bars, listed = "", list[int]()
        if query.place is not None:
            bars, listed = drawing.draw_pixel(explorer, image, gamma, *query.place)
        return EMView(
            trace.iterations,
            shown,
            tuple(k + 1 for k in bases),
            drawing.draw_maps(explorer, image, trace, gamma, shown, bases),
            drawing.draw_bound(trace, own, shown),
            bars,
            tuple(k + 1 for k in listed),
        )

    def _settings(self, query: Query) -> Settings:
        """Iterations and step size to solve with."""
        own = self.explorer.own.steps
        same = query.iterations in (None, len(own))
        # A learned step size has more digits than a slider.
        if same and (query.step_size is None or step_text([query.step_size]) == step_text(own)):
            return OWN
        return query.iterations, query.step_size
