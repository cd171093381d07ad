"""Figure 4 drawn: the attention of some bases over the iterations, and classes by basis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from numpy.typing import NDArray
from torch import Tensor

from hemnet.data.contact_sheet import colour_labels
from hemnet.data.dataset import Info
from hemnet.inspection.attention import Look, main_colours
from hemnet.inspection.examples import Example, mistakes
from hemnet.study.figure_style import INK, new_figure, save

ATTENTION = "magma"
MOST_BASES = 16  # with a row of their own


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
    height, width = image.shape[1:]
    place = seen.placement

    def at_pixels(maps: Tensor) -> NDArray[Any]:
        """h,w or h,w,3 → H,W or H,W,3."""
        flat = maps[None] if maps.ndim == 2 else maps.permute(2, 0, 1)
        large = place.upsample(flat[None], (height, width))[0]
        return (large[0] if maps.ndim == 2 else large.permute(1, 2, 0)).numpy()

    pictures = [at_pixels(one) for one in main_colours([seen.features, *seen.rebuilt])]
    columns, rows, tile = max(len(bases) + 1, 4), 1 + len(shown), 1.45
    high = tile * height / width
    figure = Figure(figsize=(tile * columns + 0.4, high * rows + 1.42), dpi=200)
    # Places by hand: pictures of one size, rows close together, room for names above two of them.
    wide, total = figure.get_size_inches()
    axes = np.empty((rows, columns), dtype=object)
    for i in range(rows):
        top = 0.27 + i * (high + 0.05) + (0.27 if i else 0)
        for j in range(columns):
            left, below = 0.4 + j * tile, total - top - high
            axes[i, j] = figure.add_axes(
                (left / wide, below / total, (tile - 0.05) / wide, high / total)
            )
            axes[i, j].set_axis_off()
    size = (height, width)
    head: list[tuple[str, NDArray[Any]]] = [("image", image.permute(1, 2, 0).numpy())]
    if mask is not None:
        head.append(("label", colour_labels(mask, info.palette)))
    head.append(("prediction", colour_labels(seen.prediction, info.palette)))
    if mask is not None and columns > 4:
        found = Example("", image, mask, seen.prediction.to(torch.uint8))
        head.append(("mistakes", mistakes(found)))
    for axis, (name, picture) in zip(axes[0], head, strict=False):
        _show(axis, picture, size, name)
    _show(axes[0, -1], pictures[0], size, "features x")
    most = max(float(seen.responsibilities[t - 1][list(bases)].max()) for t in shown)
    for line, t in zip(axes[1:], shown, strict=True):
        first = t == shown[0]
        for axis, k in zip(line, bases, strict=False):
            gamma = at_pixels(seen.responsibilities[t - 1][k])
            drawn = _show(axis, gamma, size, f"basis {k + 1}" if first else "", vmax=most)
        _show(line[-1], pictures[t], size, "rebuilt x̃" if first else "")
        line[0].text(
            -0.05, 0.5, f"t = {t}", transform=line[0].transAxes, rotation=90,
            ha="right", va="center", fontsize=10, color=INK,
        )  # fmt: skip
    beside = figure.add_axes((0.4 / wide, 0.36 / total, 0.3, 0.1 / total))
    bar = figure.colorbar(drawn, cax=beside, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9)
    bar.ax.set_title("attention γ", fontsize=9.5, loc="left", pad=3)
    _legend(figure, seen.prediction, mask, info)
    return save(figure, stem)


def _legend(figure: Figure, prediction: Tensor, mask: Tensor | None, info: Info) -> None:
    """The classes in label or prediction, the most frequent first, as far as there is room."""
    seen = prediction if mask is None else torch.cat((prediction.flatten(), mask.long().flatten()))
    counts = torch.bincount(seen.flatten().long(), minlength=256)[: len(info.classes)]
    order = [int(k) for k in counts.argsort(descending=True) if counts[k]][:9]
    patches = [
        Patch(color="#{:02x}{:02x}{:02x}".format(*info.palette[k]), label=info.classes[k])
        for k in order
    ]
    figure.legend(
        handles=patches, loc="lower right", ncols=3, frameon=False, fontsize=8.5,
        handlelength=1, handleheight=1, columnspacing=1.0, handletextpad=0.4, borderaxespad=0.2,
    )  # fmt: skip


def _show(
    axis: Axes, picture: NDArray[Any], size: tuple[int, int], title: str, vmax: float | None = None
) -> AxesImage:
    extent = (0.0, float(size[1]), float(size[0]), 0.0)  # maps of any size cover the image
    smooth = "nearest" if picture.dtype == np.uint8 else "bilinear"
    drawn = axis.imshow(
        picture, cmap=ATTENTION, vmin=0 if vmax else None, vmax=vmax, extent=extent,
        interpolation=smooth,
    )  # fmt: skip
    if title:
        axis.set_title(title, fontsize=10, color=INK, pad=3)
    return drawn


def draw_shares(shares: Tensor, weight: Tensor, info: Info, stem: Path) -> list[Path]:
    """Which basis is which class: the bases with most attention, ordered by their main class.

    All others are one row at the end, so that nothing is left out.
    """
    values, most = shares.numpy(), [float(w) for w in weight]
    used = sorted((k for k, w in enumerate(most) if w > 0.1 / len(most)), key=lambda k: -most[k])
    used = sorted(used[:MOST_BASES], key=lambda k: (values[k].argmax(), -values[k].max()))
    labels = [f"{k + 1}  ({100 * most[k]:.0f}%)" for k in used]
    table, rest = values[used], [k for k in range(len(most)) if k not in used]
    if rest:
        total = sum(most[k] for k in rest)
        together = sum(most[k] * values[k] for k in rest) / max(total, 1e-300)
        table = np.vstack((table, together))
        labels.append(f"{len(rest)} others  ({100 * total:.0f}%)")
    number, classes = table.shape
    figure = new_figure(1.6 + 0.34 * classes, 1.5 + 0.21 * number)
    axis = figure.subplots()
    drawn = axis.imshow(100 * table, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    axis.set_xticks(range(classes), info.classes, rotation=90, fontsize=9)
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
    if rest:
        axis.axhline(number - 1.5, color="white", lw=3)
    bar = figure.colorbar(drawn, ax=axis, shrink=0.8, label="share of the basis' attention (%)")
    bar.outline.set_visible(False)
    return save(figure, stem)
