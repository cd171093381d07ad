"""The unit learns what no mean over all positions can say: recall, a few seconds of it."""

from __future__ import annotations

from typing import Any

import pytest

from support import ROOT

GROUPS, STEPS, SEED = 3, 200, 2


@pytest.fixture
def recall(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import recall

    monkeypatch.setattr(recall, "RATE", 5e-3)
    monkeypatch.setattr(recall, "TEST_SAMPLES", 64)
    return recall


def learns(recall: Any, unit: str, bases: int | None) -> bool:
    found = recall.learn(recall.Case(unit, {}, bases, GROUPS, SEED, STEPS))
    return bool(found["accuracy"] > recall.majority(GROUPS) + 15)


def test_the_unit_as_shipped_recalls(recall: Any) -> None:
    assert learns(recall, "hem", 16)


@pytest.mark.filterwarnings("ignore::hemnet.BasesWarning")
def test_a_global_mean_does_not(recall: Any) -> None:
    assert not learns(recall, "mean", None)
