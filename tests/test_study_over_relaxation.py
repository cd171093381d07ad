"""What steps beyond plain EM gain, measured."""

import json
from pathlib import Path

import pytest
import torch

import hemnet
from hemnet.study import over_relaxation as study
from support import tiny_data


def start(seed: int = 0) -> study.Start:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, 200, 3, generator=generator, dtype=torch.float64)
    return x, 0.3 * x[0, :4], hemnet.Gaussian(0.5, "rbf")


@pytest.mark.parametrize("eta", [0.5, 1.0, 1.6])
def test_the_share_rises_from_the_first_e_step_to_the_last_iteration(eta: float) -> None:
    shares = study.rise(start(), eta, 60)
    assert len(shares) == 60
    assert 0 < float(shares[0]) < 1
    assert bool((shares.diff() >= -1e-12).all())
    assert float(shares[-1]) == 1


def test_the_first_iteration_from_which_on_a_level_is_kept() -> None:
    shares = torch.tensor([0.2, 0.995, 0.98, 0.99, 1.0])
    assert study.reached(shares, 0.99) == 4
    assert study.reached(shares, 0.1) == 1


def test_small_steps_need_more_iterations() -> None:
    found = study.compare([start(seed) for seed in range(3)], (0.2, 1.0))
    assert found["0.2"]["iterations_to_99"] > found["1.0"]["iterations_to_99"]
    assert found["0.2"]["after_3"] < found["1.0"]["after_3"]


def test_a_file_with_both_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "photograph_starts", lambda: [start()])
    monkeypatch.setattr(study, "STEP_SIZES", (1.0,))
    model = hemnet.create_model("hemnet", 3, "test_resnet", 8, channels=16, bases=4)
    saved = model.save_pretrained(tmp_path / "model")
    for number in range(3):
        tiny_data.image(tmp_path / "images" / f"{number}.png", 48, 64)
    out = tmp_path / "new" / "found.json"
    flags = ["--model", str(saved), "--images", str(tmp_path / "images"), "--count", "2"]
    study.main([str(out), *flags])
    found = json.loads(out.read_text())
    assert found["model"]["starts"] == 2
    assert found["photograph"]["step_sizes"].keys() == {"1.0"}
    with pytest.raises(SystemExit):
        study.main([str(out), "--model", str(saved)])
