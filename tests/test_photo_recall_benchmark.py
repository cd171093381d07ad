"""Recall on photographs, the benchmark: what its mosaics say, and that units are trained on it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import hemnet
from hemnet.data import VOID
from support import ROOT
from support.documents_world import voc


@pytest.fixture
def photo_recall(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import photo_recall

    return photo_recall


def test_every_asked_tile_has_its_photographs_marked_tile(photo_recall: Any) -> None:
    """With photographs that are a colour each, every label can be looked up in the mosaic."""
    draw = torch.Generator().manual_seed(0)
    colours = torch.arange(8) * 20 + 40
    plain = [torch.full((3, 200, 240), int(c), dtype=torch.uint8) for c in colours]
    tiles = [photo_recall.tiles_of(image, draw) for image in plain]
    found = photo_recall.mosaics(tiles, 5, draw)
    side, corner, middle = photo_recall.TILE, 1, photo_recall.TILE // 2
    for image, labels in zip(found.features[:, 0], found.labels, strict=True):
        ground, centre = image[corner::side, corner::side], image[middle::side, middle::side]
        label = labels[corner::side, corner::side]
        asked = label != VOID
        assert asked.sum() == photo_recall.PHOTOGRAPHS
        assert torch.equal(ground[asked], centre[asked])  # not marked
        disc = dict(zip(ground[~asked].tolist(), centre[~asked].tolist(), strict=True))
        wanted = [disc[colour] == 255 for colour in ground[asked].tolist()]
        assert wanted == label[asked].bool().tolist()


def test_the_majority_is_counted_in_photographs(photo_recall: Any) -> None:
    labels = torch.tensor([[[0, 1, 1, VOID]], [[0, 0, 1, VOID]]])
    assert photo_recall.majority(labels) == pytest.approx(100 * 4 / 6)


def test_units_are_trained_and_judged(
    photo_recall: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    voc(tmp_path / "VOCdevkit" / "VOC2012")
    network = hemnet.create_model("fcn", 2, "test_resnet", 16).backbone.network
    weights = {k: v.contiguous() for k, v in network.state_dict().items()}
    save_file(weights, tmp_path / "weights.safetensors")
    out = tmp_path / "runs.jsonl"
    monkeypatch.setattr(photo_recall, "PHOTOGRAPHS", 1)
    monkeypatch.setattr(photo_recall, "ROWS", 1)
    monkeypatch.setattr(photo_recall, "COLUMNS", 2)
    monkeypatch.setattr(photo_recall, "TEST_MOSAICS", 4)
    call = [
        "learn",
        "--root",
        tmp_path / "VOCdevkit",
        "--weights",
        tmp_path / "weights.safetensors",
    ]
    call += ["--backbone", "test_resnet", "--out", out, "--seeds", "0", "--steps", "2"]
    call += ["--units", "plain", "hemnet:bases=4"]
    monkeypatch.setattr(sys, "argv", ["photo_recall.py", *map(str, call)])
    photo_recall.main()
    photo_recall.main()  # finds its runs and adds none
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    assert [run["unit"] for run in runs] == ["plain", "hemnet:bases=4"]
    assert all(0 <= run["accuracy"] <= 100 for run in runs)
    monkeypatch.setattr(sys, "argv", ["photo_recall.py", "table", "--out", str(out)])
    photo_recall.main()
