"""Figure 4 drawn: the attention of some bases over the iterations, and classes by basis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray
from torch import Tensor

from hemnet.data.dataset import Info
from hemnet.data.show import colour_labels
from hemnet.study.attention import Look, main_colours
from hemnet.study.style import INK, new_figure, save

ATTENTION = "magma"


def draw_attention(
    image: Tensor,
    mask: Tensor | None,
    seen: Look,
    bases: Sequence[int],
    shown: Sequence[int],
    info: Info,
    stem: Path,
) -> list[Path]:
    """Above: image, label, prediction, x. Below: a row for each iteration in `shown`."""
    pictures = main_colours([seen.features, *seen.rebuilt])
    height, width = image.shape[1:]
    columns = max(len(bases) + 1, 4)
    tile = 1.45
    high = tile * height / width
    rows = 1 + len(shown)
    figure = new_figure(tile * columns + 0.35, (high + 0.06) * rows + 0.75)
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.get_layout_engine().set(w_pad=0.015, h_pad=0.015, wspace=0.01, hspace=0.01)  # type: ignore[union-attr, call-arg]
    for axis in axes.flatten():
        axis.set_axis_off()
    head: list[tuple[str, NDArray[Any]]] = [("image", image.permute(1, 2, 0).numpy())]
    if mask is not None:
        head.append(("label", colour_labels(mask, info.palette)))
    head.append(("prediction", colour_labels(seen.prediction, info.palette)))
    for axis, (name, picture) in zip(axes[0], head, strict=False):
        _show(axis, picture, (height, width), name)
    _show(axes[0, -1], pictures[0].numpy(), (height, width), "features x")
    for line, t in zip(axes[1:], shown, strict=True):
        first = t == shown[0]
        for axis, k in zip(line, bases, strict=False):
            gamma = seen.responsibilities[t - 1][k].numpy()
            _show(axis, gamma, (height, width), f"basis {k + 1}" if first else "", vmax=1.0)
        name = "rebuilt x̃" if first else ""
        _show(line[-1], pictures[t].numpy(), (height, width), name)
        line[0].text(
            -0.04, 0.5, f"t = {t}", transform=line[0].transAxes, rotation=90,
            ha="right", va="center", fontsize=10, color=INK,
        )  # fmt: skip
    return save(figure, stem)


def _show(
    axis: Axes, picture: NDArray[Any], size: tuple[int, int], title: str, vmax: float | None = None
) -> None:
    extent = (0.0, float(size[1]), float(size[0]), 0.0)  # maps of any size cover the image
    smooth = "nearest" if picture.dtype == np.uint8 else "bilinear"
    axis.imshow(
        picture, cmap=ATTENTION, vmin=0 if vmax else None, vmax=vmax, extent=extent,
        interpolation=smooth,
    )  # fmt: skip
    axis.set_title(title, fontsize=10, color=INK, pad=3)


def draw_shares(shares: Tensor, weight: Tensor, info: Info, stem: Path) -> list[Path]:
    """Which basis is which class: bases in use, ordered by their main class, by class."""
    values = shares.numpy()
    order = sorted(range(len(values)), key=lambda k: (values[k].argmax(), -values[k].max()))
    used = [k for k in order if float(weight[k]) > 0.1 / len(values)]
    table = values[used]
    number, classes = table.shape
    figure = new_figure(1.6 + 0.34 * classes, 1.5 + 0.21 * number)
    axis = figure.subplots()
    drawn = axis.imshow(100 * table, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    axis.set_xticks(range(classes), info.classes, rotation=90, fontsize=9)
    labels = [f"{k + 1}  ({100 * float(weight[k]):.0f}%)" for k in used]
    axis.set_yticks(range(number), labels, fontsize=8)
    axis.set_ylabel("basis (share of all attention)", fontsize=9.5)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            if value >= 0.10:
                axis.text(
                    j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=7.5,
                    color="white" if value < 0.5 else "black",
                )  # fmt: skip
    bar = figure.colorbar(drawn, ax=axis, shrink=0.8, label="share of the basis' attention (%)")
    bar.outline.set_visible(False)
    return save(figure, stem)
