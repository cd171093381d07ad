"""The page: what stands where. What happens when something is touched is in page.js."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from string import Template

from hemnet.app import drawing
from hemnet.app.answers import MOST_SHOWN, Answers
from hemnet.app.explore import step_text

TINT = 0.6  # of the classes over the picture at first; the style sheet's too
FILES = {
    name: ((files("hemnet.app") / name).read_bytes(), kind)
    for name, kind in (("page.js", "text/javascript"), ("style.css", "text/css"))
}


def make_page(answers: Answers) -> str:
    """HTML, the same for everyone; their images come later."""
    explorer, unit = answers.explorer, answers.explorer.unit
    own = tuple(map(float, explorer.own.steps)) if unit is not None else (0.5,)
    count, several = len(own), "," in step_text(own)  # several step sizes, one an iteration
    bases = 0 if unit is None else unit.bases.value.shape[0]
    settings = {
        "iterations": count,
        "step": own[0],
        "several": several,
        "steps": explorer.has_steps,
        "bases": bases,
        "most": MOST_SHOWN,
        "bytes": answers.limits.bytes,
    }
    about = "1 is plain EM" if explorer.has_steps else "EMANet's unit: always 1"
    return Template((files("hemnet.app") / "page.html").read_text("utf-8")).substitute(
        settings=escape(json.dumps(settings)),
        header=drawing.header(explorer),
        samples=drawing.sample_strip(answers.samples),
        opacity=_slider("opacity", "Opacity of the classes", 0, 1, TINT, 0.05),
        question="What explains a pixel?" if bases else "What is a pixel?",
        no_unit="" if bases else drawing.note(explorer.why_no_unit),
        hidden="" if bases else "hidden",
        shown=_slider("shown", "Iteration shown", 1, max(2, count), count, 1),
        iterations=_slider("iterations", "Iterations T", 1, explorer.most_iterations, count, 1),
        step=_slider("step", "Step size η", 0.01, 1, own[0], 0.01, about),
        keep_hidden="" if several else "hidden",
        keep_checked="checked" if several else "",
        own_steps=escape(step_text(own)),
        choices="".join(f'<option value="{k}">basis {k}</option>' for k in range(1, bases + 1)),
    )


def _slider(
    name: str, label: str, low: float, high: float, value: float, step: float, about: str = ""
) -> str:
    """A slider and a field for the same number."""
    numbers = f'min="{low:g}" max="{high:g}" step="{step:g}" value="{value:g}"'
    more = f'<small class="soft" id="{name}-about">{escape(about)}</small>' if about else ""
    described = f' aria-describedby="{name}-about"' if about else ""
    return (
        f'<div class="slider" id="{name}"><label for="{name}-range"><span>{escape(label)}</span>'
        f'{more}</label><input type="number" aria-label="{escape(label)}, as a number" {numbers}>'
        f'<input type="range" id="{name}-range" {numbers}{described}></div>'
    )
