"""How a model looks at images: one set of options for evaluation, prediction and validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hemnet.errors import UserError
from hemnet.limits import MAX_ITERATIONS, MAX_PIXELS


@dataclass
class InferenceOptions:
    """The default is one look at every image as it is.

    Args:
        scales: image scales whose probabilities are averaged
        flip: average with the mirrored image too
        window: side, or height and width, of a sliding window; null for whole images
        overlap: share of the window that neighbours have in common
        iterations: of the EM unit; null for the model's own
        batch_size: images seen at once, where neighbours have the same size
    """

    scales: tuple[float, ...] = (1.0,)
    flip: bool = False
    window: int | tuple[int, int] | None = None
    overlap: float = 1 / 3
    iterations: int | None = None
    batch_size: int = 1

    def __post_init__(self) -> None:
        for name, problem in self.problems():
            raise UserError(f"`{name}` {problem}")

    def problems(self) -> Iterator[tuple[str, str]]:
        """The names of options that cannot be used, and why."""
        if not self.scales or not all(0 < scale <= 16 for scale in self.scales):
            yield "scales", f"is {list(self.scales)}: expected numbers above 0, at most 16"
        if self.window is not None:
            sides = (self.window,) if isinstance(self.window, int) else self.window
            if not 1 <= len(sides) <= 2 or min(sides) < 1:
                yield "window", f"is {self.window}: expected a side, or height and width, from 1"
        if not 0 <= self.overlap < 1:
            yield "overlap", f"is {self.overlap}: expected a share from 0 to below 1"
        if self.iterations is not None and not 1 <= self.iterations <= MAX_ITERATIONS:
            yield "iterations", f"is {self.iterations}: expected 1 to {MAX_ITERATIONS}"
        if not 1 <= self.batch_size <= 65_536:
            yield "batch_size", f"is {self.batch_size}: expected 1 to 65536"

    @property
    def plain(self) -> bool:
        """Whether an image is seen once, as it is."""
        return list(self.scales) == [1] and not self.flip and self.window is None

    @property
    def window_size(self) -> tuple[int, int]:
        """Height and width of the window."""
        if self.window is None:
            raise ValueError("no sliding window was asked for")
        return (self.window, self.window) if isinstance(self.window, int) else self.window


@dataclass
class PredictOptions(InferenceOptions):
    """How files of any size are predicted.

    Args:
        whole: megapixels up to which an image is seen at once; larger ones in windows
        global_bases: fit the EM bases to the whole of a large image first, so that its windows
            share one context; takes twice the time, and 4 bytes a channel and position on disk
        max_pixels: megapixels above which a file, which may be made to fill the memory, is refused
    """

    whole: float = 4.0
    global_bases: bool = False
    max_pixels: float = MAX_PIXELS / 1e6

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        for name in ("whole", "max_pixels"):
            if not getattr(self, name) >= 0:
                yield name, f"is {getattr(self, name)}: expected megapixels, 0 or more"
        if self.global_bases and (self.flip or list(self.scales) != [1]):
            yield "global_bases", "sees each window once: leave out `scales` and `flip`"
