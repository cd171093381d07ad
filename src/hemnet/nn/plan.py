"""How a unit fits its bases in a pass, and what does it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor
from torch.distributed import ProcessGroup

from hemnet.em import EMResult, Mixture, highway_em
from hemnet.em.checks import Steps
from hemnet.em.sources import Linear


class Plan(NamedTuple):
    """How a pass fits its bases.

    Attributes:
        mixture: with the variance of this pass.
        steps: η of every iteration.
        backward: a mode of `highway_em`.
    """

    mixture: Mixture
    steps: Steps
    backward: str


class Solver(Protocol):
    """What fits the bases of a unit; replaceable, for looking inside (see `EMUnit.solver`)."""

    def __call__(
        self,
        x: Tensor,
        bases: Tensor,
        plan: Plan,
        *,
        weights: Tensor | None,
        linear: Linear | None,
        group: ProcessGroup | None,
    ) -> EMResult: ...


def highway_solver(
    x: Tensor,
    bases: Tensor,
    plan: Plan,
    *,
    weights: Tensor | None = None,
    linear: Linear | None = None,
    group: ProcessGroup | None = None,
) -> EMResult:
    """Highway EM, what units use."""
    mixture, steps, backward = plan
    return highway_em(
        x,
        bases,
        len(steps),
        steps,
        backward=backward,
        mixture=mixture,
        weights=weights,
        linear=linear,
        group=group,
    )
