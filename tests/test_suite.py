"""The tests themselves: what they may import of each other, private names, and crashes."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT
from support.longest_first import LONGEST

TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULES = {path.stem for path in TESTS if path.parent.name == "tests"}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def private_names() -> set[str]:
    """What the package's modules and classes define for themselves alone."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(parse(path)):
            if isinstance(node, (ast.Module, ast.ClassDef)):
                found |= {name for part in node.body for name in defined(part)}
    return {name for name in found if name.strip("_") and name[0] == "_" != name[1]}


def defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name))


def used(tree: ast.Module) -> Iterator[str]:
    """Names that a file takes from elsewhere: imported, read, or replaced by `setattr`."""
    for name in imported(tree):
        yield from name.split(".")
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield name
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[_, ast.Constant(name), *_]):
                yield name


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_what_is_shared_is_in_support(path: Path) -> None:
    for name in imported(parse(path)):
        assert name.split(".")[0] not in MODULES, f"{name}: what is shared belongs to tests/support"


def test_private_names_are_left_alone() -> None:
    """A private name can be changed without a look at the tests."""
    names = private_names() - {"_replace"}  # which named tuples have for everyone
    found = {(path.name, name) for path in TESTS for name in used(parse(path)) if name in names}
    assert not found


def test_the_longest_files_are_there() -> None:
    assert set(LONGEST) < MODULES


def test_a_crash_shows_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "test_crash.py").write_text(
        "import ctypes\n\ndef test_it():\n    ctypes.string_at(0)  # the place\n"
    )
    command = [sys.executable, "-m", "pytest", "-n", "1", "--max-worker-restart", "0"]
    done = subprocess.run(
        [*command, "-p", "no:faulthandler", "-p", "support.crashes", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "test_crash.py::test_it" in done.stdout
    assert 'test_crash.py", line 4 in test_it' in done.stdout
