"""Figure 4: the attention of some bases over the iterations, and the classes of each basis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from torch import Tensor

from hemnet.data.dataset import Info
from hemnet.inspection.attention import FeatureColours
from hemnet.inspection.em_trace import EMTrace
from hemnet.inspection.examples import Example, draw_legend, panels
from hemnet.nn.geometry import Placement
from hemnet.study.figure_style import INK, new_figure, save_figure

ATTENTION = "magma"
MOST_BASES = 16  # with a row of their own


def draw_attention(
    example: Example,
    labelled: bool,
    trace: EMTrace,
    placement: Placement,
    bases: Sequence[int],
    shown: Sequence[int],
    info: Info,
    stem: Path,
) -> list[Path]:
    """Above: image, label if there is one, prediction, x. Below: a row for each t in `shown`."""
    height, width = example.image.shape[1:]

    def at_pixels(maps: Tensor) -> NDArray[Any]:
        """1,h,w or 3,h,w → H,W or H,W,3."""
        large: NDArray[Any] = placement.upsample(maps[None], (height, width))[0].numpy()
        return large[0] if len(large) == 1 else large.transpose(1, 2, 0)

    colours = FeatureColours.of(trace.features[0])
    gammas = {t: trace.responsibilities(t)[0] for t in shown}
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
    head = panels(example, info.palette)
    for name in ("labels", "mistakes") if not labelled else () if columns > 4 else ("mistakes",):
        del head[name]
    for axis, (name, picture) in zip(axes[0], head.items(), strict=False):
        _show(axis, picture, size, name)
    _show(axes[0, -1], at_pixels(colours.picture(trace.features[0])), size, "features x")
    most = max(float(gamma[list(bases)].max()) for gamma in gammas.values())
    for line, t in zip(axes[1:], shown, strict=True):
        first = t == shown[0]
        for axis, k in zip(line, bases, strict=False):
            gamma = at_pixels(gammas[t][k : k + 1])
            drawn = _show(axis, gamma, size, f"basis {k + 1}" if first else "", vmax=most)
        rebuilt = at_pixels(colours.picture(trace.rebuilt(t)[0]))
        _show(line[-1], rebuilt, size, "rebuilt x̃" if first else "")
        line[0].text(
            -0.05, 0.5, f"t = {t}", transform=line[0].transAxes, rotation=90,
            ha="right", va="center", fontsize=10, color=INK,
        )  # fmt: skip
    beside = figure.add_axes((0.4 / wide, 0.36 / total, 0.3, 0.1 / total))
    bar = figure.colorbar(drawn, cax=beside, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=9)
    bar.ax.set_title("attention γ", fontsize=9.5, loc="left", pad=3)
    # The classes in labels or prediction, the most frequent first, as far as there is room.
    both = torch.cat((example.prediction.flatten(), example.mask.flatten())).long()
    counts = torch.bincount(both, minlength=256)[: len(info.classes)]
    present = [k for k in counts.argsort(descending=True).tolist() if counts[k]]
    draw_legend(figure, present[:9], info, "lower right", 3)
    return save_figure(figure, stem)


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

    All others share the last row.
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
    return save_figure(figure, stem)
