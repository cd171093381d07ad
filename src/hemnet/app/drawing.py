"""What the explorer found, as HTML. Pictures are data addresses: no file, nothing to fetch."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape

import numpy as np
from PIL import Image
from torch import Tensor

from hemnet.app.explore import Explorer, Seen, Solution, explained, step_text
from hemnet.app.samples import Sample
from hemnet.data.labels import Colour
from hemnet.inference.exported_model import ExportedModel
from hemnet.nn.health import GLOBAL_MEAN, variance_rebuilt
from hemnet.report.charts import Series, line_chart
from hemnet.report.images import data_address, heat_map

BARS = 6  # bases of a pixel that have a bar of their own, at most
SMALLEST = 0.01  # responsibility that is worth one
DRAWN = 160  # pixels of the longer side of a map


def header(explorer: Explorer) -> str:
    """Which model this is, and how its EM unit works."""
    model, config = explorer.model, explorer.model.config
    parts = [f"{config.model} on {config.backbone}", f"{config.num_classes} classes"]
    if isinstance(model, ExportedModel):
        parts.insert(0, f"exported file {model.path.name}")
    else:
        parts.append(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    unit = explorer.unit
    if unit is not None:
        how = explorer.own
        text = f"EM with {unit.bases.value.shape[0]} bases, {len(how.steps)} iterations"
        if explorer.has_steps:
            text += f", η {step_text(how.steps)}, {how.mixture}"
        parts.append(text)
    listed = "".join(f"<li>{escape(part)}</li>" for part in parts)
    return f'<h1>HEMNet explorer</h1><ul class="facts">{listed}</ul>'


def sample_strip(samples: Sequence[Sample]) -> str:
    """Buttons; the number of the one that is pressed is in `data-sample`."""
    buttons = []
    for number, sample in enumerate(samples):
        small = sample.picture.copy()
        small.thumbnail((160, 128), Image.Resampling.LANCZOS)
        buttons.append(
            f'<button type="button" data-sample="{number}" aria-label="Use {escape(sample.name)}">'
            f'<img src="{data_address(small, photograph=True)}" alt="">'
            f"<span>{escape(sample.name)}</span></button>"
        )
    return f'<div class="samples">{"".join(buttons)}</div>'


def stage(seen: Seen, palette: Sequence[Colour], plain: Sequence[int]) -> str:
    """The picture under its classes; how strongly they cover it is the style sheet's --tint."""
    width, height = seen.picture.size
    photo = data_address(seen.picture, photograph=True)
    name = escape(seen.name)
    return (
        f'<div class="stage" style="--ratio:{width / height:.5f}">'
        f'<img class="photo" src="{photo}" alt="{name}" draggable="false">'
        f'<img class="tint" src="{_tint(seen, palette, plain)}" alt="classes of {name}" '
        'draggable="false"><i class="cross"></i></div>'
    )


def _tint(seen: Seen, palette: Sequence[Colour], plain: Sequence[int]) -> str:
    """Class colours as a PNG with a palette where that is possible; plain classes let through."""
    image = Image.fromarray(seen.classes)
    buffer = io.BytesIO()
    if seen.classes.dtype == np.uint8:
        image.putpalette([value for colour in palette for value in colour])
        opaque = bytes(0 if k in plain else 255 for k in range(256))
        image.save(buffer, "PNG", transparency=opaque, compress_level=1)
    else:
        table = np.resize(np.array(palette, np.uint8), (int(seen.classes.max()) + 1, 3))
        Image.fromarray(table[seen.classes]).save(buffer, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def legend(explorer: Explorer, seen: Seen) -> str:
    """Classes in the image, the largest first, with their shares."""
    items = [
        f"<li>{chip(explorer.palette[k % 256])}{escape(explorer.names[k])}"
        f'<span class="soft">{percent(share)}</span></li>'
        for k, share in explorer.shares(seen)
    ]
    return f'<ul class="legend" aria-label="Classes in the image">{"".join(items)}</ul>'


def status(seen: Seen, seconds: float) -> str:
    width, height = seen.size
    text = f"{seen.name}: {width}×{height} pixels, {seconds:.2f} s"
    if seen.size != seen.picture.size:
        w, h = seen.picture.size
        text += (
            f". Seen at {w}×{h}, and so is its class map; for all pixels use `hemnet predict` or "
            "a larger --side"
        )
    return f'<p class="status" role="status">{escape(text)}</p>'


def note(message: str) -> str:
    return f'<p class="note">{escape(message)}</p>'


def maps(
    explorer: Explorer,
    seen: Seen,
    solution: Solution,
    gamma: Tensor,
    iteration: int,
    bases: Sequence[int],
) -> str:
    """Features, features rebuilt, and the attention of bases (from 0), at one iteration.

    gamma: its responsibilities N,K.
    """
    rebuilt = solution.rebuilt(gamma, iteration)
    share = explained(seen.x[0], rebuilt)
    kept = f"{percent(share)} of the variance" if share >= 0 else "worse than the mean"
    assert seen.features is not None
    tiles = [
        ("features x", "three main directions", _features(seen, seen.features)),
        ("rebuilt x̃", kept, _features(seen, rebuilt.T.unflatten(1, seen.grid))),
    ]
    size = (seen.picture.height, seen.picture.width)
    main = explorer.main_class(seen, gamma)
    # One scale for all iterations would need them all; the largest of this one is said below.
    highest = float(gamma[:, list(bases)].max()) if bases else 0.0
    for k in bases:
        which, part = main[k]
        text = f"{percent(part)} on {explorer.names[which]}"
        tiles.append(
            (f"basis {k + 1}", text, heat_map(_map(gamma, k, seen), highest, size, seen.placement))
        )
    figures = "".join(
        f'<figure><div class="map"><img src="{address}" alt="{escape(name)}: {escape(text)}">'
        f'<i class="cross"></i></div><figcaption><b>{escape(name)}</b> {escape(text)}</figcaption>'
        "</figure>"
        for name, text, address in tiles
    )
    scale = (
        f'<p class="scale"><span>attention γ</span><span>0</span><i class="ramp"></i>'
        f"<span>{highest:.2f}</span></p>"
        if bases
        else note("Choose bases to see what they attend to.")
    )
    ratio = f"--ratio:{seen.picture.width / seen.picture.height:.5f}"
    mean = ""
    if variance_rebuilt(seen.x, gamma[None], solution.bases[iteration]) < GLOBAL_MEAN:
        mean = note(
            "The bases have collapsed: every position is rebuilt as the same vector, so the unit "
            "is no more than a global mean of this image."
        )
    return f'<div class="maps" style="{ratio}">{figures}</div>{mean}{scale}'


def _map(gamma: Tensor, basis: int, seen: Seen) -> Tensor:
    return gamma[:, basis].unflatten(0, seen.grid)


def _features(seen: Seen, features: Tensor) -> str:
    """C,h,w as a picture."""
    width, height = seen.picture.size
    colours = seen.colours.paint(features).permute(2, 0, 1)[None]
    large = seen.placement.upsample(colours, (height, width))[0].permute(1, 2, 0)
    pixels = (large * 255).byte().numpy()
    factor = DRAWN / max(width, height)
    size = (max(1, round(width * factor)), max(1, round(height * factor)))
    picture = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
    return data_address(picture, photograph=True)


def bound_chart(solution: Solution, own: Solution, iteration: int) -> str:
    """The bound over the iterations, beside that of the model's own settings where they differ."""
    if not solution.bound:
        return note("EMANet's unit scales its bases to length 1: there is no bound it would raise.")
    lines = [_line(solution, "a", dots=True)]
    names = [("a", f"η {step_text(solution.how.steps)}, {solution.iterations} iterations")]
    if own is not solution and own.bound != solution.bound:
        lines.insert(0, _line(own, "b", dots=False))
        text = f"the model's own: η {step_text(own.how.steps)}, {own.iterations} iterations"
        names.append(("b", text))
    chart = line_chart(
        lines,
        x_label="iteration",
        y_label="ELBO per position",
        marker=(iteration, f"shown: {iteration}"),
        whole_x=True,
    )
    keys = "".join(f'<li><i class="key {style}"></i>{escape(name)}</li>' for style, name in names)
    if solution.how.mixture.exact:
        text = "Every step raises it, whatever η."
    else:
        text = "With the dot product the N-step raises it; an E-step may lower it a little."
    gain = solution.bound[-1] - solution.bound[0]
    return (
        f'<ul class="keys">{keys}</ul>{chart}<p class="note">ELBO per position in nats: '
        f"{_signed(solution.bound[0])} → {_signed(solution.bound[-1])} "
        f"({'+' if gain >= 0 else ''}{_signed(gain)}). {text}</p>"
    )


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _line(solution: Solution, style: str, dots: bool) -> Series:
    return Series(style, range(len(solution.bound)), solution.bound, style, dots)


def pixel_head(explorer: Explorer, seen: Seen, x: int, y: int) -> str:
    """A pixel of the file and its class; the style marks it on the picture and on every map."""
    column, row = seen.pixel(x, y)
    which = int(seen.classes[row, column])
    width, height = seen.size
    place = f"--x:{100 * (x + 0.5) / width:.2f}%;--y:{100 * (y + 0.5) / height:.2f}%;--cross:block"
    return (
        f"<style>main{{{place}}}</style>"
        f'<p class="pixel">Pixel ({x}, {y}) {chip(explorer.palette[which % 256])}'
        f"<b>{escape(explorer.names[which])}</b></p>"
    )


def pixel_bars(
    explorer: Explorer, seen: Seen, gamma: Tensor, x: int, y: int
) -> tuple[str, list[int]]:
    """Which bases explain a pixel of the file, as bars, and their numbers from 0. gamma: N,K."""
    head = pixel_head(explorer, seen, x, y)
    here = gamma[seen.position(x, y)]
    order = here.argsort(descending=True).tolist()
    shown = [k for k in order[:BARS] if here[k] >= SMALLEST] or order[:1]
    main = explorer.main_class(seen, gamma)
    rows = []
    for k in shown:
        which, part = main[k]
        text = f"basis {k + 1}", f"{percent(part)} on {explorer.names[which]}"
        rows.append(_bar(*text, float(here[k]), explorer.palette[which % 256]))
    if len(shown) < len(order):
        rest = float(here[order[len(shown) :]].sum())
        rows.append(_bar(f"{len(order) - len(shown)} others", "", rest, None))
    body = f'<ul class="bars" aria-label="Responsibilities of the bases">{"".join(rows)}</ul>'
    return head + body, shown


def _bar(name: str, text: str, value: float, colour: Colour | None) -> str:
    mark = "" if colour is None else chip(colour)
    return (
        f'<li><span class="name">{escape(name)}</span><span class="track">'
        f'<span class="fill" style="width:{100 * value:.1f}%"></span></span>'
        f'<span class="value">{percent(value)}</span>'
        f'<span class="soft about">{mark}{escape(text)}</span></li>'
    )


def chip(colour: Sequence[int]) -> str:
    return f'<i class="chip" style="background:rgb({",".join(map(str, colour[:3]))})"></i>'


def percent(share: float) -> str:
    return f"{100 * share:.1f}%" if 0 < share < 0.01 else f"{100 * share:.0f}%"
