"""The command line: help, exit codes, and what the commands leave behind."""

import subprocess
import sys

import pytest

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


def test_module_can_be_executed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hemnet", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("hemnet 0.")
