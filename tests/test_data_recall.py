"""`recall`: deterministic, disjoint, and undecidable without the far lamp of the same look."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import hemnet
from hemnet.data import Recall, SegmentationDataset, open_dataset
from hemnet.data.recall import EXTENT, LAMP, LIT, REACH, UNLIT, paint, plan
from hemnet.errors import UserError
from hemnet.inference.evaluate import guessed
from hemnet.training.loop import train
from support.command_line import run
from support.tiny_runs import tiny_config


def layout_of(index, size=128, groups=None):
    generator = Recall("train", size=size).generator(index)
    return generator, plan(generator, size, size, groups)


def test_an_image_is_a_function_of_seed_split_and_index():
    for index in (0, 3, 11):
        one, other = Recall("train", size=64).read(index), Recall("train", size=64).read(index)
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def test_train_val_and_seeds_share_no_image():
    sets = [
        {Recall(split, size=64, seed=seed).read(i)[0].numpy().tobytes() for i in range(40)}
        for split in ("train", "val")
        for seed in (0, 1)
    ]
    assert len(set.union(*sets)) == 160


@pytest.mark.parametrize("size", [64, (64, 96), (150, 70)])
def test_any_size(size):
    height, width = (size, size) if isinstance(size, int) else size
    image, mask, key = Recall("val", size=size, length=5)[4]
    assert image.shape == (3, height, width)
    assert image.dtype == torch.uint8
    assert mask.shape == (height, width)
    assert key == "val-0-4"
    assert set(mask.unique().tolist()) <= {0, LAMP, LIT, UNLIT, 255}


@pytest.mark.parametrize("size", [64, 128])
def test_things_stand_far_from_their_lamp_and_lamps_are_never_covered(size):
    for index in range(40):
        generator, layout = layout_of(index, size)
        assert len(layout.things) >= 3
        for thing in layout.things:
            lamp = layout.lamps[thing.group]
            gap = np.hypot(thing.y - lamp.y, thing.x - lamp.x)
            assert gap - EXTENT * (lamp.radius + thing.radius) >= REACH * size - 1e-6
        _, mask = paint(generator, layout, size, size)
        assert all(mask[int(lamp.y), int(lamp.x)] == LAMP for lamp in layout.lamps)


def test_switching_a_lamp_changes_labels_of_its_group_but_pixels_only_at_the_lamp():
    switched = 0
    for index in range(25):
        generator, layout = layout_of(index)
        state = generator.bit_generator.state
        other_layout = dataclasses.replace(layout, lit=(not layout.lit[0], *layout.lit[1:]))
        image, mask = paint(generator, layout, 128, 128)
        generator.bit_generator.state = state
        other_image, other_mask = paint(generator, other_layout, 128, 128)
        y, x = np.mgrid[:128, :128]
        lamp = layout.lamps[0]
        near = np.hypot(y - lamp.y, x - lamp.x) <= lamp.radius + 1
        assert (image[:, ~near] == other_image[:, ~near]).all()
        assert (image[:, near] != other_image[:, near]).any()
        changed = mask != other_mask
        assert (mask[changed] + other_mask[changed] == LIT + UNLIT).all()
        mine = [thing for thing in layout.things if thing.group == 0]
        away = np.full((128, 128), np.inf)
        for thing in mine:
            away = np.minimum(away, np.hypot(y - thing.y, x - thing.x) - EXTENT * thing.radius)
        assert not changed[away > 1].any()
        switched += int(changed.any())
    assert switched > 15


def test_looks_are_drawn_anew_and_differ_within_an_image():
    layouts = [layout_of(index)[1] for index in range(60)]
    hues = np.array([look.hue for layout in layouts for look in layout.looks])
    assert np.histogram(hues, 6, (0, 1))[0].min() > 0.6 * len(hues) / 6
    for layout in layouts:
        places = np.array([look.place() for look in layout.looks])
        gaps = np.linalg.norm(places[:, None] - places, axis=-1)
        assert gaps[~np.eye(len(places), dtype=bool)].min() > 0.4


def test_groups_and_states_are_balanced():
    layouts = [layout_of(index, 64)[1] for index in range(300)]
    assert {len(layout.lamps) for layout in layouts} == set(range(2, 13))
    assert 0.45 < np.mean([lit for layout in layouts for lit in layout.lit]) < 0.55
    assert {len(layout_of(index, groups=3)[1].lamps) for index in range(9)} == {3}


def test_the_guess_is_the_majority_and_its_figures_are_known():
    data = Recall("val", size=64, length=150, groups=2)
    shares = []
    for index in range(len(data)):
        _, mask = data.read(index)
        guess = data.guess(index, mask)
        things = (mask == LIT) | (mask == UNLIT)
        assert torch.equal(guess[~things], mask[~things])
        assert len(guess[things].unique()) == 1
        shares.append((guess == mask)[things].float().mean())
    assert 0.68 < float(torch.stack(shares).mean()) < 0.82  # of two lamps: 3/4
    found = guessed(data)
    assert found.iou["lamp"] == 100
    assert 50 < found.iou["lit"] < 75
    more = guessed(Recall("val", size=64, length=100, groups=12))
    assert more.iou["lit"] < found.iou["lit"]  # the more groups, the less the majority says


def test_other_data_sets_have_no_guess():
    assert guessed(open_dataset("scenes", split="val", size=32, length=2)) is None
    assert SegmentationDataset.guess is type(open_dataset("scenes", size=32)).guess


@pytest.mark.parametrize(
    "wrong", [{"split": "test"}, {"size": 32}, {"length": 0}, {"groups": 1}, {"groups": 13}]
)
def test_impossible_data_is_answered(wrong):
    with pytest.raises(UserError):
        open_dataset("recall", **wrong)


def test_groups_are_for_recall_alone():
    with pytest.raises(UserError, match="`groups` is not for scenes, but for recall"):
        open_dataset("scenes", groups=3)


def test_its_figure_stands_beside_every_result(tmp_path, capsys):
    info = Recall.info
    model = hemnet.create_model(
        "hemnet", 4, "test_resnet", 16, 8, bases=3, classes=info.classes, palette=info.palette
    )
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "config.yaml").write_text("data: {name: recall, size: 64, val_length: 6}\n")
    expected = guessed(Recall("val", size=64, length=6))
    out = tmp_path / "out.json"
    arguments = ("--workers", "0", "--device", "cpu", "--report", "--json", str(out))
    assert run("evaluate", str(tmp_path), *arguments) == 0
    line = f"mIoU {expected.miou:.2f}   pixel accuracy {expected.pixel_accuracy:.2f}   from the maj"
    assert line in capsys.readouterr().out
    baseline = json.loads(out.read_text())["baseline"]
    assert baseline["miou"] == pytest.approx(expected.miou)
    assert baseline["pixel_accuracy"] == pytest.approx(expected.pixel_accuracy)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"{expected.miou:.1f}% and {expected.pixel_accuracy:.1f}%" in page


def test_training_says_it_too(tmp_path, capsys):
    config = tiny_config("--data.name", "recall", "--data.size", "64", "--optim.steps", "2")
    train(config, tmp_path)
    val = config.data.val_length
    expected = guessed(Recall("val", size=64, length=val))
    line = f"(baseline: {expected.miou:.2f} and {expected.pixel_accuracy:.2f})"
    assert line in capsys.readouterr().err
