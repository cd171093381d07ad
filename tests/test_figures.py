"""Every measured figure in README and docs has a source: a stored result or a command.

What counts as a figure is a decimal number, a percentage, or a number with a unit of measurement,
outside code; a setting belongs in `backticks`. A figure stands

- in a generated table (`benchmarks/tables.py`), or repeats a number of one on the same page; or
- before `<!-- source: … -->`, which names stored files that hold the number, rounded as shown, or
  a command that prints it, or the paper. Below a heading, the comment is for the whole section.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from support.documents import PAGES, PROGRAMS, ROOT

# Of docs/results only what others cite: `hemnet study` writes those pages beside their numbers.
NAMES = [path.relative_to(ROOT).as_posix() for path in PAGES if path.parent.name != "results"]
UNIT = r"\s?(?:%|ms\b|[MG]i?B\b|points?\b|images/s)|×(?!\d)"
FIGURE = re.compile(rf"(?<![\w.,·⁻-])(\d[\d,]*\.\d+|\d[\d,]*(?={UNIT}))")
SOURCE = re.compile(r"<!-- source: (.*?) -->")
GENERATED = re.compile(r"<!-- table: \S+ -->.*?<!-- end -->", re.DOTALL)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for name in ("tables", "comparisons"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import tables

    return tables


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_those_of_the_stored_results(name: str, tables: Any) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert tables.fill(text) == text, "python benchmarks/tables.py --write"


def test_every_table_is_shown(tables: Any) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    shown = set(re.findall(r"<!-- table: (\S+) -->", text))
    assert shown == set(tables.TABLES)


def test_controls_are_compared_pair_by_pair(
    tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    miou = {"plain": (30.0, 31.0, 32.0), "hemnet:bases=1": (31.0, 32.1, 32.9)}
    miou |= {"hemnet:bases=8": (30.5, 32.5, 32.6)}
    common = {"data": "voc", "backbone": "b", "steps": 9, "rate": 0.1, "holdout": False}
    runs = [
        {**common, "window": [2, 2], "unit": unit, "seed": seed, "miou": value}
        for unit, values in miou.items()
        for seed, value in enumerate(values)
    ]
    runs.append(runs[0] | {"miou": 99.0, "holdout": True})
    monkeypatch.setattr(tables, "CONTROLS", tmp_path / "controls.jsonl")
    tables.CONTROLS.write_text("".join(json.dumps(run) + "\n" for run in runs))
    text = tables.controls()
    assert text.startswith("**VOC part, b, frozen, 9 steps**")
    assert "| no unit | 0.1 | 31.00 (3) | | **−1.00 ± 0.06** [−1.25, −0.75] | |" in text
    assert "| HEMNet, K = 8 | 0.1 | 31.87 (3) | **+0.87 ± 0.32** [−0.50, +2.23] | −0.13 ±" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_a_source(name: str) -> None:
    missing = [
        f"line {line}: {number} (sources: {', '.join(sources) or 'none'})"
        for line, number, sources in figures((ROOT / name).read_text(encoding="utf-8"))
        if not any(holds(source, number) for source in sources)
    ]
    assert not missing, "\n".join([name, *missing])


def figures(text: str) -> Iterator[tuple[int, str, list[str]]]:
    """Figures of a page that are not in a generated table: line, number, its sources."""
    repeated = set(re.findall(r"\d[\d,]*(?:\.\d+)?", " ".join(GENERATED.findall(text))))
    text = GENERATED.sub(lambda found: "\n" * found[0].count("\n"), text)
    blank = lambda found: re.sub(r"[^\n]", " ", found[0])  # noqa: E731
    text = re.sub(r"^( *)```.*?^\1```", blank, text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?<!`)`[^`\n]+`(?!`)|\$\$?[^$\n]+\$\$?|\]\([^)\s]*\)|<img[^>]*>", blank, text)
    section: dict[int, list[str]] = {}  # by level of the heading
    blocks = [(found.start(), found[0]) for found in re.finditer(r"(?:[^\n]+\n?)+", text)]
    for index, (start, block) in enumerate(blocks):
        if heading := re.match(r"#+", block):
            level = len(heading[0])
            section = {at: sources for at, sources in section.items() if at < level}
            following = blocks[index + 1][1] if index + 1 < len(blocks) else ""
            if SOURCE.match(following):
                section[level] = SOURCE.findall(following)
        sources = [source for each in section.values() for source in each]
        sources += SOURCE.findall(block)
        if index + 1 < len(blocks) and SOURCE.match(blocks[index + 1][1]):
            sources += SOURCE.findall(blocks[index + 1][1])
        for found in FIGURE.finditer(SOURCE.sub(blank, block)):
            if found[1] not in repeated:
                yield text.count("\n", 0, start + found.start()) + 1, found[1], sources


def holds(source: str, number: str) -> bool:
    """Whether one of the files has the number; a command or the paper is taken at its word."""
    first = source.split()[0]
    if first in PROGRAMS or source.startswith("the paper"):
        return True
    return any(number.replace(",", "") in rounded(file) for file in source.split())


@functools.cache
def rounded(file: str) -> frozenset[str]:
    """Every number of a stored file, also as a percentage, at every number of digits."""
    text = (ROOT / file).read_text(encoding="utf-8")
    shown = set()
    for found in re.findall(r"\d+(?:_\d{3})*(?:\.\d+)?(?:e-?\d+)?", text):
        for value in (float(found), 100 * float(found), float(found) / 1000):
            if value < 1e9:
                shown |= {f"{value:.{digits}f}" for digits in range(4)}
    return frozenset(shown)


def test_the_first_picture_is_made_by_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import street_picture

    out = tmp_path / "road.jpg"
    monkeypatch.setattr(sys, "argv", ["street_picture.py", "--width", "96", "--out", str(out)])
    street_picture.main()
    with Image.open(out) as picture:
        assert picture.width > 1000
        assert len(picture.getcolors(1_000_000) or ()) > 100


def test_sources_exist() -> None:
    for path in PAGES:
        for source in SOURCE.findall(path.read_text(encoding="utf-8")):
            words = source.split()
            if words[0] in PROGRAMS:
                for word in words:
                    assert not word.endswith(".py") or (ROOT / word).is_file(), source
            elif not source.startswith("the paper"):
                assert all((ROOT / file).is_file() for file in words), f"{path.name}: {source}"


def test_a_figure_without_a_source_is_noticed() -> None:
    page = "# A\n\nIt takes 1.25 s, 30% and 7 ms with `0.9`, twice.\n\n<!-- source: x.json -->\n"
    assert [number for _, number, _ in figures(page)] == ["1.25", "30", "7"]
    assert all(sources == ["x.json"] for *_, sources in figures(page))
    assert not list(figures("<!-- table: a -->\n\n| 1.25 |\n\n<!-- end -->\n\nSo 1.25.\n"))
    assert not holds("docs/results/compare.json", "12345.67")
    value = json.loads((ROOT / "docs/results/compare.json").read_text())["rows"][0]["miou"]["mean"]
    assert holds("docs/results/compare.json", f"{value:.2f}")
