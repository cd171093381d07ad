"""The command line: help, exit codes, and what the commands leave behind."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from hemnet import cli
from hemnet.errors import UserError


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(args)
    code = exit_info.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_with_an_example(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--help") == 0
    assert "example" in capsys.readouterr().out


def test_no_command_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "COMMAND" in capsys.readouterr().err


def test_user_errors_are_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise UserError("the file is missing")

    monkeypatch.setattr("hemnet.commands.demo.run", fail)
    assert run("demo") == 2
    assert capsys.readouterr().err == "hemnet: the file is missing\n"


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--out", str(tmp_path / "a" / "b")) == 0
    assert "ELBO" in capsys.readouterr().out
    curves = json.loads((tmp_path / "a/b/elbo.json").read_text())
    for values in curves.values():
        assert all(later >= earlier for earlier, later in itertools.pairwise(values))
    for name in ("iterations.png", "elbo.png"):
        with Image.open(tmp_path / "a/b" / name) as picture:
            assert picture.width > 500


@pytest.mark.parametrize("option", [("--bases", "0"), ("--step-size", "2")])
def test_demo_refuses(option: tuple[str, str], tmp_path: Path) -> None:
    assert run("demo", "--out", str(tmp_path), *option) == 2


def test_demo_says_when_it_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run("demo", "--out", str(tmp_path / "file")) == 2
    assert "cannot write to" in capsys.readouterr().err


def test_module_can_be_executed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hemnet", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("hemnet 0.")
