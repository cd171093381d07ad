"""Images that are always there: generated scenes, and a photograph that ships with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.cbook import get_sample_data
from PIL import Image

from hemnet.data.scenes import SCENES, Scenes

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
