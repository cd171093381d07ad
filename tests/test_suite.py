"""The tests themselves: what they may import of each other, and crashes."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT

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


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_what_is_shared_is_in_support(path: Path) -> None:
    for name in imported(parse(path)):
        assert name.split(".")[0] not in MODULES, f"{name}: what is shared belongs to tests/support"


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
