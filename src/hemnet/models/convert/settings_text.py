"""Read mmsegmentation's configurations, which are Python files, without running them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any


def read_settings(text: str) -> dict[str, Any]:
    """The values that Python text assigns: literals, `dict(…)` and names assigned before.

    Anything else is left out, so that a missing key means not known.
    """
    try:
        lines = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, Any] = {}
    for line in lines:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = _value(line.value, found)
            except (_UnknownError, RecursionError):
                continue
    return found


def find_typed(value: Any, kind: str) -> dict[str, Any] | None:
    """The first dictionary inside a value that has this `type`."""
    return next((d for d in _dictionaries(value) if d.get("type") == kind), None)


def _dictionaries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _dictionaries(part)


class _UnknownError(Exception):
    pass


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        values = [_value(part, names) for part in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, names)
        if isinstance(value, int | float):
            return -value
    pairs: list[tuple[Any, ast.expr]] | None = None
    if isinstance(node, ast.Dict):
        pairs = [
            (key.value, value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        ]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id != "dict" or node.args:
            raise _UnknownError
        pairs = [(word.arg, word.value) for word in node.keywords if word.arg]
    if pairs is None:
        raise _UnknownError
    found = {}
    for key, part in pairs:
        try:
            found[key] = _value(part, names)
        except _UnknownError:
            continue
    return found
