"""What is worked out before the first step: dry runs, the rate test, presets, memory."""

import math
import re
from pathlib import Path

import pytest

from hemnet import cli
from hemnet.errors import UserError
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import read_config
from hemnet.training.loop import train
from hemnet.training.memory import need, passes
from hemnet.training.presets import PRESETS
from hemnet.training.trial import find_lr, propose
from support.tiny_runs import tiny_config


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(["train", *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def flags(config: TrainConfig, tmp_path: Path) -> list[str]:
    from hemnet.training.config_parser import dump_config

    (tmp_path / "c.yaml").write_text(dump_config(config))
    return ["--config", str(tmp_path / "c.yaml")]


def test_a_dry_run_answers_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = flags(tiny_config("--optim.steps", "400"), tmp_path)
    assert command(*arguments, "--dry-run") == 0
    out = capsys.readouterr().out
    names = [line.split()[0] for line in out.splitlines()]
    assert names[:3] == ["data", "classes", "network"]
    assert names[-5:] == ["cost", "memory", "speed", "total", "dry"]
    assert "10 images of train, 3 of val" in out
    assert "400 steps of 4 crops" in out
    assert "GFLOPs forward for a crop of" in out
    assert re.search(r"total +about \d+:\d\d:\d\d for 400 steps", out)
    assert "validation" in out
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    assert command(*arguments, "--dry-run", "--resume", "--out", "x") == 2


def test_the_rate_test_proposes_a_rate_that_learns(capsys: pytest.CaptureFixture[str]) -> None:
    found = find_lr(tiny_config("--optim.name", "adamw"))
    assert 1e-6 < found.best < 1
    assert found.best < found.rates[found.losses.index(min(found.losses))]
    assert len(found.rates) == len(found.losses) > 10
    assert "loss" in capsys.readouterr().out


def test_the_proposal_is_before_the_loss_leaves() -> None:
    rates = [10.0 ** (k / 10 - 6) for k in range(60)]
    losses = [2 - 1.5 / (1 + math.exp(-(math.log10(r) + 3.5) * 4)) for r in rates]
    losses = [
        a + (5 * (r / 0.1) ** 2 if r > 0.02 else 0) for a, r in zip(losses, rates, strict=True)
    ]
    best = propose(rates, losses)
    assert 1e-4 < best < 1e-3, "where it falls fastest"


def test_presets_are_valid_and_give_way(tmp_path: Path) -> None:
    for name in PRESETS:
        config = read_config(preset=name)
        assert config.data.name == "folder"
    (tmp_path / "c.yaml").write_text("optim: {lr: 0.5}\n")
    config = read_config(tmp_path / "c.yaml", ["--model.backbone=resnet18"], preset="cpu")
    assert config.optim.lr == 0.5
    assert config.optim.name == "adamw"
    assert config.model.backbone == "resnet18"


def test_flags_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--preset", "cpu") == 2
    assert "--out RUN" in capsys.readouterr().err
    assert command("--out", "x") == 2
    assert "--preset cpu or --preset gpu" in capsys.readouterr().err
    assert command("--preset", "cpu", "--resume", "--out", str(tmp_path)) == 2
    assert command("--preset", "cpu", "--out", str(tmp_path / "run")) == 2
    assert "give it as --data.root" in capsys.readouterr().err


def test_passes_are_the_fewest_that_fit() -> None:
    import torch

    config = tiny_config("--optim.batch_size", "8", "--optim.accumulate", "auto")
    wanted = need(config, 11)
    assert wanted.crop > 0
    for crops, expected in ((8, 1), (4, 2), (3, 4), (1, 8)):
        config.optim.memory_gib = (wanted.of(crops) + 1) / 2**30
        assert passes(config, 11, 1, torch.device("cpu"))[0] == expected
    config.optim.memory_gib = wanted.of(1) / 2**31
    with pytest.raises(UserError, match=r"one crop of .* needs about"):
        passes(config, 11, 1, torch.device("cpu"))


def test_a_run_chooses_its_passes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config("--optim.accumulate", "auto", "--optim.steps", "2")
    config.optim.memory_gib = (need(config, 11).of(config.optim.batch_size // 2) + 1) / 2**30
    train(config, tmp_path)
    assert read_config(tmp_path / "config.yaml").optim.accumulate == 2
    assert "memory" in capsys.readouterr().err
    config.optim.memory_gib = 100.0
    with pytest.raises(UserError, match=r"optim.memory_gib"):
        train(config, tmp_path, resume=True)
    config = read_config(tmp_path / "config.yaml", ["--optim.accumulate", "auto"])
    assert train(config, tmp_path, resume=True, quiet=True).finished
