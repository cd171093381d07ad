"""From image files to class maps, overlays and a line of JSON each.

Readers run ahead in threads. Images of one size are predicted together, others alone: nothing is
padded, so an image's result does not depend on its company. A file that cannot be read or
predicted gives a line with its error, and the rest goes on.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from hemnet.data.labels import Colour
from hemnet.data.transforms import normalise
from hemnet.errors import UserError
from hemnet.image_io import open_image, read_image, to_rgb
from hemnet.inference.evaluate import normalisation
from hemnet.inference.global_bases import fit_global_bases, using_bases
from hemnet.inference.input_files import Source
from hemnet.inference.options import PredictOptions
from hemnet.inference.prediction_files import JPEG_SIDE, save_classes, save_overlay, see_through
from hemnet.inference.probabilities import em_iterations, predict_classes
from hemnet.inference.sliding_window import Classes, smallest_type, window_grid, windowed_classes
from hemnet.progress import progress_bar

WINDOW = 769  # side of the windows of larger images
WAITING = 8  # batches' worth of images that may wait for others of their size
FAILURES = (UserError, MemoryError, torch.OutOfMemoryError, RuntimeError)
CLASSES, OVERLAYS, LINES = "classes", "overlays", "predictions.jsonl"


@dataclass
class Prediction:
    """One file's result: a picture and its classes, or the error that prevented it."""

    source: Source
    picture: Image.Image | None = None  # RGB
    classes: Classes | None = None
    error: str | None = None
    windows: int = 1
    seconds: float = 0.0  # of prediction, without reading and writing


class Predictor:
    """A model and how it is used; `predict_files` is all of it.

    Args:
        workers: threads that read files.
        upright: obey rotation marks of photographs.
        scratch: folder for what `global_bases` keeps on disk; None: the system's.
    """

    def __init__(
        self,
        model: nn.Module,
        options: PredictOptions,
        device: torch.device,
        *,
        workers: int = 2,
        upright: bool = True,
        scratch: Path | None = None,
    ) -> None:
        self.model, self.options, self.device = model.eval(), options, device
        self.workers, self.upright, self.scratch = workers, upright, scratch
        self.settings = normalisation(model)
        self.type = smallest_type(len(class_names(model)))

    def predict_files(
        self, sources: Iterable[Source], step: Callable[[int, int], None] = lambda done, of: None
    ) -> Iterator[Prediction]:
        """Predictions as they come; images wait for others of their size, so not in order.

        `step` hears of the windows of a large image: how many are done, of how many.
        """
        batch = self.options.batch_size
        waiting: dict[tuple[int, int], list[Prediction]] = {}
        with em_iterations(self.model, self.options.iterations):
            for item in self._read_ahead(sources):
                if item.error is not None:
                    yield item
                    continue
                if item.picture is None:
                    yield self._large(item, step)
                    continue
                size = item.picture.size
                waiting.setdefault(size, []).append(item)
                if len(waiting[size]) < batch:
                    if sum(map(len, waiting.values())) <= WAITING * batch:
                        continue
                    size = next(iter(waiting))  # many sizes: the one that waits longest
                yield from self._group(waiting.pop(size))
            for group in waiting.values():
                yield from self._group(group)

    def _read_ahead(self, sources: Iterable[Source]) -> Iterator[Prediction]:
        """Files in order, read by threads a few files ahead."""
        ahead = max(1, self.workers)
        futures: deque[Future[Prediction]] = deque()
        pool = ThreadPoolExecutor(ahead)
        try:
            for source in sources:
                futures.append(pool.submit(self._read, source))
                if len(futures) > 2 * ahead:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, source: Source) -> Prediction:
        """Without a picture where it is large: its pixels are read when it is its turn."""
        try:
            with self._opened(source) as file:
                if file.width * file.height > 1e6 * self.options.whole:
                    return Prediction(source)
                return Prediction(source, to_rgb(file, self.upright))
        except (UserError, MemoryError) as error:
            return Prediction(source, error=_reason(error, source))

    def _opened(self, source: Source) -> AbstractContextManager[Image.Image]:
        if source.content is not None:
            return nullcontext(Image.fromarray(read_image(source.content)))
        return open_image(source.path, max_pixels=1e6 * self.options.max_pixels)

    def _group(self, group: list[Prediction]) -> list[Prediction]:
        """Images of one size."""
        start = time.perf_counter()
        try:
            pixels = [torch.from_numpy(np.array(item.picture)) for item in group]
            images = torch.stack(pixels).permute(0, 3, 1, 2).to(self.device)
            images = normalise(images, self.settings.mean, self.settings.std)
            found = predict_classes(self.model, images, self.options)
        except FAILURES as error:
            if len(group) > 1:  # together too much, or one of them the reason
                return [result for item in group for result in self._group([item])]
            return [Prediction(group[0].source, error=_reason(error, group[0].source))]
        seconds = (time.perf_counter() - start) / len(group)
        for item, classes in zip(group, found.to(torch.int32).cpu().numpy(), strict=True):
            item.classes = classes.astype(self.type)
            item.seconds = seconds
        return group

    def _large(self, item: Prediction, step: Callable[[int, int], None]) -> Prediction:
        """An image that is read and predicted in windows."""
        options, source = self.options, item.source
        if options.window is None:
            options = replace(options, window=WINDOW)
        try:
            with self._opened(source) as file:
                picture = to_rgb(file, self.upright)
            start = time.perf_counter()
            grid = window_grid(picture.height, picture.width, options.window_size, options.overlap)
            done = itertools.count(1)
            total = len(grid) * (2 if options.global_bases else 1)

            def one_more() -> None:
                step(next(done), total)

            place = self.model, picture
            with ExitStack() as stack:
                if options.global_bases:
                    bases = fit_global_bases(
                        *place, grid, self.settings, self.device, self.scratch, one_more
                    )
                    stack.enter_context(using_bases(self.model, bases))
                item.classes = windowed_classes(
                    *place, self.settings, options, self.device, one_more
                )
        except FAILURES as error:
            return Prediction(source, error=_reason(error, source))
        item.picture, item.windows = picture, len(grid)
        item.seconds = time.perf_counter() - start
        return item


def _reason(error: BaseException, source: Source) -> str:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "alloc" in str(error):
        return f"{source.path}: not enough memory. Give a smaller `window` or `batch_size`."
    raise error


@dataclass(frozen=True)
class Writer:
    """Writes predictions into a folder: class maps, overlays, and what was found as a line."""

    out: Path
    names: Sequence[str]
    palette: Sequence[Colour]  # 256
    overlays: bool = True

    def write(self, item: Prediction) -> dict[str, Any]:
        """The line of a prediction, once its files are there."""
        try:
            return self._write(item)
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL):
                raise
            # Of this file alone: its name with the output folder's, or in its file system.
            reason = f"{item.source.path}: its results cannot be written: {error.strerror}"
            return self._write(Prediction(item.source, error=reason))

    def _write(self, item: Prediction) -> dict[str, Any]:
        line: dict[str, Any] = {"file": item.source.path.as_posix()}
        if item.classes is None or item.picture is None:
            return line | {"error": item.error}
        height, width = item.classes.shape
        classes = f"{CLASSES}/{item.source.name}.png"
        save_classes(item.classes, self.palette, self.out / classes)
        line |= {"classes": classes}
        if self.overlays:
            suffix = "png" if max(height, width) > JPEG_SIDE else "jpg"
            line["overlay"] = f"{OVERLAYS}/{item.source.name}.{suffix}"
            plain = see_through(self.names, self.palette)
            place = self.out / line["overlay"]
            save_overlay(item.picture, item.classes, self.palette, plain, place)
        line |= {"width": width, "height": height, "seconds": round(item.seconds, 4)}
        if item.windows > 1:
            line["windows"] = item.windows
        return line | {"shares": self._shares(item.classes)}

    def _shares(self, classes: Classes) -> dict[str, float]:
        """Class → its share of the pixels, the largest first, absent ones left out."""
        counts = np.zeros(len(self.names), np.int64)
        for rows in np.array_split(classes, max(1, classes.size // 2**22)):  # 64-bit inside
            counts += np.bincount(rows.reshape(-1), minlength=len(counts))
        order = np.argsort(-counts, kind="stable")
        return {self.names[k]: round(counts[k] / classes.size, 6) for k in order if counts[k]}


def write_predictions(
    predictor: Predictor, writer: Writer, sources: Sequence[Source], tell: Callable[[str], object]
) -> list[dict[str, Any]]:
    """Predict and write everything; the lines of predictions.jsonl, in the order of the inputs.

    `tell` hears why a file could not be predicted.
    """
    writer.out.mkdir(parents=True, exist_ok=True)
    place, part = writer.out / LINES, writer.out / f".{LINES}.part"
    written: list[dict[str, Any]] = []
    with progress_bar() as bar, part.open("w", encoding="utf-8") as file:
        task = bar.add_task("predicting", total=len(sources))
        windows = bar.add_task("windows", total=None, visible=False)

        def step(done: int, total: int) -> None:
            bar.update(windows, completed=done, total=total, visible=done < total)

        def keep(line: dict[str, Any]) -> None:
            file.write(_json(line) + "\n")
            written.append(line)

        waiting: dict[str, dict[str, Any]] = {}
        order = [source.path.as_posix() for source in sources]
        try:
            for line in _written(writer, predictor.predict_files(sources, step)):
                if "error" in line:
                    tell(line["error"])
                waiting[line["file"]] = line
                while len(written) < len(order) and order[len(written)] in waiting:
                    keep(waiting.pop(order[len(written)]))
                bar.advance(task)
        finally:  # after an interruption too: whole lines of images that are complete
            for line in waiting.values():
                keep(line)
            file.flush()
            os.replace(part, place)
    return written


def _json(line: dict[str, Any]) -> str:
    text = json.dumps(line, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # the name of a file that is not UTF-8: only escapes bring it back
        return json.dumps(line)
    return text


def _written(writer: Writer, items: Iterable[Prediction]) -> Iterator[dict[str, Any]]:
    """The lines of predictions whose files are written by threads, a few at a time."""
    futures: deque[Future[dict[str, Any]]] = deque()
    with ThreadPoolExecutor(2) as pool:
        for item in items:
            futures.append(pool.submit(writer.write, item))
            if len(futures) > 4:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()


def class_names(model: nn.Module) -> list[str]:
    config: Any = model.config
    return list(config.classes or (f"class {k}" for k in range(config.num_classes)))
