"""A real road: the photograph, its classes, and what four bases attend to.

    python benchmarks/street_picture.py --out docs/images/road.jpg

The model is the one that comes with hemnet, the photograph `sample_images/road.jpg` (MIT licence).
The bases shown are those that attend to the most different places.
"""

from __future__ import annotations

import argparse
import textwrap
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from matplotlib.patches import Patch
from PIL import Image

import hemnet
from hemnet.data.contact_sheet import colour_labels
from hemnet.inspection.attention import attention_by_class, choose_bases, needed_unit
from hemnet.inspection.em_trace import analyse, trace_unit
from hemnet.study.figure_style import INK, new_figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="camvid", help="(default: %(default)s)")
    parser.add_argument("--image", type=Path, help="another photograph")
    parser.add_argument("--bases", type=int, nargs="+", help="which bases, from 1")
    parser.add_argument("--width", type=int, default=720, help="of the image (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="a picture")
    args = parser.parse_args()
    source = args.image or files("hemnet") / "sample_images" / "road.jpg"
    with source.open("rb") as file, Image.open(file) as opened:
        photograph = opened.convert("RGB")
    height = round(args.width * photograph.height / photograph.width)
    photograph = photograph.resize((args.width, height), Image.Resampling.LANCZOS)

    model = hemnet.from_pretrained(args.model).eval()
    image = torch.from_numpy(np.asarray(photograph).copy()).permute(2, 0, 1)
    analysis = analyse(model, image[None])
    assert analysis.features is not None
    trace = trace_unit(needed_unit(model), analysis.features)
    responsibilities = trace.responsibilities(trace.iterations)[0]
    bases = choose_bases(responsibilities, 4, args.bases)
    prediction = torch.from_numpy(analysis.classes[0]).long()
    classes, palette = model.config.classes, model.config.palette
    assert classes
    assert palette

    figure = new_figure(9.6, 5.15)
    grid = figure.add_gridspec(2, 4, height_ratios=(2, 1))
    left, right = figure.add_subplot(grid[0, :2]), figure.add_subplot(grid[0, 2:])
    left.imshow(photograph)
    left.set_title("photograph", fontsize=10, color=INK)
    tinted = 0.45 * np.asarray(photograph) + 0.55 * colour_labels(prediction, palette)
    right.imshow(tinted.astype(np.uint8))
    right.set_title("prediction", fontsize=10, color=INK)
    counts = torch.bincount(prediction.flatten(), minlength=len(classes))
    named = [int(k) for k in counts.argsort(descending=True) if counts[k] > 0.001 * counts.sum()]
    patches = [
        Patch(color="#{:02x}{:02x}{:02x}".format(*palette[k]), label=classes[k]) for k in named
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=8, frameon=False, fontsize=9)
    by_class = attention_by_class(responsibilities, prediction, analysis.placement, len(classes))
    attention = analysis.placement.upsample(responsibilities[None], (height, args.width))[0]
    for column, k in enumerate(bases):
        axis = figure.add_subplot(grid[1, column])
        axis.imshow(attention[k].numpy(), cmap="magma", vmin=0)
        name = f"basis {k + 1}: {classes[int(by_class[k].argmax())]}"
        axis.set_title(textwrap.shorten(name, 24), fontsize=9.5, color=INK)
    for axis in figure.axes:
        axis.set_axis_off()
    figure.savefig(args.out, dpi=150, pil_kwargs={"quality": 90, "optimize": True})
    print(f"wrote {args.out}: bases {' '.join(str(k + 1) for k in bases)}")


if __name__ == "__main__":
    main()
