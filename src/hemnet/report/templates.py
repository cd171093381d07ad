"""The Jinja2 environment of the pages: autoescaped, undefined names are errors."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates_of(package: str, escape: bool = True) -> Environment:
    """The environment for the templates of a package; `escape` is for HTML."""
    made = Environment(
        loader=PackageLoader(package, ""),
        autoescape=escape,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters["css"] = css_colour
    made.filters["percent"] = percent
    made.filters["signed"] = signed
    return made


def css_colour(colour: Sequence[int]) -> str:
    """A colour as CSS writes it."""
    return f"rgb({','.join(map(str, colour[:3]))})"


def percent(share: float) -> str:
    return f"{100 * share:.1f}%" if 0 < share < 0.01 else f"{100 * share:.0f}%"


def signed(value: float) -> str:
    """With a minus sign instead of a hyphen."""
    return f"{value:.2f}".replace("-", "−")
