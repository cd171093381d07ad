"""Errors name parameters of the library; the command line shows its flags instead."""

import ast
import re

import pytest

from hemnet import cli
from hemnet.cli import flag_names
from support import ROOT


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data", "check", "voc"), "give it as --root."),
        (("evaluate", "camvid", "--data.name", "camvid"), "give it as --data.root."),
        (
            ("train", "--data.name", "voc", "--out", "run", "--preset", "cpu"),
            "give it as --data.root.",
        ),
        (
            ("data", "check", "camvid", "--root", ".", "--split", "test", "--classes", "2"),
            "--classes is not for",
        ),
    ],
)
def test_parameters_become_flags(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_values_are_kept_and_switches_have_none(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.txt").write_text("a.jpg a.png\nb.jpg b.png\n")
    for name in ("a.jpg", "a.png"):
        (tmp_path / name).write_bytes(b"")
    commands = {
        "--skip-missing.": ("data", "show", "list", "--root", "pairs.txt", "--classes", "2"),
        "--data.skip_missing true.": (
            *("train", "--data.name", "list", "--data.root", "pairs.txt", "--data.classes", "2"),
            *("--data.split", "pairs", "--out", "run", "--preset", "cpu"),
        ),
    }
    for flag, words in commands.items():
        with pytest.raises(SystemExit):
            cli.main(words)
        assert f"Or use the 1 that are complete: {flag}" in capsys.readouterr().err


def strings(path):
    """The texts of a module but its docstrings, each with its line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documents = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and id(node) not in documents:
            yield node.lineno, text


def test_the_library_names_no_flags():
    """But for whole commands, what reads settings, and the explorer, which a command starts."""
    package = ROOT / "src" / "hemnet"
    left_out = {"report/page.py", "training/config_parser.py", "study/photograph.py"}
    left_out |= {"study/over_relaxation.py"}  # a program of its own
    left_out |= {"data/class_lists.py", "data/folders.py"}
    found = [
        f"{name}:{line}: {text}"
        for path in sorted(package.rglob("*.py"))
        if not (name := path.relative_to(package).as_posix()).startswith(("cli/", "app/"))
        and name not in left_out
        for line, text in strings(path)
        if re.search(r"(^|[\s(`])--[a-z]", text)
    ]
    assert not found, "\n".join(found)


def test_a_table_is_written_as_on_the_command_line():
    flag_names.command_flags.clear()
    flag_names.command_flags["--data.label_map"] = None
    try:
        text = flag_names.with_flags("`label_map={0: 0, 255: 1}` or `nothing=1`")
    finally:
        flag_names.command_flags.clear()
    assert text == "--data.label_map 0:0,255:1 or `nothing=1`"
