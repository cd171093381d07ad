"""Pictures of an evaluation: the confusion matrix, and images beside labels and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from hemnet.data.contact_sheet import GAP, INK, PAPER, VOID_COLOUR, colour_labels
from hemnet.data.dataset import Info, SegmentationDataset
from hemnet.data.labels import VOID
from hemnet.data.transforms import normalise
from hemnet.inference.evaluate import normalisation
from hemnet.inference.options import EvaluationOptions, em_iterations, predict_classes

NUMBERED = 24  # up to this many classes the cells of the matrix carry their numbers


@dataclass(frozen=True)
class Example:
    """An image as it was read, its labels, and what a model saw in it."""

    id: str
    image: Tensor  # 3,H,W uint8
    mask: Tensor  # H,W uint8
    prediction: Tensor  # H,W uint8


@torch.inference_mode()
def examples(
    model: nn.Module,
    dataset: SegmentationDataset,
    ids: Sequence[str],
    options: EvaluationOptions | None = None,
) -> list[Example]:
    """The model's predictions for some images of a data set. The model is in evaluation mode."""
    options = options or EvaluationOptions()
    wanted = set(ids)
    places = {name: index for index in range(len(dataset)) if (name := dataset.id(index)) in wanted}
    settings = normalisation(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    found = []
    with em_iterations(model, options.iterations):
        for name in ids:
            image, mask = dataset.read(places[name])
            batch = normalise(image[None].to(device), settings.mean, settings.std)
            prediction = predict_classes(model, batch, options)[0].to("cpu", torch.uint8)
            found.append(Example(name, image, mask, prediction))
    return found


def mistakes(example: Example) -> NDArray[np.uint8]:
    """H,W,3: the image in pale grey, wrong pixels in red, void as in label pictures."""
    grey = example.image.float().mean(0).numpy()
    picture = np.repeat((0.45 * grey + 140)[..., None], 3, axis=2)
    wrong = ((example.mask != example.prediction) & (example.mask != VOID)).numpy()
    picture[wrong] = 0.25 * picture[wrong] + 0.75 * np.array((214, 39, 40))
    picture[(example.mask == VOID).numpy()] = VOID_COLOUR
    return picture.astype(np.uint8)


def draw_examples(
    found: Sequence[Example], captions: Sequence[str], info: Info, path: Path, tile: int = 200
) -> None:
    """A row for each example: image, labels, prediction, mistakes; a legend below."""
    font = ImageFont.load_default(size=13)
    line, heads = 20, ("image", "labels", "prediction", "mistakes")
    sizes = [_fit(example.mask.shape, tile) for example in found]
    width = 2 * GAP + len(heads) * (max(w for w, _ in sizes) + GAP)
    present = sorted({int(v) for e in found for m in (e.mask, e.prediction) for v in m.unique()})
    legend = _legend_places(info, present, width, font)
    height = line + sum(h + line + GAP for _, h in sizes) + legend[-1][1] + 2 * line
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    step = max(w for w, _ in sizes) + GAP
    for number, head in enumerate(heads):
        pen.text((2 * GAP + number * step, 4), head, fill=INK, font=font)
    top = line
    for example, caption, size in zip(found, captions, sizes, strict=True):
        pen.text((2 * GAP, top + 2), caption, fill=(120, 120, 126), font=font)
        top += line
        panels = (
            example.image.permute(1, 2, 0).contiguous().numpy(),
            colour_labels(example.mask, info.palette),
            colour_labels(example.prediction, info.palette),
            mistakes(example),
        )
        for number, panel in enumerate(panels):
            smooth = Image.Resampling.LANCZOS if number == 0 else Image.Resampling.NEAREST
            picture = Image.fromarray(panel).resize(size, smooth)
            sheet.paste(picture, (2 * GAP + number * step, top))
        top += size[1] + GAP
    for name, y, x, colour in legend:
        pen.rectangle((x, top + y + 1, x + 12, top + y + 13), fill=colour, outline=(120, 120, 120))
        pen.text((x + 18, top + y - 1), name, fill=INK, font=font)
    sheet.save(path)


def _fit(shape: Sequence[int], tile: int) -> tuple[int, int]:
    """Width and height of H,W with the longer side scaled to `tile`."""
    factor = tile / max(shape)
    return max(1, round(shape[1] * factor)), max(1, round(shape[0] * factor))


def _legend_places(
    info: Info,
    present: Sequence[int],
    width: int,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> list[tuple[str, int, int, tuple[int, int, int]]]:
    """Name, y, x and colour of every entry, in lines as wide as the sheet."""
    places, x, y = [], 2 * GAP, GAP
    for value in present:
        name = "void" if value == VOID else info.classes[value]
        colour = VOID_COLOUR if value == VOID else info.palette[value]
        needed = 36 + int(font.getlength(name))
        if x + needed > width and x > 2 * GAP:
            x, y = 2 * GAP, y + 20
        places.append((name, y, x, colour))
        x += needed
    return places


def draw_confusion(confusion: Tensor, classes: Sequence[str], path: Path) -> None:
    """Rows are labels, each in percent of its pixels; the diagonal is what was right."""
    counts = confusion.double()
    kept = (counts.sum(0) + counts.sum(1) > 0).nonzero().flatten()  # absent classes say nothing
    counts = counts[kept][:, kept]
    names = [classes[int(k)] for k in kept]
    shares = (100 * counts / counts.sum(1, keepdim=True)).numpy()  # nan where never a label
    number = len(names)
    cell = 0.42 if number <= NUMBERED else 0.17
    side = max(3.0, cell * number + 1.6)
    figure = Figure(figsize=(side + 0.6, side), dpi=120, layout="constrained")
    axis = figure.subplots()
    axis.set_facecolor("#eeeeee")  # shows through where a class is never a label
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    size = 8 if number <= NUMBERED else 5
    axis.set_xticks(range(number), names, rotation=90, fontsize=size)
    axis.set_yticks(range(number), names, fontsize=size)
    axis.set_xlabel("prediction")
    axis.set_ylabel("label")
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    if number <= NUMBERED:
        for row, values in enumerate(shares):
            for column, value in enumerate(values):
                if value >= 0.5:
                    colour = "white" if value > 55 else "#202830"
                    axis.text(column, row, f"{value:.0f}", color=colour, **style)
    bar = figure.colorbar(image, ax=axis, shrink=0.7, label="percent of the label's pixels")
    bar.outline.set_visible(False)
    figure.savefig(path)
