"""The comparison of heads on real images, on two made ones: every way of training runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import save_file

import hemnet
from support import ROOT
from support.documents_world import pair

BACKBONE = "tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    for split, names in (("train", ("filmA_1", "filmA_2", "filmB_1")), ("val", ("filmB_2",))):
        for name in names:
            pair(root / "images" / split, root / "labels" / split, name, 10)
    network = hemnet.create_model("fcn", 11, BACKBONE, 16).backbone.network
    weights = {k: v.contiguous() for k, v in network.state_dict().items()}
    save_file(weights, root / "weights.safetensors")
    return root


WINDOWS = ["--window", "2", "2", "--short-sides", "3"]


@pytest.mark.parametrize("command", [
    ["--crop", "33"],
    ["--crop", "33", "--frozen", "--leave-out", "filmA"],
    [*WINDOWS, "--holdout"],
    [*WINDOWS, "--freeze-stages", "3"],
], ids=["whole network", "frozen crops", "windows", "windows, last stages"])  # fmt: skip
def test_all_heads_are_trained_and_judged(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import real_data

    out = tmp_path / "runs.jsonl"
    call = ["camvid", "--root", world, "--weights", world / "weights.safetensors", "--out", out]
    call += ["--store", tmp_path, "--seeds", "0", "--steps", "2", "--batch", "2", "--channels", "8"]
    monkeypatch.setattr(sys, "argv", ["real_data.py", *map(str, call), *command])
    real_data.main()
    real_data.main()  # finds its runs and adds none
    runs = [json.loads(line) for line in out.read_text().splitlines()]
    assert [run["unit"] for run in runs] == ["plain", "emanet", "hemnet"]
    assert all(0 <= run["miou"] <= 100 for run in runs)
    assert len({run["loss"] for run in runs}) == 3  # not one head under three names
