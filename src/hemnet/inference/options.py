"""How a model looks at images: one set of options for evaluation, prediction and validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hemnet.errors import UserError
from hemnet.limits import MAX_ITERATIONS, MAX_PIXELS, number, out_of_range


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
    overlap: float = number(1 / 3, least=0, below=1)
    iterations: int | None = number(None, 1, MAX_ITERATIONS)
    batch_size: int = number(1, 1, 65_536)

    def __post_init__(self) -> None:
        for name, problem in self.problems():
            raise UserError(f"`{name}` {problem}")

    def problems(self) -> Iterator[tuple[str, str]]:
        """The names of options that cannot be used, and why."""
        yield from out_of_range(self)
        if not self.scales or not all(0 < scale <= 16 for scale in self.scales):
            yield "scales", f"is {list(self.scales)}: expected numbers above 0, at most 16"
        if self.window is not None:
            sides = (self.window,) if isinstance(self.window, int) else self.window
            if not 1 <= len(sides) <= 2 or min(sides) < 1:
                yield "window", f"is {self.window}: expected a side, or height and width, from 1"

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

    whole: float = number(4.0, 0)
    global_bases: bool = False
    max_pixels: float = number(MAX_PIXELS / 1e6, 0)

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.global_bases and (self.flip or list(self.scales) != [1]):
            yield "global_bases", "sees each window once: leave out `scales` and `flip`"
