"""What the site has beside its pages: formulas, the example notebooks and the commands' help.

Formulas are written as $…$ and $$…$$, which GitHub shows too. Here they become MathML when the
site is built, which browsers draw by themselves: no script, no font and no network is needed.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


class Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self.display = display

    def handleMatch(  # type: ignore[override]  # noqa: N802
        self, m: re.Match[str], data: str
    ) -> tuple[str | Element, int, int]:
        text = convert(m[1].strip(), display=self.display)
        return self.md.htmlStash.store(text), m.start(0), m.end(0)


class Formulas(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # After `code` (190), which may contain a $, and before everything else.
        block, inline = r"\$\$(.+?)\$\$", r"(?<![\w\\$])\$(?![\s$])([^$]+?)(?<!\s)\$(?![\w$])"
        md.inlinePatterns.register(Formula(block, md, "block"), "formula", 187)
        md.inlinePatterns.register(Formula(inline, md, "inline"), "inline formula", 186)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.markdown_extensions.append(Formulas())  # type: ignore[arg-type]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A list may follow its sentence at once, as on GitHub; here it needs an empty line."""
    return re.sub(r"^(?![-*\s|#>`])(.+)\n(?=- )", r"\1\n\n", markdown, flags=re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages: dict[str, str | bytes] = {"commands.md": commands_page()}
    for notebook in NOTEBOOKS:
        pages |= notebook_page(notebook)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def notebook_page(path: Path) -> dict[str, str | bytes]:
    """A page of the notebook with its outputs, and its pictures, by file name."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "]("))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data: dict[str, Any] = output.get("data", {})
            if "image/png" in data:
                name = f"images/{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the code above draws]({name})")
            else:
                text = "".join(output.get("text") or data.get("text/plain", ""))
                parts.append(f"```text\n{text.rstrip()}\n```")
    return {f"{path.stem}.md": "\n\n".join(parts) + "\n", **pictures}


def commands_page() -> str:
    """The help of every command."""
    os.environ["COLUMNS"] = "100"  # argparse's width
    from hemnet.cli import build_parser

    parts = ["# Commands", "What `hemnet COMMAND --help` prints, for this version."]
    for command, parser in subcommands(build_parser()):
        inner = list(subcommands(parser))
        for name, shown in [(command, parser), *((f"{command} {n}", p) for n, p in inner)]:
            level = "##" if name == command else "###"
            parts += [f"{level} hemnet {name}", f"```text\n{shown.format_help().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def subcommands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()
