"""Raw labels become PNG files, whole or not at all."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from hemnet.data import open_dataset, prepare_dataset
from hemnet.data.class_lists import official_ids
from hemnet.data.datasets import voc
from hemnet.data.label_conversion import need
from hemnet.errors import DataError, UserError
from support.tiny_data import ids, image, label

scipy_io = pytest.importorskip("scipy.io")


def save_mat(path, **fields):
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, fields)
    return path


def test_voc_takes_the_devkit_s_labels_and_sbd_s_for_the_rest(tmp_path, monkeypatch):
    few = {"2007_000032": "train", "2008_000002": "aug", "2007_000033": "val"}
    monkeypatch.setattr(voc, "official_ids", lambda name: few)
    base = tmp_path / "VOCdevkit" / "VOC2012"
    for name in few:
        image(base / "JPEGImages" / f"{name}.jpg")
    label(base / "SegmentationClass" / "2007_000032.png", ids(value=3))
    label(base / "SegmentationClass" / "2007_000033.png", ids(value=255))
    mats = tmp_path / "benchmark_RELEASE" / "dataset" / "cls"
    for name in ("2007_000032", "2008_000002"):  # SBD also has the first; the devkit's is better
        save_mat(mats / f"{name}.mat", GTcls={"Segmentation": ids(value=15), "Boundaries": 0})
    assert "3 labels written" in prepare_dataset("voc", tmp_path)
    values = {
        name: np.unique(np.asarray(Image.open(base / "SegmentationClassAug" / f"{name}.png")))
        for name in few
    }
    assert {k: v.tolist() for k, v in values.items()} == {
        "2007_000032": [3],
        "2008_000002": [15],
        "2007_000033": [255],
    }
    with Image.open(base / "SegmentationClassAug" / "2008_000002.png") as picture:
        assert picture.getpalette()[45:48] == [192, 128, 128]  # person, in VOC's colours
    assert "0 labels written" in prepare_dataset("voc", tmp_path)


def test_voc_with_labels_missing_writes_nothing(tmp_path):
    base = tmp_path / "VOC2012"
    (base / "JPEGImages").mkdir(parents=True)
    with pytest.raises(UserError, match="no SBD labels"):
        prepare_dataset("voc", tmp_path)
    (tmp_path / "cls").mkdir()
    total = len(official_ids("voc2012"))
    with pytest.raises(UserError, match=f"{total} of {total} labels .*nothing was written"):
        prepare_dataset("voc", tmp_path)
    assert not (base / "SegmentationClassAug").exists()


def test_pascal_context_keeps_59_classes_and_makes_the_rest_background(tmp_path):
    base = tmp_path / "VOCdevkit" / "VOC2010"
    image(base / "JPEGImages" / "2008_000002.jpg", 1, 5)
    raw = np.array([[2, 284, 458, 1, 459]], np.uint16)  # aeroplane, person, wood, two rare ones
    save_mat(tmp_path / "trainval" / "2008_000002.mat", LabelMap=raw)
    (base / "ImageSets" / "Main").mkdir(parents=True)
    (base / "ImageSets" / "Main" / "train.txt").write_text("2008_000002\n")
    prepare_dataset("pascal_context", tmp_path)
    sixty = open_dataset("pascal_context", tmp_path)
    names = [sixty.info.classes[v] for v in sixty[0][1][0]]
    assert names == ["aeroplane", "person", "wood", "background", "background"]
    fifty_nine = open_dataset("pascal_context_59", tmp_path)
    values = fifty_nine[0][1][0].tolist()
    assert values[3:] == [255, 255]
    assert [fifty_nine.info.classes[v] for v in values[:3]] == names[:3]


def test_coco_stuff_10k_from_mat(tmp_path):
    key = "COCO_train2014_000000000077"
    image(tmp_path / "images" / f"{key}.jpg", 1, 4)
    save_mat(tmp_path / "annotations" / f"{key}.mat", S=np.array([[0, 1, 182, 12]], np.uint8))
    prepare_dataset("coco_stuff", tmp_path)
    dataset = open_dataset("coco_stuff", tmp_path, "train", skip_missing=True)
    assert dataset[0][1][0].tolist() == [255, 0, 170, 255]
    assert (dataset.info.classes[0], dataset.info.classes[170]) == ("person", "wood")


def test_damaged_mat_names_itself_and_leaves_no_half_file(tmp_path):
    (tmp_path / "images").mkdir()
    save_mat(tmp_path / "annotations" / "a.mat", S=ids())
    (tmp_path / "annotations" / "b.mat").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"b\.mat"):
        prepare_dataset("coco_stuff", tmp_path)
    assert [p.name for p in (tmp_path / "labels").iterdir()] == ["a.png"]
    save_mat(tmp_path / "annotations" / "b.mat", T=ids())
    with pytest.raises(DataError, match=r"b\.mat: no field 'S'"):
        prepare_dataset("coco_stuff", tmp_path)
    save_mat(tmp_path / "annotations" / "b.mat", S=ids(value=200))
    with pytest.raises(DataError, match=r"b\.mat: ids up to 200"):
        prepare_dataset("coco_stuff", tmp_path)
    save_mat(tmp_path / "annotations" / "b.mat", S=ids())
    assert "1 labels written" in prepare_dataset("coco_stuff", tmp_path)


def test_many_labels_are_converted_in_parallel_alike(tmp_path):
    (tmp_path / "images").mkdir()
    for number in range(40):
        save_mat(tmp_path / "annotations" / f"{number}.mat", S=ids(value=number))
    assert "40 labels written" in prepare_dataset("coco_stuff", tmp_path)
    for number in (0, 17, 39):
        with Image.open(tmp_path / "labels" / f"{number}.png") as picture:
            assert np.unique(np.asarray(picture)).tolist() == [number]


def polygon(top, left, bottom, right):
    return [[left, top, right, top, right, bottom, left, bottom]]


def test_coco_masks_become_voc_labels(tmp_path):
    pytest.importorskip("pycocotools")
    annotation = {"image_id": 1, "iscrowd": 0, "area": 1, "bbox": [0, 0, 1, 1]}
    crowd = {"size": [80, 80], "counts": [0, 800, 5600]}  # the first 10 columns
    content = {
        "images": [
            {"id": 1, "file_name": "000000000001.jpg", "height": 80, "width": 80},
            {"id": 2, "file_name": "000000000002.jpg", "height": 80, "width": 80},
        ],
        "categories": [{"id": 18, "name": "dog"}, {"id": 1, "name": "person"}, {"id": 28}],
        "annotations": [
            annotation | {"id": 1, "category_id": 18, "segmentation": polygon(10, 20, 50, 60)},
            annotation | {"id": 2, "category_id": 1, "segmentation": polygon(30, 40, 70, 80)},
            annotation | {"id": 3, "category_id": 28, "segmentation": polygon(60, 20, 80, 40)},
            annotation | {"id": 4, "category_id": 1, "iscrowd": 1, "segmentation": crowd},
            annotation  # too small an image's worth
            | {"id": 5, "image_id": 2, "category_id": 1, "segmentation": polygon(0, 0, 9, 9)},
        ],
    }
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    assert "1 labels" in prepare_dataset("coco", tmp_path)
    image(tmp_path / "val2017" / "000000000001.jpg", 80, 80)
    dataset = open_dataset("coco", tmp_path, "val2017")
    assert len(dataset) == 1
    mask = dataset[0][1]
    picks = {(20, 30): 12, (60, 70): 15, (40, 50): 255, (70, 30): 0, (5, 5): 255, (5, 70): 0}
    assert {place: int(mask[place]) for place in picks} == picks


def test_a_missing_extra_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    monkeypatch.delitem(sys.modules, "pycocotools.coco", raising=False)
    with pytest.raises(UserError, match=r"hemnet-torch\[data\]"):
        need("pycocotools.coco")
