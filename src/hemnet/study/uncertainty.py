"""What few seeds can tell: means, a pooled spread, and intervals that follow from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev


@dataclass(frozen=True)
class Estimate:
    """A value with the half width of its 95% interval."""

    value: float
    margin: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return abs(self.value) > self.margin

    def __str__(self) -> str:
        return f"{self.value:+.2f} ± {self.margin:.2f}"


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; None for the latter of one value."""
    return fmean(values), stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Noise:
    """The spread of runs that differ in their seed alone, pooled over the groups of a table."""

    sd: float
    freedom: int

    @property
    def critical(self) -> float:
        return t_critical(self.freedom)

    def margin(self, weights: Iterable[float]) -> float:
        """Half width of the 95% interval of Σ wᵢ yᵢ over single runs y."""
        return self.critical * self.sd * math.sqrt(sum(w * w for w in weights))

    def least_difference(self, runs: int) -> float:
        """Smallest difference between two means of so many runs that 95% would call one."""
        return self.margin([1 / runs] * runs + [-1 / runs] * runs)


def pooled(groups: Iterable[Sequence[float]]) -> Noise | None:
    """One spread for all groups; None where no group has two values."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            squares += (len(values) - 1) * stdev(values) ** 2
            freedom += len(values) - 1
    return Noise(math.sqrt(squares / freedom), freedom) if freedom else None


def pooled_within_seeds(groups: Sequence[Sequence[float]]) -> Noise | None:
    """The spread of groups of runs y[group][seed] once what a seed does to all groups is taken out.

    Runs of one seed share weights, images and order. What they have in common cancels in every
    comparison of groups, so it is no noise of it. Without gaps only: otherwise `pooled`.
    """
    seeds = len(groups[0]) if groups else 0
    if len(groups) < 2 or seeds < 2 or any(len(values) != seeds for values in groups):
        return pooled(groups)
    grand = fmean(fmean(values) for values in groups)
    common = [fmean(values[s] for values in groups) - grand for s in range(seeds)]
    squares = sum(
        (y - fmean(values) - shift) ** 2
        for values in groups
        for y, shift in zip(values, common, strict=True)
    )
    freedom = (len(groups) - 1) * (seeds - 1)
    return Noise(math.sqrt(squares / freedom), freedom)


def t_critical(freedom: int, level: float = 0.95) -> float:
    """Student's two-sided quantile, by Hill's expansion: within 1% from three degrees on."""
    exact = {1: 12.706, 2: 4.303}
    if level == 0.95 and freedom in exact:
        return exact[freedom]
    z = NormalDist().inv_cdf(0.5 + level / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def difference(one: Sequence[float], other: Sequence[float], noise: Noise) -> Estimate:
    """Mean of one minus mean of the other."""
    weights = [1 / len(one)] * len(one) + [1 / len(other)] * len(other)
    return Estimate(fmean(one) - fmean(other), noise.margin(weights))


def slope(x: Sequence[float], y: Sequence[float], noise: Noise) -> Estimate:
    """Least-squares slope of single runs y over x."""
    centre = fmean(x)
    spread = sum((v - centre) ** 2 for v in x)
    weights = [(v - centre) / spread for v in x]
    return Estimate(sum(w * v for w, v in zip(weights, y, strict=True)), noise.margin(weights))


def interaction(
    cells: Mapping[tuple[float, float], Sequence[float]], noise: Noise
) -> Estimate | None:
    """How much the slope over u changes with v, in a complete table of (u, v) → runs.

    None where a cell is missing: the least-squares answer is this simple only without gaps.
    """
    us, vs = (sorted({key[i] for key in cells}) for i in (0, 1))
    if len(cells) != len(us) * len(vs) or len(us) < 2 or len(vs) < 2:
        return None
    mean_u, mean_v = fmean(us), fmean(vs)
    products = {(u, v): (u - mean_u) * (v - mean_v) for u, v in cells}
    total = sum(p * p for p in products.values())
    value = sum(p * fmean(cells[key]) for key, p in products.items()) / total
    weights = [p / total / len(cells[k]) for k, p in products.items() for _ in cells[k]]
    return Estimate(value, noise.margin(weights))
