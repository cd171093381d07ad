"""Large images: overlapping windows, blended, in memory that does not hold the whole result.

The probabilities of a 12,000×12,000 image would fill 12 GB for 21 classes. Windows go from left
to right and from top to bottom. Columns that no later window of the row reaches are taken out of
the sum at once: their upper rows are final and become classes, their lower rows wait in `carry`
for the next row of windows. What is held is one window and a strip as high as the overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from hemnet.data.transforms import Augmentation, normalise
from hemnet.inference.options import InferenceOptions
from hemnet.inference.probabilities import predict_probabilities, window_ramp, window_starts

Classes = NDArray[np.unsignedinteger[Any]]  # H,W: uint8, or uint16 beyond 256 classes


@dataclass(frozen=True)
class Grid:
    """The windows over an image: first pixels of rows and columns, and the size of each."""

    tops: tuple[int, ...]
    lefts: tuple[int, ...]
    rows: int
    columns: int
    height: int
    width: int

    def __len__(self) -> int:
        return len(self.tops) * len(self.lefts)


def window_grid(height: int, width: int, window: tuple[int, int], overlap: float) -> Grid:
    rows, columns = min(window[0], height), min(window[1], width)
    tops = tuple(window_starts(height, rows, overlap))
    lefts = tuple(window_starts(width, columns, overlap))
    return Grid(tops, lefts, rows, columns, height, width)


@torch.inference_mode()
def windowed_classes(
    model: nn.Module,
    picture: Image.Image,
    settings: Augmentation,
    options: InferenceOptions,
    device: torch.device,
    step: Callable[[], None] = lambda: None,
) -> Classes:
    """RGB picture of any size → class of every pixel H,W; `step` is called after each window.

    Scales and flips are those of the windows. With one scale the result is that of
    `predict_classes` with the same window.
    """
    grid = window_grid(picture.height, picture.width, options.window_size, options.overlap)
    alone = replace(options, window=None)
    y_weight, x_weight = window_ramp(grid.rows, device), window_ramp(grid.columns, device)
    weight = y_weight[:, None] * x_weight
    classes: Classes | None = None
    carry = block = torch.empty(0)
    for top, final in zip(grid.tops, (*grid.tops[1:], grid.height), strict=True):
        held = grid.tops[grid.tops.index(top) - 1] + grid.rows - top if top else 0  # carried rows
        ready, rest = final - top, top + grid.rows - final  # rows complete after this row, and not
        for left, after in zip(grid.lefts, (*grid.lefts[1:], grid.width), strict=True):
            seen = _look(model, picture, (left, top), grid, settings, alone, device)
            seen.mul_(weight)
            if classes is None:
                number = seen.shape[0]
                classes = np.empty((grid.height, grid.width), smallest_type(number))
                overlap = max((grid.rows - gap for gap in _gaps(grid.tops)), default=0)
                carry = torch.zeros(number, overlap, grid.width, device=device)
            if left:  # what the window before this one left for it
                seen[:, :, : block.shape[2]] += block
            done = after - left
            complete = seen[:, :, :done]
            complete[:, :held] += carry[:, :held, left:after]
            found = complete[:, :ready].argmax(0)
            classes[top:final, left:after] = found.to(torch.int32).cpu().numpy()
            carry[:, :rest, left:after] = complete[:, ready:]
            block = seen[:, :, done:].clone()
            step()
    assert classes is not None
    return classes


def smallest_type(num_classes: int) -> type[np.uint8] | type[np.uint16]:
    return np.uint8 if num_classes <= 256 else np.uint16


def read_window(
    picture: Image.Image, corner: tuple[int, int], size: tuple[int, int], settings: Augmentation
) -> Tensor:
    """The window at (left, top) of height and width `size`, normalised: 1,3,h,w."""
    left, top = corner
    part = np.array(picture.crop((left, top, left + size[1], top + size[0])))
    pixels = torch.from_numpy(part).permute(2, 0, 1)[None]
    return normalise(pixels, settings.mean, settings.std)


def _look(
    model: nn.Module,
    picture: Image.Image,
    corner: tuple[int, int],
    grid: Grid,
    settings: Augmentation,
    options: InferenceOptions,
    device: torch.device,
) -> Tensor:
    """Class probabilities of one window: classes,rows,columns, a tensor of its own."""
    window = read_window(picture, corner, (grid.rows, grid.columns), settings)
    return predict_probabilities(model, window.to(device), options)[0]


def _gaps(starts: tuple[int, ...]) -> Iterator[int]:
    return (later - earlier for earlier, later in itertools.pairwise(starts))
