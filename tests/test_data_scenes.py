"""`scenes`: deterministic, disjoint, and undecidable without the far lamp."""

import dataclasses

import numpy as np
import pytest
import torch

from hemnet.data import Scenes, dataset_info, open_dataset
from hemnet.data.scenes import EXTENT, FIRST_THING, LAMP, REACH, Lamp, Scene, paint, plan
from hemnet.errors import UserError


def test_a_scene_is_a_function_of_seed_split_and_index():
    for index in (0, 3, 11):
        one, other = Scenes("train", size=64).read(index), Scenes("train", size=64).read(index)
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_train_val_and_seeds_share_no_scene():
    sets = [
        {Scenes(split, size=32, seed=seed).read(i)[0].numpy().tobytes() for i in range(60)}
        for split in ("train", "val")
        for seed in (0, 1)
    ]
    assert len(set.union(*sets)) == 240


@pytest.mark.parametrize("size", [32, 100, (48, 96), (150, 70)])
def test_any_size(size):
    height, width = (size, size) if isinstance(size, int) else size
    image, mask, key = Scenes("val", size=size, length=5)[4]
    assert image.shape == (3, height, width)
    assert image.dtype == torch.uint8
    assert mask.shape == (height, width)
    assert key == "val-0-4"


def test_every_class_occurs_and_no_other():
    counts = np.zeros(256, int)
    for index in range(150):
        mask = Scenes("train", size=64).read(index)[1].numpy()
        counts += np.bincount(mask.ravel(), minlength=256)
    classes = len(dataset_info("scenes").classes)
    assert classes >= 8
    assert (counts[:classes] > 0).all()
    assert counts[255] > 0  # void outlines
    assert counts[classes:255].sum() == 0


def scene_of(index, size=128):
    generator = Scenes("train", size=size).generator(index)
    return generator, plan(generator, size, size)


@pytest.mark.parametrize("size", [64, 128, 300])
def test_things_stand_far_from_their_lamp(size):
    for index in range(100):
        _, scene = scene_of(index, size)
        lamps = {lamp.colour: lamp for lamp in scene.lamps}
        assert scene.things
        for thing in scene.things:
            lamp = lamps[thing.colour]
            gap = np.hypot(thing.y - lamp.y, thing.x - lamp.x)
            gap -= Lamp.GLOW * lamp.radius + EXTENT * thing.radius
            assert gap >= REACH * size - 1e-6


def test_switching_a_lamp_changes_labels_everywhere_but_pixels_only_at_the_lamp():
    switched = 0
    for index in range(25):
        generator, scene = scene_of(index)
        state = generator.bit_generator.state
        lamp = scene.lamps[0]
        lamps = (dataclasses.replace(lamp, lit=not lamp.lit), *scene.lamps[1:])
        image, mask = paint(generator, scene, 128, 128)
        generator.bit_generator.state = state
        other_image, other_mask = paint(generator, Scene(lamps, scene.things), 128, 128)
        y, x = np.mgrid[:128, :128]
        glow = np.hypot(y - lamp.y, x - lamp.x) <= Lamp.GLOW * lamp.radius + 1
        assert (image[:, ~glow] == other_image[:, ~glow]).all()
        assert (image[:, glow] != other_image[:, glow]).any()
        # The things of its colour change their class, all of them, and nothing else does.
        first = FIRST_THING + 2 * lamp.colour
        mine = (mask == first) | (mask == first + 1)
        assert (mask[mine] + other_mask[mine] == 2 * first + 1).all()
        assert (mask[~mine] == other_mask[~mine]).all()
        switched += int(mine.any())
    assert switched > 15


def test_states_and_colours_are_balanced():
    scenes = [scene_of(index, 64)[1] for index in range(400)]
    states = [lamp.lit for scene in scenes for lamp in scene.lamps]
    assert 0.45 < np.mean(states) < 0.55
    colours = np.bincount([thing.colour for scene in scenes for thing in scene.things])
    assert colours.min() > 0.8 * colours.max()
    radii = [thing.radius for scene in scenes for thing in scene.things]
    assert max(radii) > 2.5 * min(radii)  # several scales


def test_lamps_are_never_covered():
    for index in range(40):
        generator, scene = scene_of(index)
        _, mask = paint(generator, scene, 128, 128)
        for lamp in scene.lamps:
            assert mask[int(lamp.y), int(lamp.x)] == LAMP


@pytest.mark.parametrize("wrong", [{"split": "test"}, {"size": 16}, {"length": 0}])
def test_impossible_scenes_are_answered(wrong):
    with pytest.raises(UserError):
        open_dataset("scenes", **wrong)
