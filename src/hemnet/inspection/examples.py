"""Figures of an evaluation: the confusion matrix, and images beside labels and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor, nn

from hemnet.data.contact_sheet import VOID_COLOUR, colour_labels
from hemnet.data.dataset import Info, SegmentationDataset
from hemnet.data.labels import VOID, Colour
from hemnet.data.transforms import normalise
from hemnet.inference.evaluate import normalisation
from hemnet.inference.options import InferenceOptions
from hemnet.inference.probabilities import em_iterations, predict_classes

NUMBERED = 24  # up to this many classes the cells of the matrix carry their numbers


@dataclass(frozen=True)
class Example:
    """An image, its labels and a model's prediction."""

    id: str
    image: Tensor  # 3,H,W uint8
    mask: Tensor  # H,W uint8
    prediction: Tensor  # H,W uint8


@torch.inference_mode()
def examples(
    model: nn.Module,
    dataset: SegmentationDataset,
    ids: Sequence[str],
    options: InferenceOptions,
) -> list[Example]:
    """The model's predictions for some images of a data set. The model is in evaluation mode.

    `options` are those of the evaluation that the examples are shown with.
    """
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
    """H,W,3: the image in pale grey, wrong pixels in red, void in its own colour."""
    grey = example.image.float().mean(0).numpy()
    picture = np.repeat((0.45 * grey + 140)[..., None], 3, axis=2)
    wrong = ((example.mask != example.prediction) & (example.mask != VOID)).numpy()
    picture[wrong] = 0.25 * picture[wrong] + 0.75 * np.array((214, 39, 40))
    picture[(example.mask == VOID).numpy()] = VOID_COLOUR
    return picture.astype(np.uint8)


def panels(example: Example, palette: Sequence[Colour]) -> dict[str, NDArray[np.uint8]]:
    """The pictures of an example by name, H,W,3 each."""
    return {
        "image": example.image.permute(1, 2, 0).contiguous().numpy(),
        "labels": colour_labels(example.mask, palette),
        "prediction": colour_labels(example.prediction, palette),
        "mistakes": mistakes(example),
    }


def draw_examples(
    found: Sequence[Example], captions: Sequence[str], info: Info, path: Path
) -> None:
    """A row for each example: image, labels, prediction, mistakes; a legend below."""
    heights = [example.mask.shape[0] / example.mask.shape[1] for example in found]
    figure = Figure(figsize=(8.4, 2.05 * sum(heights) + 0.25 * len(found) + 0.6), dpi=100)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(len(found), 4, squeeze=False, height_ratios=heights)
    for row, example, caption in zip(axes, found, captions, strict=True):
        for axis, (name, pixels) in zip(row, panels(example, info.palette).items(), strict=True):
            axis.imshow(pixels, interpolation="antialiased" if name == "image" else "nearest")
            title = name if example is found[0] else ""
            if name == "image":  # the end of a long path says more than its beginning
                title = caption if len(caption) <= 40 else f"…{caption[-39:]}"
            axis.set_title(title, fontsize=8, loc="left", color="grey")
            axis.set_axis_off()
    masks = [mask.flatten() for example in found for mask in (example.mask, example.prediction)]
    draw_legend(figure, torch.cat(masks).unique().tolist(), info, "outside lower center", 6)
    figure.savefig(path)


def draw_legend(
    figure: Figure, values: Sequence[int], info: Info, place: Any, columns: int
) -> None:
    """Colours and names of these class ids."""
    known = [
        (VOID_COLOUR, "void") if k == VOID else (info.palette[k], info.classes[k]) for k in values
    ]
    patches = [
        Patch(fc="#{:02x}{:02x}{:02x}".format(*colour), ec="grey", lw=0.5, label=name)
        for colour, name in known
    ]
    figure.legend(
        handles=patches, loc=place, ncols=columns, frameon=False, fontsize=8.5, handlelength=1,
        handleheight=1, columnspacing=1.0, handletextpad=0.4, borderaxespad=0.2,
    )  # fmt: skip


def draw_confusion(confusion: Tensor, classes: Sequence[str], path: Path) -> None:
    """Rows are labels, each in percent of its pixels; the diagonal is the recall."""
    counts = confusion.double()
    kept = (counts.sum(0) + counts.sum(1) > 0).nonzero().flatten()  # absent classes are left out
    counts = counts[kept][:, kept]
    names = [classes[int(k)] for k in kept]
    shares = (100 * counts / counts.sum(1, keepdim=True)).numpy()  # nan where never a label
    number = len(names)
    cell = 0.42 if number <= NUMBERED else 0.17
    side = max(3.0, cell * number + 1.6)
    figure = Figure(figsize=(side + 0.6, side), dpi=120, layout="constrained")
    axis = figure.subplots()
    axis.set_facecolor("#eeeeee")  # seen where a class is never a label
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
