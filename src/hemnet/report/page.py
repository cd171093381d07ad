"""Fill the template of `report.html` for a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch
from markupsafe import Markup

from hemnet.data.contact_sheet import VOID_COLOUR
from hemnet.data.dataset import SegmentationDataset
from hemnet.data.labels import VOID, Colour
from hemnet.files import write_text
from hemnet.inference.metrics import Evaluation
from hemnet.inspection.attention import most_distinct
from hemnet.nn.attention import HighwayEMAttention
from hemnet.report.charts import Series, line_chart, smooth
from hemnet.report.contents import RunContents, UnitContents, gather
from hemnet.report.images import example_panels, heat_map, image_address
from hemnet.report.templates import templates_of
from hemnet.run_folder import RunFolder
from hemnet.training.setup import run_dataset
from hemnet.version import __version__

MAPS = 6  # bases whose maps are drawn
CONFUSIONS = 6  # most frequent ones, listed


class Chart(NamedTuple):
    title: str
    svg: Markup


class Tile(NamedTuple):
    """A number and its name; `style` is a class of the style sheet."""

    value: str
    name: str
    style: str = ""


def write_report(
    run: str | Path,
    dataset: SegmentationDataset | None = None,
    evaluation: Evaluation | None = None,
    *,
    device: torch.device | str = "cpu",
    refresh: int | None = None,
) -> Path:
    """Write `report.html` into a run folder and return its path.

    Args:
        run: the folder.
        dataset: what the run was validated on; None: opened as the run did.
        evaluation: of the run's model on all of `dataset`. Without one the run's own validation
            gives the figures, and only a few images are looked at.
        device: where the model predicts the examples.
        refresh: the run goes on, and a browser reads the page again after so many seconds.
    """
    folder = RunFolder(run)
    dataset = run_dataset(run) if dataset is None else dataset
    contents = gather(folder, dataset, evaluation, torch.device(device))
    page = templates_of("hemnet.report").get_template("page.html")
    text = page.render(
        run=contents,
        refresh=refresh,
        style=Markup((files("hemnet.report") / "style.css").read_text(encoding="utf-8")),
        version=__version__,
        tiles=headline(contents),
        curves=learning_curves(contents),
        confusions=confusions(contents),
        legend=classes_shown(contents),
        examples=[
            (example.id, score.miou, example_panels(example, dataset.info.palette))
            for example, score in contents.examples
        ],
        attention=None if contents.unit is None else attention(contents, contents.unit),
        health=None if contents.unit is None else health(contents, contents.unit),
        next_steps=next_steps(contents),
        details=details(folder),
    )
    write_text(folder.report, text)
    return folder.report


def headline(run: RunContents) -> list[Tile]:
    info, scores = run.dataset.info, run.scores
    tiles = [
        Tile(f"{scores['miou']:.1f}%", "mIoU"),
        Tile(f"{scores['pixel_accuracy']:.1f}%", "pixel accuracy"),
    ]
    if run.baseline is not None:
        figures = f"{run.baseline.miou:.1f}% and {run.baseline.pixel_accuracy:.1f}%"
        tiles.append(Tile(figures, f"both, from {info.baseline}"))
    context = [scores["iou"][info.classes[k]] for k in info.context_classes]
    if context and None not in context:
        tiles.append(Tile(f"{sum(context) / len(context):.1f}%", "context mIoU"))
    if run.training:
        tiles.append(Tile(f"{run.training[-1]['step']:,}", "steps"))
    count = sum(p.numel() for p in run.model.parameters())
    tiles.append(Tile(f"{count / 1e6:.2f} M", "parameters"))
    speeds = sorted(v for line in run.training if (v := line.get("images_per_second")))
    if speeds:
        tiles.append(Tile(f"{speeds[len(speeds) // 2]:.1f}", "images per second"))
    return tiles


def learning_curves(run: RunContents) -> list[Chart]:
    charts = []
    if len(run.training) > 1:
        steps = [line["step"] for line in run.training]
        losses = [line["loss"] for line in run.training]
        series = [Series(steps, smooth(losses))]
        if len(losses) > 20:
            series.insert(0, Series(steps, losses, "faint"))
        chart = line_chart(series, x_label="step", y_label="loss", y_from=0)
        charts.append(Chart("Training loss", chart))
    if len(run.validation) > 1:
        steps = [line["step"] for line in run.validation]
        series = [Series(steps, [line["miou"] for line in run.validation], "c", dots=True)]
        chart = line_chart(series, x_label="step", y_label="mIoU", y_from=0)
        charts.append(Chart("Validation mIoU, percent", chart))
    return charts


def confusions(run: RunContents) -> list[tuple[str, str, float]]:
    """Label, prediction and percent of the label's pixels; the most frequent first."""
    if run.confusion is None:
        return []
    shares = 100 * run.confusion.double() / run.confusion.sum(1, keepdim=True).clamp(min=1)
    shares.fill_diagonal_(0)
    names, flat = run.dataset.info.classes, shares.flatten()
    order = flat.argsort(descending=True)[:CONFUSIONS].tolist()
    found = [(names[i // len(names)], names[i % len(names)], float(flat[i])) for i in order]
    return [row for row in found if row[2] >= 0.05]


def classes_shown(run: RunContents) -> list[tuple[Colour, str]]:
    """Colours and names of the classes in the examples."""
    info = run.dataset.info
    masks = [mask for example, _ in run.examples for mask in (example.mask, example.prediction)]
    present = sorted({int(value) for mask in masks for value in mask.unique()})
    return [
        (VOID_COLOUR, "void") if value == VOID else (info.palette[value], info.classes[value])
        for value in present
    ]


def attention(run: RunContents, unit: UnitContents) -> dict[str, Any]:
    """Maps of the most distinct bases after every iteration, and the bound."""
    maps = [unit.trace.responsibilities(t + 1)[0] for t in range(unit.iterations)]  # K,h,w each
    chosen = most_distinct(maps[-1], MAPS)
    highest = {k: max(float(gamma[k].max()) for gamma in maps) for k in chosen}
    height, width = run.watched.mask.shape
    bound = unit.trace.bound
    return {
        "image": image_address(run.watched.image),
        "bases": chosen,
        "count": len(maps[0]),
        "maps": [
            [heat_map(gamma[k], highest[k], (height, width), unit.placement) for k in chosen]
            for gamma in maps
        ],
        "exact": unit.trace.plan.mixture.exact,
        "bound": line_chart(
            [Series(range(len(bound)), bound, dots=True)],
            x_label="iteration (0: before the first)",
            y_label="ELBO per position, nats",
            marker=(unit.iterations, f"the model stops at {unit.iterations}"),
        ),
    }


HEALTH = {
    "healthy": "The bases differ and the pixels are shared among them: gradients reach every "
    "iteration.",
    "collapsed": "Every pixel is rebuilt as the same vector: the unit is a global mean.",
    "saturated": "Every pixel belongs to one basis alone, so the E-step passes no gradient to "
    "speak of; the N-step's still reaches every iteration.",
}


def health(run: RunContents, unit: UnitContents) -> dict[str, Any]:
    found = unit.health
    logged = [line for line in run.training if line.get("health")]
    charts = []
    for key, title, style in (
        ("ratio", "λ/σ²: below 1 the bases collapse", "b"),
        ("entropy", "Entropy of the responsibilities", "a"),
    ):
        steps, values = [line["step"] for line in logged], [line["health"][key] for line in logged]
        series = Series(steps, values, style, dots=len(steps) < 30)
        if len(steps) > 1:
            chart = line_chart([series], x_label="step", y_label=title, y_from=0)
            charts.append(Chart(title, chart))
    return {
        "text": HEALTH[found.state] + _remedy(unit),
        "tiles": [
            Tile(found.state, "state", "good" if found.state == "healthy" else "bad"),
            Tile(f"{found.ratio:.1f}", "λ/σ²"),
            Tile(f"{found.rebuilt:.0%}", "of the variance rebuilt"),
            Tile(f"{found.spread:.2f}", "spread, 0 to 1"),
            Tile(f"{found.entropy:.2f}", f"entropy, at most {math.log(found.bases):.2f}"),
            Tile(f"{found.in_use:.0%}", f"of {found.bases} bases in use"),
            Tile(f"{found.e_step:.0%}", "of the gradient through the E-step"),
        ],
        "charts": charts,
    }


def _remedy(contents: UnitContents) -> str:
    unit, found = contents.unit, contents.health
    if found.state == "healthy" or found.bases == 1:
        return ""
    if not isinstance(unit, HighwayEMAttention) or unit.variance is None:
        return ""
    auto = "" if unit.principal is not None else 'variance="auto", or '
    which = "smaller" if found.state == "collapsed" else "larger"
    return f" Train with {auto}a variance {which} than {float(unit.variance):.3g}."


def next_steps(run: RunContents) -> list[tuple[str, str]]:
    """Purposes and the commands for them."""
    place = run.folder.path
    steps = [
        ("More accurate: several scales and mirrored, averaged",
         f"hemnet evaluate {place} --scales 0.75 1 1.25 --flip"),
        ("Best and worst images, and the confusion matrix, as pictures",
         f"hemnet evaluate {place} --out {place}/pictures --json {place}/evaluation.json"),
        ("Train on your own images (images/ and labels/ in one folder)",
         "hemnet train --config configs/folder.yaml --data.root mydata --out runs/mine"),
        ("Class maps and overlays of new images",
         f"hemnet predict {place} photo.jpg --out predictions"),
        ("Explore the model in a browser", f"hemnet app {place}"),
        ("In Python",
         f'model = hemnet.from_pretrained("{place}/model")\n'
         'classes = model.predict("photo.jpg")'),
    ]  # fmt: skip
    if run.unit is not None:
        more = ("More iterations of EM, without training again",
                f"hemnet evaluate {place} --iterations {2 * run.unit.iterations}")  # fmt: skip
        steps.insert(1, more)
    return steps


def details(folder: RunFolder) -> Sequence[tuple[str, str]]:
    """Titles and texts that unfold."""
    found = []
    if folder.holds_run:
        found.append(("Configuration", folder.config.read_text(encoding="utf-8")))
    text = "\n".join(f"{key}: {value}" for key, value in folder.read_environment().items())
    return [*found, ("Environment", text)] if text else found
