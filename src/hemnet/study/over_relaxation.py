"""Steps beyond plain EM: how many iterations does η between 1 and 2 save in evaluation?

    python -m hemnet.study.over_relaxation OUT.json [--model camvid --images CamVid/val]

On a photograph's colours and positions, with bases that start nearly equal, and, with `--model`, on
what the EM unit of a trained model sees of images, with the unit's own mixture and bases. Two
figures for each step size: the share of the bound's whole rise that three iterations reach, and how
many iterations reach 99% of it. A run's whole rise is from its first E-step to its last iteration.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hemnet
from hemnet.data.dataset import read_image
from hemnet.em import Mixture
from hemnet.em.mixtures import describe, mixture_from
from hemnet.inspection.em_trace import analyse, find_unit
from hemnet.study.photograph import VARIANCE, initial_bases, pixel_features, sample_image

STEP_SIZES = (0.5, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8)
ITERATIONS = 100  # taken for the limit
SEEDS = 10  # starts on the photograph
BASES = 6
SIDE = 64  # of the photograph, pixels

Start = tuple[Tensor, Tensor, Mixture]  # x: 1,N,C, bases and what they are bases of


def rise(start: Start, step_size: float, iterations: int = ITERATIONS) -> Tensor:
    """The share of the bound's whole rise, after each iteration: T."""
    x, bases, mixture = start
    gamma = hemnet.e_step(x, bases, mixture=mixture)
    first = hemnet.elbo(x, bases, gamma, mixture=mixture)
    steps = hemnet.trace(x, bases, iterations, step_size, mixture=mixture)
    bounds = torch.cat([step.elbo for step in steps])
    return (bounds - first) / (bounds[-1] - first)


def reached(shares: Tensor, level: float) -> int:
    """The first iteration from which on at least this share is reached."""
    below = torch.nonzero(shares < level)
    return 1 if len(below) == 0 else int(below[-1]) + 2


def compare(starts: Sequence[Start], step_sizes: Iterable[float]) -> dict[str, dict[str, float]]:
    """Medians over the starts, by step size."""
    found = {}
    for eta in step_sizes:
        runs = [rise(start, eta) for start in starts]
        found[str(eta)] = {
            "after_3": statistics.median(float(run[2]) for run in runs),
            "iterations_to_99": statistics.median(reached(run, 0.99) for run in runs),
        }
    return found


def photograph_starts(seeds: int = SEEDS) -> list[Start]:
    x = pixel_features(sample_image(SIDE)).double()
    mixture = hemnet.Gaussian(VARIANCE, "rbf")
    return [(x, initial_bases(x, BASES, seed), mixture) for seed in range(seeds)]


def model_starts(model: torch.nn.Module, pictures: Iterable[Tensor]) -> list[Start]:
    """What the model's EM unit starts from on each picture 3,H,W."""
    unit = find_unit(model)
    if unit is None or not isinstance(unit.plan().mixture, hemnet.Gaussian):
        raise SystemExit("the model needs an EM unit of Gaussians: a HEMNet")
    mixture = mixture_from(describe(unit.plan().mixture))  # σ² as a number
    starts: list[Start] = []
    for picture in pictures:
        features = analyse(model, picture[None]).features
        assert features is not None
        x = features.flatten(2).mT.double().clone()
        with torch.no_grad():
            starts.append((x, unit.starting_bases(x.float()).double(), mixture))
    return starts


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--model", help="a HEMNet: a folder or a name")
    parser.add_argument("--images", type=Path, metavar="DIR", help="for the model")
    parser.add_argument("--count", type=int, default=4, help="images, evenly (%(default)s)")
    args = parser.parse_args(argv)
    if (args.model is None) != (args.images is None):
        parser.error("give both --model and --images, or neither")
    settings: dict[str, Callable[[], list[Start]]] = {"photograph": photograph_starts}
    if args.model is not None:
        names = sorted(p for p in args.images.iterdir() if p.suffix in (".png", ".jpg"))
        chosen = names[:: max(1, len(names) // args.count)][: args.count]
        model = hemnet.from_pretrained(args.model).eval()
        settings["model"] = lambda: model_starts(model, [read_image(name) for name in chosen])
    found: dict[str, Any] = {"iterations": ITERATIONS}
    for name, make in settings.items():
        starts = make()
        found[name] = {"starts": len(starts), "step_sizes": compare(starts, STEP_SIZES)}
        for eta, row in found[name]["step_sizes"].items():
            print(
                f"{name}, η {eta}: {row['after_3']:.1%} after three iterations, 99% after "
                f"{row['iterations_to_99']:g}"
            )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
