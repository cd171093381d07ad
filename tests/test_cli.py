"""The command line: help, exit codes, and what the commands leave behind."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from hemnet import cli
from hemnet.errors import UserError
from support.command_line import run


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

    monkeypatch.setattr("hemnet.cli.demo.run", fail)
    assert run("demo") == 2
    assert capsys.readouterr().err == "hemnet: the file is missing\n"


def test_module_can_be_executed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hemnet", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("hemnet 0.")


HEAVY = ("torch", "numpy", "PIL", "timm", "torchvision", "matplotlib", "jsonargparse", "accelerate")


def modules_after(code: str) -> set[str]:
    """The top-level packages that a new interpreter has imported after running `code`."""
    code += "\nimport sys; print('\\n'.join({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def test_help_imports_nothing_heavy() -> None:
    listing = ("data", "train")  # their help names what the registries hold
    tree = [[name] for name in cli.COMMANDS if name not in listing]
    for name, subparser in cli.subcommands(cli.build_parser()).items():
        tree += [[name, inner] for inner in cli.subcommands(subparser)]
    assert ["data", "check"] in tree
    code = (
        "from contextlib import suppress\n"
        "from hemnet import cli\n"
        f"for words in {[[], *tree]!r}:\n"
        "    with suppress(SystemExit):\n"
        "        cli.main([*words, '--help'])\n"
    )
    assert not modules_after(code) & set(HEAVY)


def test_importing_hemnet_imports_torch_when_something_is_used() -> None:
    assert "torch" not in modules_after("import hemnet; hemnet.__version__; dir(hemnet)")
    assert "torch" in modules_after("import hemnet; hemnet.HighwayEMAttention")


def test_lazy_names_are_complete_and_typed() -> None:
    """Completion lists every name, type checkers see each one's own type."""
    import hemnet

    assert set(hemnet.__all__) <= set(dir(hemnet))
    for name in hemnet.__all__:
        assert getattr(hemnet, name) is not None, name
    source = ast.parse(Path(hemnet.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.asname or alias.name: node.module
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name in hemnet.__all__:
        assert name in typed, f"{name} has no import under TYPE_CHECKING"
        module = importlib.import_module(typed[name] or "")
        assert getattr(hemnet, name) is getattr(module, name, module), name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hemnet.nonsense
    namespace: dict[str, object] = {}
    exec("from hemnet import *", namespace)
    assert set(hemnet.__all__) <= set(namespace)


@pytest.mark.parametrize(
    "words, old, new, kept",
    [
        (["train", "--find-rate"], "--find-rate", "--find-lr", "find_lr"),
        (
            ["evaluate", "m", "--data.partial"],
            "--data.partial",
            "--data.skip_missing",
            "skip_missing",
        ),
        (["data", "check", "voc", "--partial"], "--partial", "--skip-missing", "skip_missing"),
        (["data", "show", "voc", "--partial"], "--partial", "--skip-missing", "skip_missing"),
    ],
)
def test_old_flags_are_read_with_one_warning(words, old, new, kept, caplog):
    args = cli.build_parser().parse_args(words)
    assert getattr(args, kept) is True
    assert [r.getMessage() for r in caplog.records] == [
        f"{old} is now called {new}; the old name still works"
    ]
