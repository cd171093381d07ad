"""The tests themselves: what they may import of each other."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT

TESTS = sorted((ROOT / "tests").rglob("*.py"))
MODULES = {path.stem for path in TESTS if path.parent.name == "tests"}


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """The dotted names that a file imports, one tuple of parts for each."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")
            yield from ((*module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_what_is_shared_is_in_support(path: Path) -> None:
    for name in imported(path):
        where = ".".join(name)
        assert name[0] not in MODULES, f"imports {where}: what is shared belongs to tests/support"
