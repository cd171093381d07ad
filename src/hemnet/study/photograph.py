"""Highway EM on one photograph: what each iteration attends to, and how the bound rises.

Colours and positions are the features, so that what the bases find can be seen.

    python -m hemnet.study.photograph OUT

writes iterations.png (what each basis attends to after every iteration, and the image rebuilt),
elbo.png (the likelihood bound over the iterations for several step sizes) and elbo.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

import hemnet
from hemnet.study.figure_style import step_colour, step_label

STEP_SIZES = (0.1, 0.2, 0.4, 0.8, 1.0)
POSITION_WEIGHT = 0.35  # of a position's coordinates beside its colour
VARIANCE = 0.05
SCATTER = 0.3  # of the first bases, in standard deviations of the features


def sample_image(size: int = 160) -> Tensor:
    """A photograph that ships with matplotlib, cut to a square: size,size,3 in 0 … 1."""
    from matplotlib.cbook import get_sample_data

    with Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)) as file:
        picture = file.convert("RGB")
    side = min(picture.size)
    picture = picture.crop((0, 0, side, side)).resize((size, size), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255)


def pixel_features(image: Tensor) -> Tensor:
    """Colour and position of every pixel of an image H,W,3: 1,N,5."""
    height, width, _ = image.shape
    rows, columns = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    place = POSITION_WEIGHT * torch.stack((rows, columns), dim=-1)
    return torch.cat((2 * image - 1, place), dim=-1).reshape(1, -1, 5)


def initial_bases(x: Tensor, count: int, seed: int = 0) -> Tensor:
    """Bases count,C scattered closely around the mean of x: 1,N,C: nearly the same."""
    generator = torch.Generator().manual_seed(seed)
    scatter = torch.randn(count, x.shape[-1], generator=generator)
    return x[0].mean(dim=0) + SCATTER * x[0].std(dim=0) * scatter


def bound_curves(
    x: Tensor, bases: Tensor, iterations: int, step_sizes: Sequence[float]
) -> dict[float, list[float]]:
    """ELBO per position after each iteration, for each step size."""
    return {
        eta: [
            float(step.elbo) / x.shape[1]
            for step in hemnet.trace(x, bases, iterations, eta, VARIANCE, "rbf")
        ]
        for eta in step_sizes
    }


def draw_steps(image: Tensor, steps: dict[int, hemnet.Iteration], path: Path) -> None:
    """A row for each given iteration: the bases' responsibilities and the image rebuilt."""
    height, width, _ = image.shape
    count = next(iter(steps.values())).bases.shape[1]
    figure = Figure(figsize=(1.25 * (count + 2), 1.25 * len(steps) + 0.35), dpi=110)
    axes = figure.subplots(
        len(steps), count + 2, squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04}
    )
    for line, (t, step) in zip(axes, steps.items(), strict=True):
        rebuilt = hemnet.r_step(step.responsibilities, step.bases)[0, :, :3]
        rebuilt_image = ((rebuilt + 1) / 2).clamp(0, 1).reshape(height, width, 3)
        panels = [image, *step.responsibilities[0].T.reshape(count, height, width), rebuilt_image]
        for axis, panel in zip(line, panels, strict=True):
            axis.imshow(panel.numpy(), cmap="magma", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
        line[0].set_ylabel(f"t = {t}", fontsize=10)
    titles = ["image", *(f"basis {k + 1}" for k in range(count)), "rebuilt"]
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10)
    figure.savefig(path, bbox_inches="tight")


def draw_bounds(curves: dict[float, list[float]], path: Path) -> None:
    figure = Figure(figsize=(5.2, 3.4), dpi=140, layout="constrained")
    axis = figure.subplots()
    for eta, values in curves.items():
        steps = range(1, len(values) + 1)
        axis.plot(steps, values, "o-", color=step_colour(eta), label=step_label(eta), ms=3.5)
    axis.set(xlabel="iteration", ylabel="ELBO per position (nats)")
    axis.set_title("Every step raises the bound, whatever η", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Draw highway EM on a photograph.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write to")
    parser.add_argument("--bases", type=int, default=6, help="number of bases (%(default)s)")
    parser.add_argument(
        "--step-size", type=float, default=0.5, help="of the drawn iterations (%(default)s)"
    )
    args = parser.parse_args(argv)
    if not 1 <= args.bases <= 32:
        parser.error(f"--bases must lie between 1 and 32; got {args.bases}")
    if not 0 < args.step_size <= 1:
        parser.error(f"--step-size must lie in (0, 1]; got {args.step_size}")
    args.out.mkdir(parents=True, exist_ok=True)
    picture = sample_image()
    x = pixel_features(picture)
    bases = initial_bases(x, args.bases)
    steps = enumerate(hemnet.trace(x, bases, 8, args.step_size, VARIANCE, "rbf"), start=1)
    shown = {t: step for t, step in steps if t in (1, 2, 4, 8)}
    draw_steps(picture, shown, args.out / "iterations.png")
    curves = bound_curves(x, bases, 12, STEP_SIZES)
    draw_bounds(curves, args.out / "elbo.png")
    text = json.dumps({str(eta): values for eta, values in curves.items()}, indent=1)
    (args.out / "elbo.json").write_text(text + "\n")
    print(f"wrote iterations.png, elbo.png and elbo.json to {args.out}")


if __name__ == "__main__":
    main()
