"""Render the page from page.html; its behaviour is in page.js."""

from __future__ import annotations

import json
from importlib.resources import files

from hemnet.app.answers import MOST_SHOWN, Answers
from hemnet.app.explore import Explorer
from hemnet.image_io import shrink
from hemnet.inference.exported_model import ExportedModel
from hemnet.inspection.em_trace import step_text
from hemnet.report.images import data_address
from hemnet.report.templates import templates_of

SAMPLE = 160  # pixels of a sample's longer side
FILES = {
    name: ((files("hemnet.app") / name).read_bytes(), kind)
    for name, kind in (("page.js", "text/javascript"), ("style.css", "text/css"))
}


def make_page(answers: Answers) -> str:
    """The HTML that every user gets first, without an image."""
    explorer, unit = answers.explorer, answers.explorer.unit
    own = tuple(map(float, explorer.own.steps)) if unit is not None else (0.5,)
    bases = 0 if unit is None else unit.bases.value.shape[0]
    settings = {
        "iterations": len(own),
        "step": own[0],
        "several": len(set(own)) > 1,  # step sizes, one an iteration
        "steps": explorer.has_steps,
        "bases": bases,
        "most": MOST_SHOWN,
        "bytes": answers.limits.bytes,
    }
    return (
        templates_of("hemnet.app")
        .get_template("page.html")
        .render(
            settings=settings,
            settings_json=json.dumps(settings),
            facts=facts(explorer),
            samples=[
                (sample.name, data_address(shrink(sample.picture, SAMPLE), photograph=True))
                for sample in answers.samples
            ],
            why_no_unit=explorer.why_no_unit,
            most_iterations=explorer.most_iterations,
            own_steps=step_text(own),
        )
    )


def facts(explorer: Explorer) -> list[str]:
    """The model and the settings of its EM unit, in a few words each."""
    model, config = explorer.model, explorer.model.config
    found = [f"{config.model} on {config.backbone}", f"{config.num_classes} classes"]
    if isinstance(model, ExportedModel):
        found.insert(0, f"exported file {model.path.name}")
    else:
        found.append(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    if explorer.unit is not None:
        plan = explorer.own
        text = f"EM with {explorer.unit.bases.value.shape[0]} bases, {len(plan.steps)} iterations"
        if explorer.has_steps:
            text += f", η {step_text(plan.steps)}, {plan.mixture}"
        found.append(text)
    return found
