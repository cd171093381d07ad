"""An option that nothing reads would promise what is not done."""

import ast
from dataclasses import fields

import pytest

from hemnet.app.limits import Limits
from hemnet.inference.options import PredictOptions
from hemnet.training import config
from support import ROOT

SECTIONS = [kind for name, kind in vars(config).items() if name.endswith("Config")]


def read_names() -> set[str]:
    """Attributes that some line of the package reads."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.add(node.attr)
    return found


@pytest.mark.parametrize("kind", [PredictOptions, Limits, *SECTIONS])
def test_every_option_is_read(kind: type) -> None:
    assert {field.name for field in fields(kind)} <= read_names()
