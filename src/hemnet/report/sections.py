"""The sections of the page: each a function from a run to HTML, empty where there is nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from hemnet.data.contact_sheet import VOID_COLOUR
from hemnet.data.labels import VOID
from hemnet.inspection.em_trace import find_unit, most_distinct
from hemnet.nn.attention import HighwayEMAttention
from hemnet.report.charts import Series, line_chart, smooth
from hemnet.report.contents import RunContents
from hemnet.report.images import example_panels, heat_map, photograph
from hemnet.version import __version__

MAPS = 6  # bases whose maps are drawn
CONFUSIONS = 6  # most frequent ones, listed


def header(run: RunContents) -> str:
    config, info = run.model.config, run.dataset.info
    tiles = [
        (f"{run.scores['miou']:.1f}%", "mIoU"),
        (f"{run.scores['pixel_accuracy']:.1f}%", "pixel accuracy"),
    ]
    if run.baseline is not None:
        figures = f"{run.baseline.miou:.1f}% and {run.baseline.pixel_accuracy:.1f}%"
        tiles.append((figures, f"both, from {info.baseline}"))
    context = [run.scores["iou"][info.classes[k]] for k in info.context_classes]
    if context and None not in context:
        tiles.append((f"{sum(context) / len(context):.1f}%", "context mIoU"))
    if run.training:
        tiles.append((f"{run.training[-1]['step']:,}", "steps"))
    count = sum(p.numel() for p in run.model.parameters())
    tiles.append((f"{count / 1e6:.2f} M", "parameters"))
    speeds = sorted(v for line in run.training if (v := line.get("images_per_second")))
    if speeds:
        tiles.append((f"{speeds[len(speeds) // 2]:.1f}", "images per second"))
    what = f"{config.model} · {config.backbone}, stride {config.output_stride}"
    return (
        f"<h1>{escape(run.folder.path.name)}</h1>"
        f'<p class="soft">{escape(what)} · {escape(info.title)}, {escape(run.dataset.split)}</p>'
        f"{_tiles(tiles)}"
    )


def curves(run: RunContents) -> str:
    charts = []
    lines = [line for line in run.training if "loss" in line]
    if len(lines) > 1:
        steps, losses = [line["step"] for line in lines], [line["loss"] for line in lines]
        series = [Series("loss", steps, smooth(losses))]
        if len(lines) > 20:
            series.insert(0, Series("each", steps, losses, "faint"))
        chart = line_chart(series, x_label="step", y_label="loss", y_from=0, whole_x=True)
        charts.append(f"<div><h3>Training loss</h3>{chart}</div>")
    if len(run.validation) > 1:
        steps = [line["step"] for line in run.validation]
        scores = [line["miou"] for line in run.validation]
        series = [Series("mIoU", steps, scores, "c", dots=True)]
        chart = line_chart(series, x_label="step", y_label="mIoU", y_from=0, whole_x=True)
        charts.append(f"<div><h3>Validation mIoU, percent</h3>{chart}</div>")
    if not charts:
        return ""
    return _section("Learning curve", f'<div class="charts">{"".join(charts)}</div>')


def classes(run: RunContents) -> str:
    info = run.dataset.info
    rows = []
    for number, (name, colour) in enumerate(zip(info.classes, info.palette, strict=True)):
        value = run.scores["iou"].get(name)
        far = '<span title="cannot be told from near pixels"> ↔</span>'
        mark = far if number in info.context_classes else ""
        rows.append(
            f'<div class="name">{_chip(colour)}<span>{escape(name)}{mark}</span></div>'
            f'<div class="track"><div class="fill" style="width:{value or 0:.1f}%"></div></div>'
            f'<div class="value">{"–" if value is None else f"{value:.1f}"}</div>'
        )
    note = "Intersection over union, in percent, from one confusion matrix."
    if info.context_classes:
        note += (
            " ↔ marks classes that nothing near a pixel can tell: lit or unlit is decided by a "
            "lamp far away."
        )
    body = f'<p class="soft">{note}</p><div class="bars">{"".join(rows)}</div>'
    return _section("IoU of each class", body + _confusions(run))


def _confusions(run: RunContents) -> str:
    if run.confusion is None:
        return ""
    shares = 100 * run.confusion.double() / run.confusion.sum(1, keepdim=True).clamp(min=1)
    shares.fill_diagonal_(0)
    names = run.dataset.info.classes
    order = shares.flatten().argsort(descending=True)[:CONFUSIONS].tolist()
    found = [(i // len(names), i % len(names), float(shares.flatten()[i])) for i in order]
    rows = "".join(
        f"<tr><td>{escape(names[label])}</td><td>{escape(names[other])}</td>"
        f"<td>{share:.1f}%</td></tr>"
        for label, other, share in found
        if share >= 0.05
    )
    if not rows:
        return ""
    head = "<tr><th>pixels of</th><th>taken for</th><th>share</th></tr>"
    return f'<h3 style="margin-top:22px">Most often confused</h3><table>{head}{rows}</table>'


def predictions(run: RunContents) -> str:
    info = run.dataset.info
    masks = [mask for example, _ in run.examples for mask in (example.mask, example.prediction)]
    present = sorted({int(value) for mask in masks for value in mask.unique()})
    legend = "".join(
        f"<span>{_chip(VOID_COLOUR)}void</span>"
        if value == VOID
        else f"<span>{_chip(info.palette[value])}{escape(info.classes[value])}</span>"
        for value in present
    )
    figures = []
    for example, score in run.examples:
        panels = "".join(
            f'<div><img class="{style}" src="{address}" alt="{name} of {escape(example.id)}">'
            f"{name}</div>"
            for name, address, style in example_panels(example, info.palette)
        )
        caption = f"{escape(example.id)} · mIoU {score.miou:.1f}%"
        figures.append(
            f'<figure><div class="panels">{panels}</div><figcaption>{caption}</figcaption></figure>'
        )
    note = "From the best image to the worst, evenly spread between."
    body = f'<p class="soft">{note}</p><div class="legend">{legend}</div>'
    return _section("Predictions", f'{body}<div class="examples">{"".join(figures)}</div>')


def attention(run: RunContents) -> str:
    if run.unit is None:
        return ""
    example = run.watched
    maps = [gamma[0] for gamma in run.unit.responsibilities]  # K,h,w each
    chosen = most_distinct(maps[-1], MAPS)
    highest = [max(float(gamma[k].max()) for gamma in maps) for k in chosen]
    size = (example.mask.shape[0], example.mask.shape[1])
    place = run.unit.placement
    cells = [f'<img src="{photograph(example.image)}" alt="the image">']
    cells += [f'<div class="head">basis {k + 1}</div>' for k in chosen]
    for t, gamma in enumerate(maps, start=1):
        cells.append(f'<div class="head">iteration {t}</div>')
        cells += [
            f'<img src="{heat_map(gamma[k], top, size, place)}" alt="basis {k + 1}, iteration {t}">'
            for k, top in zip(chosen, highest, strict=True)
        ]
    columns = f"grid-template-columns: repeat({len(chosen) + 1}, 1fr)"
    grid = f'<div class="scroll"><div class="maps" style="{columns}">{"".join(cells)}</div></div>'
    count = maps[0].shape[0]
    note = (
        f"How much each pixel belongs to a basis (its responsibility) after every iteration: the "
        f"{len(chosen)} most distinct of {count} bases, bright is much. Pixels that share a basis "
        "exchange what they know, however far apart they are."
    )
    body = f'<p class="soft">{note}</p>{grid}'
    bound = run.unit.bound
    if len(bound) > 1:
        unit = find_unit(run.model)
        exact = unit is not None and unit.plan().mixture.exact
        series = [Series("ELBO", range(len(bound)), bound, "a", dots=True)]
        chart = line_chart(
            series,
            x_label="iteration (0: before the first)",
            y_label="ELBO per position, nats",
            marker=(run.unit.iterations, f"the model stops at {run.unit.iterations}"),
            whole_x=True,
        )
        note = (
            "The lower bound of the likelihood that highway EM climbs, per position, averaged over "
            "the images above. Moving the bases always raises it"
        )
        note += (
            "; assigning the pixels may cost a little, because the dot kernel is not quite the "
            "mixture's own."
            if not exact
            else ", and so does assigning the pixels."
        )
        body += (
            f'<h3>Likelihood bound</h3><div class="charts"><div>{chart}</div>'
            f'<p class="soft">{note}</p></div>'
        )
    return _section("What the attention does", body)


def health(run: RunContents) -> str:
    if run.unit is None:
        return ""
    found = run.unit.health
    style = "good" if found.state == "healthy" else "bad"
    tiles = [
        (f'<span class="{style}" style="font-size:inherit">{found.state}</span>', "state"),
        (f"{found.ratio:.1f}", "λ/σ²"),
        (f"{found.rebuilt:.0%}", "of the variance rebuilt"),
        (f"{found.spread:.2f}", "spread, 0 to 1"),
        (f"{found.entropy:.2f}", f"entropy, at most {math.log(found.bases):.2f}"),
        (f"{found.in_use:.0%}", f"of {found.bases} bases in use"),
        (f"{found.e_step:.0%}", "of the gradient through the E-step"),
    ]
    unit = find_unit(run.model)
    remedy = ""
    if isinstance(unit, HighwayEMAttention) and found.state != "healthy" and found.bases > 1:
        auto = "" if unit.principal is not None else 'variance="auto", or '
        which = "smaller" if found.state == "collapsed" else "larger"
        if unit.variance is not None:
            remedy = f" Train with {auto}a variance {which} than {float(unit.variance):.3g}."
    texts = {
        "healthy": "The bases differ and the pixels are shared among them: gradients reach every "
        "iteration.",
        "collapsed": "Every pixel is rebuilt as the same vector: the unit is a global mean.",
        "saturated": "Every pixel belongs to one basis alone, so the E-step passes no gradient to "
        "speak of; the N-step's still reaches every iteration.",
    }
    body = f'<p class="soft">{escape(texts[found.state] + remedy)}</p>{_tiles(tiles, raw=True)}'
    seen = [(line["step"], line["health"]) for line in run.training if line.get("health")]
    if len(seen) > 1:
        steps = [step for step, _ in seen]
        charts = [
            ("λ/σ²: below 1 the bases collapse", [h["ratio"] for _, h in seen], "b"),
            ("Entropy of the responsibilities", [h["entropy"] for _, h in seen], "a"),
        ]
        drawn = "".join(
            f"<div><h3>{title}</h3>"
            + line_chart(
                [Series(title, steps, values, style, dots=len(seen) < 30)],
                x_label="step",
                y_label=title,
                y_from=0,
            )
            + "</div>"
            for title, values, style in charts
        )
        body += f'<div class="charts">{drawn}</div>'
    return _section("Health of the bases", body)


def next_steps(run: RunContents) -> str:
    place = str(run.folder.path)
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
    ]  # fmt: skip
    if run.unit is not None:
        more = ("More iterations of EM, without training again",
                f"hemnet evaluate {place} --iterations {2 * run.unit.iterations}")  # fmt: skip
        steps.insert(1, more)
    body = "".join(
        f"<div>{escape(text)}</div><pre>{escape(command)}</pre>" for text, command in steps
    )
    code = f'model = hemnet.from_pretrained("{place}/model")\nclasses = model.predict("photo.jpg")'
    return _section("Next steps", f"{body}<div>In Python</div><pre>{escape(code)}</pre>")


def details(run: RunContents) -> str:
    parts = []
    if run.folder.holds_run:
        text = run.folder.config.read_text(encoding="utf-8")
        parts.append(
            f"<details><summary>Configuration</summary><pre>{escape(text)}</pre></details>"
        )
    environment = run.folder.read_environment()
    if environment:
        text = "\n".join(f"{key}: {value}" for key, value in environment.items())
        parts.append(f"<details><summary>Environment</summary><pre>{escape(text)}</pre></details>")
    section = f"<section>{''.join(parts)}</section>" if parts else ""
    return f"{section}<footer>Written by hemnet {__version__}.</footer>"


SECTIONS: Sequence[Callable[[RunContents], str]] = (
    header, curves, classes, predictions, attention, health, next_steps, details,
)  # fmt: skip


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _tiles(tiles: Iterable[tuple[str, str]], raw: bool = False) -> str:
    inner = "".join(
        f'<div class="tile"><b>{value if raw else escape(value)}</b>'
        f"<span>{escape(name)}</span></div>"
        for value, name in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _chip(colour: Sequence[int]) -> str:
    return f'<i class="chip" style="background:rgb({",".join(map(str, colour))})"></i>'
