"""Looks after a unit's bases: keeps what `health` reads, and warns once when they have gone bad."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hemnet.nn.health import BasesWarning, Health

KEPT_IMAGES = 4  # images whose sample is kept
CHECK_EVERY = 100  # training passes between two looks
WARM_UP = 20  # passes before the bases are judged at all


class HealthWatch:
    """Of one unit. Nothing of it is saved with the unit.

    Attributes:
        seen: a sample B,n,C of the last pass's input and its weights B,n; None before any pass.
    """

    def __init__(self) -> None:
        self.seen: tuple[Tensor, Tensor | None] | None = None
        self._passes = 0
        self._warned = False

    def see(self, sample: Tensor, weights: Tensor | None, training: bool) -> bool:
        """Keep the sample of a pass; whether it is time for another look."""
        self.seen = sample[:KEPT_IMAGES], None if weights is None else weights[:KEPT_IMAGES]
        if not training or torch.compiler.is_compiling():
            return False
        self._passes += 1
        return self._passes % CHECK_EVERY == 0

    def look(self, unit: str, read: Callable[[], Health], follows: bool) -> None:
        """Warn, once, if `read` finds bad health; `follows`: σ² already follows the features."""
        if self._warned or self._passes < WARM_UP:
            return
        health = read()
        if health.state != "healthy" and health.bases > 1:  # one basis is a global mean by choice
            self._warned = True
            warnings.warn(f"{unit}: {_advice(health, follows)}", BasesWarning, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "seen": None}  # a copy of features is not part of the unit


def _advice(health: Health, follows: bool) -> str:
    """What happened and what to do."""
    if health.state == "collapsed":
        cure = "Check what reaches the unit: it hardly varies within an image"
        return (
            f"the bases have collapsed into one ({health}): every position is rebuilt as the same "
            "vector, and the unit is no more than a global mean. "
            + (cure if follows else 'Use variance="auto", or a variance below λ')
        )
    cure = "If training stalls, use fewer bases or a fixed variance above this σ²"
    return (
        f"the responsibilities have saturated ({health}), so that the E-step passes no gradient. "
        + (cure if follows else 'Use variance="auto", or a larger variance')
    )
