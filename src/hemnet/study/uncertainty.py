"""Statistics of a few seeds: means, a pooled standard deviation, and 95% intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """A value with the half width of its 95% interval."""

    value: float
    margin: float

    def to_json(self) -> dict[str, Any]:
        """`clear`: whether the interval leaves out 0."""
        clear = abs(self.value) > self.margin
        return {"value": self.value, "margin": self.margin, "clear": clear}


def summary_of(runs: Sequence[float]) -> dict[str, Any]:
    """Mean and sample standard deviation of runs, None where there are too few, and the runs."""
    return {
        "mean": float(np.mean(runs)) if runs else None,
        "sd": float(np.std(runs, ddof=1)) if len(runs) > 1 else None,
        "runs": list(runs),
    }


@dataclass(frozen=True)
class Noise:
    """The standard deviation of runs that differ only in their seed, pooled over groups."""

    sd: float
    freedom: int

    def margin(self, weights: Iterable[float]) -> float:
        """Half width of the 95% interval of Σ wᵢ yᵢ over single runs y."""
        return t_critical(self.freedom) * self.sd * math.sqrt(sum(w * w for w in weights))

    def least_difference(self, runs: int) -> float:
        """The smallest significant (95%) difference between two means of this many runs."""
        return self.margin([1 / runs] * runs + [-1 / runs] * runs)


def pooled(groups: Iterable[Sequence[float]]) -> Noise | None:
    """One standard deviation for all groups; None if no group has two values."""
    several = [np.asarray(values) for values in groups if len(values) > 1]
    if not several:
        return None
    freedom = sum(len(values) - 1 for values in several)
    return _noise(np.concatenate([values - values.mean() for values in several]), freedom)


def pooled_within_seeds(groups: Sequence[Sequence[float]]) -> Noise | None:
    """`pooled` for runs y[group][seed] with the effect of each seed on all groups removed.

    Runs of one seed share weights, images and order; what they share cancels in comparisons of
    groups. With missing runs this is `pooled`.
    """
    seeds = len(groups[0]) if groups else 0
    if len(groups) < 2 or seeds < 2 or any(len(values) != seeds for values in groups):
        return pooled(groups)
    y = np.asarray(groups)
    rest = y - y.mean(1, keepdims=True) - y.mean(0) + y.mean()
    return _noise(rest, (len(groups) - 1) * (seeds - 1))


def _noise(residuals: NDArray[np.float64], freedom: int) -> Noise:
    return Noise(float(np.sqrt((residuals**2).sum() / freedom)), freedom)


def t_critical(freedom: int, level: float = 0.95) -> float:
    """Student's two-sided quantile."""
    from scipy.stats import t  # of the extra "study"

    return float(t.ppf(0.5 + level / 2, freedom))


def difference(one: Sequence[float], other: Sequence[float], noise: Noise) -> Estimate:
    """Mean of one minus mean of the other."""
    weights = [1 / len(one)] * len(one) + [1 / len(other)] * len(other)
    return Estimate(float(np.mean(one) - np.mean(other)), noise.margin(weights))


def slope(x: Sequence[float], y: Sequence[float], noise: Noise) -> Estimate:
    """Least-squares slope of single runs y over x."""
    centred = np.asarray(x) - np.mean(x)
    weights = centred / (centred**2).sum()
    return Estimate(float(weights @ np.asarray(y)), noise.margin(weights))


def interaction(
    cells: Mapping[tuple[float, float], Sequence[float]], noise: Noise
) -> Estimate | None:
    """How much the slope over u changes with v, in a table of (u, v) → runs.

    None if a cell is missing: the closed form needs a complete table.
    """
    us, vs = (sorted({key[i] for key in cells}) for i in (0, 1))
    if len(cells) != len(us) * len(vs) or len(us) < 2 or len(vs) < 2:
        return None
    products = {(u, v): (u - np.mean(us)) * (v - np.mean(vs)) for u, v in cells}
    total = sum(p * p for p in products.values())
    value = sum(p * np.mean(cells[key]) for key, p in products.items()) / total
    weights = [float(p / total / len(cells[k])) for k, p in products.items() for _ in cells[k]]
    return Estimate(float(value), noise.margin(weights))
