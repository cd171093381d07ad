"""Every data set reads its owners' layout, knows its facts, and says what is missing."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from hemnet.data import FileDataset, catalog, dataset_info, list_datasets, list_splits, open_dataset
from hemnet.data.class_lists import official_ids, raw_classes
from hemnet.data.datasets.coco import CATEGORIES
from hemnet.data.datasets.coco_stuff import label_map
from hemnet.errors import UserError
from support.tiny_data import folder, ids, image, label


def make_voc(root):
    base = root / "VOCdevkit" / "VOC2012"
    for number, name in enumerate(("2007_000032", "2007_000039", "2007_000033")):
        image(base / "JPEGImages" / f"{name}.jpg", seed=number)
        label(base / "SegmentationClassAug" / f"{name}.png", ids(value=number + 1))
    lists = base / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("2007_000032\n2007_000039\n")
    (lists / "val.txt").write_text("2007_000033\n")
    return root


def make_context(root):
    base = root / "VOC2010"
    image(base / "JPEGImages" / "2008_000002.jpg")
    label(base / "SegmentationClassContext" / "2008_000002.png", ids(value=59))
    (base / "ImageSets" / "Main").mkdir(parents=True)
    (base / "ImageSets" / "Main" / "train.txt").write_text("2008_000002\n")
    return root


def make_stuff(root):
    image(root / "images" / "train2017" / "000000000009.jpg")
    label(root / "stuffthingmaps" / "train2017" / "000000000009.png", ids(value=181))
    return root


def make_coco(root):
    (root / "annotations").mkdir()
    image(root / "train2017" / "000000000009.jpg")
    label(root / "voc_labels" / "train2017" / "000000000009.png", ids(value=20))
    return root


def make_camvid(root):
    image(root / "train" / "0001TP_006690.png")
    label(root / "trainannot" / "0001TP_006690.png", ids(value=11))
    return root


def make_cityscapes(root):
    image(root / "leftImg8bit" / "train" / "ulm" / "ulm_000000_000019_leftImg8bit.png")
    label(
        root / "gtFine" / "train" / "ulm" / "ulm_000000_000019_gtFine_labelIds.png", ids(value=33)
    )
    return root


def make_ade(root):
    base = root / "ADEChallengeData2016"
    image(base / "images" / "training" / "ADE_train_00000001.jpg")
    label(base / "annotations" / "training" / "ADE_train_00000001.png", ids(value=150))
    return root


# Data set → (maker, split, class expected in every pixel of the first image, number of classes)
LAYOUTS = {
    "voc": (make_voc, "train", 1, 21),
    "pascal_context": (make_context, "train", 59, 60),
    "pascal_context_59": (make_context, "train", 58, 59),
    "coco_stuff": (make_stuff, "train2017", 170, 171),
    "coco": (make_coco, "train2017", 20, 21),
    "camvid": (make_camvid, "train", 255, 11),
    "cityscapes": (make_cityscapes, "train", 18, 19),
    "ade20k": (make_ade, "train", 149, 150),
    "folder": (lambda root: folder(root, {"train": 2}, classes=1), "train", 0, 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_contract(tmp_path, name):
    make, split, expected, count = LAYOUTS[name]
    make(tmp_path)
    dataset = open_dataset(name, tmp_path, split)
    pixels, mask, key = dataset[0]
    assert pixels.shape == (3, 24, 32)
    assert pixels.dtype == torch.uint8
    assert mask.shape == (24, 32)
    assert mask.dtype == torch.int64
    assert set(mask.unique().tolist()) == {expected}
    assert key
    assert dataset.num_classes == count == len(dataset.info.palette)
    assert dataset.info.void == 255
    assert split in list_splits(name, tmp_path)
    assert dataset[-1][2] == dataset[len(dataset) - 1][2]
    with pytest.raises(IndexError):
        dataset[len(dataset)]


def test_recolouring_a_data_set_does_not_change_what_its_label_files_mean(tmp_path, monkeypatch):
    make_camvid(tmp_path)
    file = tmp_path / "trainannot" / "0001TP_006690.png"
    label(file, np.full((24, 32, 3), dataset_info("camvid").palette[3], np.uint8))
    before = open_dataset("camvid", tmp_path)[0][1]
    entry = catalog.OFFICIAL["camvid"]
    shown = replace(entry.info, palette=entry.info.palette[::-1])
    monkeypatch.setitem(catalog.OFFICIAL, "camvid", replace(entry, info=shown))
    after = open_dataset("camvid", tmp_path)
    assert after.info.palette[0] == entry.info.palette[-1]
    assert set(before.unique().tolist()) == set(after[0][1].unique().tolist()) == {3}


def test_every_data_set_has_a_contract_test():
    assert set(LAYOUTS) | {"list", "scenes", "recall", "hf"} == set(list_datasets())


SIZES = {
    "voc": {"train": 1464, "trainaug": 10582, "trainval": 2913, "val": 1449},
    "pascal_context": {"train": 4998, "val": 5105},
    "coco_stuff": {"train": 9000, "test": 1000, "train2017": 118287, "val2017": 5000},
    "camvid": {"train": 367, "val": 101, "test": 233},
    "cityscapes": {"train": 2975, "val": 500},
    "ade20k": {"train": 20210, "val": 2000},
}


@pytest.mark.parametrize("name", SIZES)
def test_official_sizes(name):
    assert dict(dataset_info(name).splits) == SIZES[name]


def test_packaged_lists_are_the_official_ones():
    voc = list(official_ids("voc2012").values())
    assert (voc.count("train"), voc.count("val"), voc.count("aug")) == (1464, 1449, 10582 - 1464)
    stuff = list(official_ids("cocostuff10k").values())
    assert (stuff.count("train"), stuff.count("test")) == (9000, 1000)


@pytest.mark.parametrize("name", [n for n in list_datasets() if n not in ("folder", "list")])
def test_class_names_and_colours_are_distinct(name):
    info = dataset_info(name)
    assert len(set(info.classes)) == len(info.classes)
    # ADE20K's own palette gives `road` and `skyscraper` one colour.
    assert len(set(info.palette)) == len(info.palette) - (name == "ade20k")


def test_pascal_context_keeps_the_official_raw_ids():
    raw = raw_classes("pascal_context")
    picks = {0: "background", 2: "aeroplane", 23: "bicycle", 284: "person", 458: "wood"}
    assert {key: raw[key] for key in picks} == picks
    assert list(raw) == sorted(raw)
    assert len(raw) == 60


def test_coco_stuff_leaves_out_the_eleven_removed_categories():
    ten_thousand, all_images = label_map(1), label_map(0)
    void = {raw for raw, target in ten_thousand.items() if target == 255}
    assert void == {0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83, 91}
    kept = [target for target in ten_thousand.values() if target != 255]
    assert kept == list(range(171))
    # The PNG maps of 164k store the raw id less one, and have no 0 for unlabelled.
    assert all(all_images[raw - 1] == ten_thousand[raw] for raw in range(1, 183))
    assert min(all_images) == 0
    assert max(all_images) == 181


def test_coco_categories_become_the_voc_class_of_the_same_name():
    stuff, voc = raw_classes("coco_stuff"), dataset_info("voc").classes
    other = {
        "airplane": "aeroplane",
        "motorcycle": "motorbike",
        "potted plant": "pottedplant",
        "dining table": "diningtable",
        "couch": "sofa",
        "tv": "tvmonitor",
    }
    assert all(other.get(stuff[c], stuff[c]) == voc[v] for c, v in CATEGORIES.items())
    assert sorted(CATEGORIES.values()) == list(range(1, 21))


def test_wrong_count_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "hemnet"):
        dataset = open_dataset("voc", make_voc(tmp_path), "train")
    assert "2 images, while the official split has 1464" in caplog.text
    assert dataset.notes


def test_trainval_is_the_union_of_the_lists_on_disk(tmp_path):
    assert len(open_dataset("voc", make_voc(tmp_path), "trainval")) == 3


def test_missing_files_are_an_error_with_its_fix_and_partial_uses_the_rest(tmp_path):
    make_voc(tmp_path)
    with pytest.raises(UserError, match=r"10580 of 10582 .*prepare voc.*`skip_missing=True`"):
        open_dataset("voc", tmp_path, "trainaug")  # no list on disk: the packaged one
    dataset = open_dataset("voc", tmp_path, "trainaug", skip_missing=True)
    assert isinstance(dataset, FileDataset)
    assert [pair.id for pair in dataset.pairs] == ["2007_000032", "2007_000039"]
    assert len(dataset.missing) == 10580


def test_labels_of_the_devkit_stand_in_where_none_are_converted(tmp_path):
    base = make_voc(tmp_path) / "VOCdevkit" / "VOC2012"
    (base / "SegmentationClassAug" / "2007_000033.png").unlink()
    label(base / "SegmentationClass" / "2007_000033.png", ids(value=7))
    assert open_dataset("voc", tmp_path, "val")[0][1].unique().tolist() == [7]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pascal",), "expected one of voc, pascal_context"),
        (("voc",), "as `root`"),
        (("voc", "/no/such/place"), "no such"),
    ],
)
def test_mistakes_are_answered(arguments, message):
    with pytest.raises(UserError, match=message):
        open_dataset(*arguments)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("camvid", {"classes": "a,b"}),
        ("camvid", {"size": 64}),
        ("folder", {"length": 3}),
        ("scenes", {"label_map": {0: 1}}),
        ("recall", {}),  # its root
        ("scenes", {"classes": "2"}),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(tmp_path, name, option):
    with pytest.raises(UserError, match="is not for"):
        open_dataset(name, tmp_path, **option)


def test_wrong_folder_and_wrong_split_are_answered(tmp_path):
    with pytest.raises(UserError, match="does not hold this data set; expected one of"):
        open_dataset("voc", tmp_path)
    with pytest.raises(UserError, match=r"split 'training': expected one of train, trainaug"):
        open_dataset("voc", make_voc(tmp_path), "training")


def test_sizes_that_differ_name_both_files(tmp_path):
    folder(tmp_path, {"train": 1})
    label(tmp_path / "labels" / "train" / "0.png", np.zeros((5, 5), np.uint8))
    with pytest.raises(UserError, match=r"0\.png: 5×5 .*0\.jpg has 32×24"):
        open_dataset("folder", tmp_path)[0]
