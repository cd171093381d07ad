"""The values that are accepted: the largest ones, and ranges beside the fields of dataclasses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field, fields
from typing import Any

MAX_PIXELS = 150_000_000  # of a file that is opened without being asked twice: 12,247 × 12,247
MAX_ITERATIONS = 1000  # of EM: hours, and no change any more


def number(
    default: Any,
    least: float = -math.inf,
    most: float = math.inf,
    *,
    above: float = -math.inf,
    below: float = math.inf,
) -> Any:
    """A field of a dataclass whose value, where it is a number, lies in a range."""
    return field(default=default, metadata={"range": (least, most, above, below)})


def out_of_range(values: Any) -> Iterator[tuple[str, str]]:
    """The fields of a dataclass that are out of their range, and what is wrong with each."""
    for item in fields(values):
        value = getattr(values, item.name)
        if "range" not in item.metadata or not isinstance(value, int | float):
            continue
        least, most, above, below = item.metadata["range"]
        if least <= value <= most and above < value < below:
            continue
        bounds = (("at least", least), ("above", above), ("at most", most), ("below", below))
        expected = " and ".join(f"{word} {x:.10g}" for word, x in bounds if math.isfinite(x))
        if math.isfinite(least) and math.isfinite(most):
            expected = f"{least:.10g} to {most:.10g}"
        yield item.name, f"is {shortened(value)}: expected {expected}"


def shortened(value: float) -> str:
    text = str(value)
    return text if len(text) < 30 else f"{text[:20]}… ({len(text)} characters)"
