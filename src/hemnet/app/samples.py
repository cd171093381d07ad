"""Sample images: generated scenes, a photograph that ships with matplotlib, or a run's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.cbook import get_sample_data
from PIL import Image

from hemnet.data.scenes import SCENES, Scenes
from hemnet.errors import UserError
from hemnet.inspection.em_trace import spread_out
from hemnet.run_folder import RunFolder
from hemnet.training.setup import run_dataset

log = logging.getLogger("hemnet")

OF_A_RUN = 8  # images of its validation set

# Near the size the demo's network is trained on; validation scenes, which it never saw.
SCENE_SIZE, SCENE_NUMBERS = (128, 160), (27, 15, 24, 39, 4)


@dataclass(frozen=True)
class Sample:
    name: str
    picture: Image.Image  # RGB


def samples(classes: Sequence[str]) -> list[Sample]:
    """Scenes first for a model that knows their classes, the photograph first for any other."""
    dataset = Scenes("val", size=SCENE_SIZE)
    scenes = []
    for number, index in enumerate(SCENE_NUMBERS, start=1):
        image, _ = dataset.read(index)
        picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
        scenes.append(Sample(f"scene {number}", picture))
    with Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)) as file:
        photograph = Sample("photograph", file.convert("RGB"))
    if tuple(classes) == SCENES.classes:
        return [*scenes, photograph]
    return [photograph, *scenes]


def samples_of_run(run: str | Path, side: int) -> list[Sample] | None:
    """Images of a run's validation set, at most `side` pixels long; None if there is no run."""
    if not RunFolder(run).holds_run:
        return None
    try:
        dataset = run_dataset(run)
        found = []
        for index in spread_out(len(dataset), OF_A_RUN):
            image, _ = dataset.read(index)
            picture = Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
            picture.thumbnail((side, side), Image.Resampling.LANCZOS)
            found.append(Sample(dataset.id(index), picture))
    except UserError as error:
        log.warning("the run's own images cannot be shown as samples: %s", error)
        return None
    return None if isinstance(dataset, Scenes) else found
