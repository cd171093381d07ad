"""A solver for EM units that keeps what they see and what comes of it."""

from typing import Any

from torch import Tensor

from hemnet.em import EMResult
from hemnet.em.sources import Linear, apply_linear
from hemnet.nn.plan import Plan, highway_solver


class RecordingSolver:
    """Highway EM on the features behind the unit's linear map, which it computes and keeps."""

    def __init__(self) -> None:
        self.features: list[Tensor] = []  # B,N,C of every pass
        self.results: list[EMResult] = []

    def __call__(
        self, x: Tensor, bases: Tensor, plan: Plan, *, linear: Linear | None, **more: Any
    ) -> EMResult:
        self.features.append(apply_linear(x, linear))
        self.results.append(highway_solver(self.features[-1], bases, plan, **more))
        return self.results[-1]
