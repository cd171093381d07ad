"""`hemnet demo`: training, evaluation and report in one command."""

from pathlib import Path

import pytest

from hemnet.cli.demo import demo_config
from hemnet.training.config import check_config
from support.command_line import run


def test_a_demo_of_three_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a" / "demo"
    assert run("demo", "--out", str(out), "--steps", "3") == 0
    text = capsys.readouterr().out
    assert "mIoU" in text
    assert str(out / "report.html") in text
    assert (out / "report.html").stat().st_size > 50_000
    assert (out / "model/model.safetensors").is_file()
    assert run("demo", "--out", str(out), "--steps", "3") == 0  # again: shown, not trained
    assert capsys.readouterr().out.splitlines()[-3:] == text.splitlines()[-3:]
    assert run("demo", "--out", str(out), "--steps", "4") == 2  # another one is refused
    assert run("evaluate", str(out), "--data.length", "2", "--workers", "0") == 0


def test_the_recipe_is_a_valid_configuration() -> None:
    check_config(demo_config())


def test_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", str(tmp_path), "--steps", "0") == 2
    (tmp_path / "file").write_text("")
    assert run("demo", "--out", str(tmp_path / "file"), "--steps", "1") == 2
    assert "Traceback" not in capsys.readouterr().err
