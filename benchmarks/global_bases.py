"""Windows of a large mosaic, each for itself or explained by the bases of the whole.

A mosaic of generated scenes in which all things of a colour are lit, or all are unlit. Which, only
lamps of that colour tell, and these stand in the columns at the left, the things in the others. A
window of the size that the network was trained on sees things or lamps and can only guess. Three
ways to predict the mosaic with one and the same network: in windows, each with EM bases of its
own; in windows that share bases fitted to all of them (`--global-bases`); and at once.

    hemnet demo                                             # trains the network
    python benchmarks/global_bases.py --model runs/demo --picture docs/images/global_bases.png \\
        --json benchmarks/results/global_bases.json
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from common import arguments, parse, save, show
from hemnet.data.contact_sheet import colour_labels
from hemnet.data.scene_renderer import Canvas
from hemnet.data.scenes import COLOURS, GROUNDS, LAMP, SCENES, Lamp, Scene, plan
from hemnet.data.transforms import normalise
from hemnet.inference.evaluate import normalisation
from hemnet.inference.global_bases import fit_global_bases, using_bases
from hemnet.inference.metrics import Evaluation, confusion_matrix, subset_miou
from hemnet.inference.open_model import load_model
from hemnet.inference.options import InferenceOptions
from hemnet.inference.sliding_window import window_grid, windowed_classes
from hemnet.models.segmenter import Segmenter

CELL = 96  # pixels, as in the demo's training
WAYS = ("windows", "windows, global bases", "at once")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="runs/demo")
    parser.add_argument("--mosaics", type=int, default=8)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--columns", type=int, default=9)
    parser.add_argument("--picture", type=Path)
    args = parse(parser)
    model, classes = load_model(args.model), len(SCENES.classes)
    confusion = {way: torch.zeros(classes, classes, dtype=torch.int64) for way in WAYS}
    for seed in range(args.mosaics):
        image, mask = mosaic(seed, args.rows, args.columns)
        for way, found in predictions(model, image).items():
            pair = (torch.from_numpy(ids.astype(np.int64)) for ids in (mask, found))
            confusion[way] += confusion_matrix(*pair, classes)
    if args.picture is not None:
        image, mask = mosaic(0, 4, 6)
        draw(image, mask, predictions(model, image), args.picture)
    rows = {}
    for way in WAYS:
        result = Evaluation(confusion[way], SCENES.classes, ())
        context = subset_miou(result, SCENES.context_classes)
        rows[way] = {"miou": result.miou, "miou_of_things": context}
    pixels = [args.rows * CELL, args.columns * CELL]
    save(args.json, {"mosaics": args.mosaics, "pixels": pixels, "window": CELL, "ways": rows})
    show(
        f"{args.mosaics} mosaics of {pixels[0]}×{pixels[1]} pixels",
        ("prediction", "mIoU", "mIoU of things"),
        [(way, f"{r['miou']:.1f}", f"{r['miou_of_things']:.1f}") for way, r in rows.items()],
    )


def mosaic(seed: int, rows: int, columns: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Image H,W,3 and labels H,W: lamps in the left third, things in the rest."""
    rng = np.random.default_rng([seed, rows, columns])
    lit = rng.random(len(COLOURS)) < 0.5
    image = np.empty((rows * CELL, columns * CELL, 3), np.uint8)
    mask = np.empty(image.shape[:2], np.uint8)
    for number in range(rows * columns):
        scene = plan(rng, CELL, CELL)
        lamps = tuple(replace(lamp, lit=bool(lit[lamp.colour])) for lamp in scene.lamps)
        pixels, labels = draw_cell(rng, Scene(lamps, scene.things), number % columns < columns // 3)
        top, left = CELL * (number // columns), CELL * (number % columns)
        image[top : top + CELL, left : left + CELL] = pixels.transpose(1, 2, 0)
        mask[top : top + CELL, left : left + CELL] = labels
    return image, mask


def draw_cell(
    rng: np.random.Generator, scene: Scene, lamps: bool
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """A cell: only the lamps of a scene, or only its things."""
    canvas = Canvas(rng, CELL, CELL, len(GROUNDS))
    for thing in () if lamps else scene.things:
        canvas.thing(
            scene.class_of(thing), thing.colour, thing.shape, (thing.y, thing.x), thing.radius,
            thing.angle, thing.tint,
        )  # fmt: skip
    for lamp in scene.lamps if lamps else ():
        place = (lamp.y, lamp.x)
        canvas.lamp(LAMP, lamp.colour, lamp.lit, place, lamp.radius, Lamp.GLOW)
    return canvas.finish()


@torch.inference_mode()
def predictions(model: Segmenter, image: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    settings, device, picture = normalisation(model), torch.device("cpu"), Image.fromarray(image)
    wanted = InferenceOptions(window=CELL)
    grid = window_grid(*image.shape[:2], wanted.window_size, wanted.overlap)
    found = {WAYS[0]: windowed_classes(model, picture, settings, wanted, device)}
    bases = fit_global_bases(model, picture, grid, settings, device)
    with using_bases(model, bases):
        found[WAYS[1]] = windowed_classes(model, picture, settings, wanted, device)
    whole = torch.from_numpy(image).permute(2, 0, 1)[None]
    whole = normalise(whole, settings.mean, settings.std)
    found[WAYS[2]] = model(whole).argmax(1)[0].numpy().astype(np.uint8)
    return found


def draw(
    image: NDArray[np.uint8], mask: NDArray[np.uint8], found: dict[str, NDArray[Any]], path: Path
) -> None:
    """Image and labels above, the two ways with windows below."""
    panels = {"mosaic": image, "labels": colours(mask)}
    panels |= {way: colours(found[way]) for way in WAYS[:2]}
    height, width = image.shape[:2]
    gap, line = 10, 26
    sheet = Image.new("RGB", (2 * width + 3 * gap, 2 * (height + line) + gap), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=17)
    for number, (name, pixels) in enumerate(panels.items()):
        left = gap + (number % 2) * (width + gap)
        top = (number // 2) * (height + line) + line
        pen.text((left, top - line + 4), name, fill=(30, 30, 36), font=font)
        sheet.paste(Image.fromarray(pixels), (left, top))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, optimize=True)


def colours(mask: NDArray[Any]) -> NDArray[np.uint8]:
    return colour_labels(torch.from_numpy(mask), SCENES.palette)


if __name__ == "__main__":
    main()
