"""Problems for property tests: features, bases and settings in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    x: Tensor  # B,N,C
    bases: Tensor  # K,C or B,K,C
    variance: float
    kernel: str


@st.composite
def problems(draw: st.DrawFn, kernels: tuple[str, ...] = ("dot", "rbf")) -> Problem:
    batch, positions = draw(st.integers(1, 3)), draw(st.integers(1, 40))
    channels, count = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([0.1, 1.0, 4.0]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = scale * normal(batch, positions, channels) + normal(batch, 1, channels)
    shape = (count, channels) if draw(st.booleans()) else (batch, count, channels)
    return Problem(
        x, normal(*shape), draw(st.sampled_from([0.3, 1.0, 3.0])), draw(st.sampled_from(kernels))
    )


step_sizes = st.floats(0.01, 1.0, exclude_min=False)
