"""One context for all windows of a large image: EM bases fitted to the whole of it.

A window alone is explained by bases of its own: what lies outside does not exist for it. Here the
backbone sees all windows once and the features that reach the EM unit are kept on disk; highway
EM runs over all of them, and the windows are then predicted with the bases found. A model that
could see the whole image at once would have these bases, up to what windows hide from the
backbone itself.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from hemnet.data.transforms import Augmentation
from hemnet.em import EMResult, e_step
from hemnet.em.mixtures import initial
from hemnet.em.solver import iterate
from hemnet.em.sources import Linear, Parts, apply_linear
from hemnet.errors import UserError
from hemnet.inference.sliding_window import Grid, read_window
from hemnet.models.segmenter import Segmenter
from hemnet.nn.em_unit import EMUnit, em_units
from hemnet.nn.geometry import Placement
from hemnet.nn.initial_bases import candidates_for, spread_positions
from hemnet.nn.plan import Plan, highway_solver

CHUNK = 8192  # positions read back at a time


class GlobalBases(NamedTuple):
    """Bases K,P before and after the last iteration: its E-step uses the first, the R-step both."""

    before: Tensor
    after: Tensor


def em_unit(model: nn.Module) -> EMUnit:
    units = em_units(model)
    if len(units) != 1:
        raise UserError(
            f"`global_bases` needs a model with one EM unit, and this one has {len(units)}. "
            "HEMNet and EMANet have one; an exported file does not show it."
        )
    return units[0]


@torch.inference_mode()
def fit_global_bases(
    model: nn.Module,
    picture: Image.Image,
    grid: Grid,
    settings: Augmentation,
    device: torch.device,
    scratch: Path | None = None,
    step: Callable[[], None] = lambda: None,
) -> GlobalBases:
    """The bases of the model's unit for a whole picture seen in windows.

    Every position counts once, as the window sees it in whose middle part it lies. `scratch` is a
    folder with room for 4·C bytes a position, the system's for temporary files where None.
    """
    unit = em_unit(model)
    placement = model.backbone.placement if isinstance(model, Segmenter) else Placement()
    with tempfile.TemporaryFile(dir=scratch) as file:
        for corner, rows, columns in _middles(grid):
            window = read_window(picture, corner, (grid.rows, grid.columns), settings)
            features = _unit_features(model, unit, window.to(device))[0]  # C,h,w
            high, wide = (
                _inside(share, pixels, count, placement)
                for share, pixels, count in zip(
                    (rows, columns), (grid.rows, grid.columns), features.shape[1:], strict=True
                )
            )
            kept = features[:, high, wide]
            file.write(kept.flatten(1).T.contiguous().float().cpu().numpy().data)
            step()
        return _fit(unit, file)


def _fit(unit: EMUnit, file: IO[bytes]) -> GlobalBases:
    channels = unit.channels

    def parts() -> Iterator[Tensor]:
        file.seek(0)
        while data := file.read(4 * channels * CHUNK):
            x = torch.from_numpy(np.frombuffer(bytearray(data), np.float32)).view(-1, channels)
            yield plan.mixture.statistics(x)

    def row(number: int) -> Tensor:
        file.seek(4 * channels * number)
        return torch.from_numpy(np.frombuffer(bytearray(file.read(4 * channels)), np.float32))

    total = file.seek(0, os.SEEK_END) // (4 * channels)
    wanted = candidates_for(len(unit.bases.value))
    numbers = spread_positions(total, wanted, torch.device("cpu")).tolist()
    x = torch.stack([row(number) for number in numbers])[None].to(unit.bases.value.device)
    plan, bases = unit.plan(), unit.starting_bases(x)
    start = initial(bases, x, plan.mixture, channels)
    *_, (before, _, after) = iterate(Parts(parts), start, plan.steps, plan.mixture)
    return GlobalBases(before[0], after[0])


@contextmanager
def using_bases(model: nn.Module, fitted: GlobalBases) -> Iterator[None]:
    """Inside, the model's unit explains every image by these bases instead of fitting its own."""

    def solver(
        x: Tensor, bases: Tensor, plan: Plan, *, linear: Linear | None, **_: Any
    ) -> EMResult:
        after = fitted.after.to(x).expand(x.shape[0], -1, -1)
        features = apply_linear(x, linear)
        return EMResult(after, e_step(features, fitted.before.to(x), mixture=plan.mixture))

    unit = em_unit(model)
    unit.solver = solver
    try:
        yield
    finally:
        unit.solver = highway_solver


class _Reached(Exception):  # noqa: N818 - no error
    """The features have arrived at the unit: the rest of the pass is not needed."""

    def __init__(self, features: Tensor) -> None:
        self.features = features


def _unit_features(model: nn.Module, unit: EMUnit, images: Tensor) -> Tensor:
    """What EM sees of images B,3,H,W: B,C,h,w."""

    def stop(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        raise _Reached(unit.features(inputs[0]))

    hook = unit.register_forward_pre_hook(stop)
    try:
        model(images)
    except _Reached as reached:
        return reached.features
    finally:
        hook.remove()
    raise RuntimeError("the model did not use its EM unit")


def _middles(
    grid: Grid,
) -> Iterator[tuple[tuple[int, int], tuple[float, float], tuple[float, float]]]:
    """Each window's corner (left, top), and from where to where it is nearest, in its pixels."""
    for top, rows in zip(grid.tops, _shares(grid.tops, grid.rows), strict=True):
        for left, columns in zip(grid.lefts, _shares(grid.lefts, grid.columns), strict=True):
            yield (left, top), rows, columns


def _shares(starts: tuple[int, ...], length: int) -> list[tuple[float, float]]:
    """The parts of windows that are nobody else's: borders in the middle of each overlap."""
    cuts = [(a + length + b) / 2 for a, b in itertools.pairwise(starts)]
    first, last = float("-inf"), float("inf")
    return [
        (low - start, high - start)
        for start, low, high in zip(starts, [first, *cuts], [*cuts, last], strict=True)
    ]


def _inside(share: tuple[float, float], pixels: int, positions: int, placement: Placement) -> slice:
    """The feature positions inside a share of a window; those on its padding are in none."""
    middles = np.arange(positions) * placement.stride + placement.offset
    first, last = np.searchsorted(middles, share)
    return slice(int(first), min(int(last), -(-pixels // placement.stride)))
