"""What labelling tools write becomes a folder of ours: LabelMe, COCO JSON, CVAT."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from hemnet import cli
from hemnet.cli.data import FORMATS
from hemnet.data import open_dataset
from hemnet.data.annotation_formats import READERS
from hemnet.data.annotation_shapes import Shape, decode_runs, rasterise
from hemnet.data.import_annotations import convert_annotations
from hemnet.errors import DataError, UserError
from support.tiny_data import image

HEIGHT, WIDTH = 24, 32


def labelme(root, name, shapes, **fields):
    content = {
        "version": "5.4.1",
        "shapes": [
            {"label": label, "points": corners, "shape_type": kind, **extra}
            for label, kind, corners, extra in shapes
        ],
        "imagePath": f"{name}.jpg",
        "imageData": None,
        "imageHeight": HEIGHT,
        "imageWidth": WIDTH,
    }
    path = root / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | fields))
    return path


def box(left, top, right, bottom):
    return [[left, top], [right, top], [right, bottom], [left, bottom]]


def labels(out, key, split="all"):
    dataset = open_dataset("folder", out, split)
    (index,) = (i for i in range(len(dataset)) if dataset.id(i) == key)
    return dataset, dataset[index][1].numpy()


def test_names_of_the_formats_are_those_of_the_readers():
    assert set(READERS) == set(FORMATS)


def test_labelme_shapes(tmp_path):
    photos, out = tmp_path / "photos", tmp_path / "out"
    image(photos / "a.jpg", HEIGHT, WIDTH)
    png = io.BytesIO()
    Image.fromarray(np.full((3, 4), 255, np.uint8)).save(png, "PNG")
    labelme(
        photos,
        "a",
        [
            ("field", "polygon", box(0, 0, 16, 24), {}),
            ("weed", "rectangle", [[2, 2], [6, 5]], {}),
            ("weed", "circle", [[24, 12], [27, 12]], {}),
            (
                "stem",
                "mask",
                [[20, 1], [23, 3]],
                {"mask": base64.b64encode(png.getvalue()).decode()},
            ),
            ("stem", "line", [[0, 0], [9, 9]], {}),
            ("__ignore__", "polygon", box(28, 20, 32, 24), {}),
        ],
    )
    said = convert_annotations("labelme", photos, out=out)
    dataset, found = labels(out, "a")
    assert dataset.info.classes == ("background", "field", "stem", "weed")
    expected = np.zeros((HEIGHT, WIDTH), np.int64)
    expected[:, :16] = 1
    expected[2:5, 2:6] = 3
    expected[1:4, 20:24] = 2
    expected[20:, 28:] = 255
    circle = found[8:16, 20:28] == 3
    assert abs(circle.sum() - np.pi * 9) < 4
    found[8:16, 20:28][circle] = 0
    assert (found == expected).all()
    assert "1 shapes of the kind 'line'" in said
    assert "overlap (12 pixels)" in said


def test_labelme_images_elsewhere_embedded_missing_and_turned(tmp_path):
    photos, notes, out = tmp_path / "photos", tmp_path / "json", tmp_path / "out"
    image(photos / "deep" / "a.jpg", HEIGHT, WIDTH)
    labelme(notes, "a", [("x", "polygon", box(0, 0, 8, 8), {})], imagePath="..\\photos\\a.jpg")
    image(tmp_path / "b.jpg", HEIGHT, WIDTH, seed=1)
    data = base64.b64encode((tmp_path / "b.jpg").read_bytes()).decode()
    labelme(notes, "b", [], imageData=data)
    labelme(notes, "gone", [])
    turned = Image.fromarray(np.zeros((WIDTH, HEIGHT, 3), np.uint8))  # stored on its side
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save(photos / "c.jpg", exif=exif)
    labelme(notes, "c", [("X ", "polygon", box(0, 0, 8, 8), {})])
    said = convert_annotations("labelme", photos, notes, out)
    assert "gone.json: left out, its image 'gone.jpg' is not there" in said
    assert "1 images have no shape" in said
    assert "1 images were turned upright" in said
    assert "'X ' and 'x' are different classes" in said
    dataset, found = labels(out, "c")
    assert len(dataset) == 3
    assert (found[:8, :8] == 1).all()
    assert dataset[2][0].shape == (3, HEIGHT, WIDTH)


def test_given_classes_keep_their_order_and_unknown_labels_are_reported(tmp_path):
    image(tmp_path / "p" / "a.jpg", HEIGHT, WIDTH)
    shapes = [("b", "polygon", box(0, 0, 8, 8), {}), ("cat", "polygon", box(9, 9, 12, 12), {})]
    labelme(tmp_path / "p", "a", shapes)
    said = convert_annotations(
        "labelme", tmp_path / "p", out=tmp_path / "out", classes="ground,c,b"
    )
    dataset, found = labels(tmp_path / "out", "a")
    assert dataset.info.classes == ("ground", "c", "b")
    assert set(np.unique(found)) == {0, 2}
    assert "'cat' is not among the given classes: 1 shapes are left out" in said
    assert "pixels without a shape are 'ground'" in said


def coco(path, images, annotations, names=("rock", "tree"), **fields):
    content = {
        "images": [
            {"id": i, "file_name": name, "height": HEIGHT, "width": WIDTH}
            for i, name in enumerate(images)
        ],
        "annotations": annotations,
        "categories": [{"id": 7 + i, "name": name} for i, name in enumerate(names)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | fields))


def test_coco_polygons_and_run_lengths(tmp_path):
    tools = pytest.importorskip("pycocotools.mask")
    image(tmp_path / "a.jpg", HEIGHT, WIDTH)
    image(tmp_path / "sub" / "b.jpg", HEIGHT, WIDTH, seed=1)
    region = np.zeros((HEIGHT, WIDTH), np.uint8)
    region[3:9, 20:29] = 1
    packed = tools.encode(np.asfortranarray(region))
    flat = region.T.ravel()
    changes = np.flatnonzero(np.diff(flat)) + 1
    plain = np.diff([0, *changes, flat.size]).tolist()
    size = [HEIGHT, WIDTH]
    coco(
        tmp_path / "instances.json",
        ["a.jpg", "sub/b.jpg", "gone.jpg"],
        [
            {"image_id": 0, "category_id": 7, "segmentation": [[0, 0, 8, 0, 8, 8, 0, 8]]},
            {"image_id": 0, "category_id": 8,
             "segmentation": {"size": size, "counts": packed["counts"].decode()}},
            {"image_id": 1, "category_id": 8, "segmentation": {"size": size, "counts": plain}},
            {"image_id": 1, "category_id": 8, "bbox": [0, 0, 3, 3]},
        ],
    )  # fmt: skip
    said = convert_annotations("coco-json", tmp_path, out=tmp_path / "out")
    dataset, found = labels(tmp_path / "out", "a")
    assert dataset.info.classes == ("background", "rock", "tree")
    assert (found[:8, :8] == 1).all()
    assert (found == 2).sum() == region.sum()
    assert (labels(tmp_path / "out", "sub/b")[1] == 2 * region).all()
    assert "1 of 3 images are not below" in said
    assert "1 annotations have a box and no outline" in said


def test_coco_files_of_several_splits(tmp_path):
    for split, name in (("train", "a"), ("valid", "b")):  # as Roboflow exports
        image(tmp_path / split / f"{name}.jpg", HEIGHT, WIDTH)
        annotation = {"image_id": 0, "category_id": 8, "segmentation": [[0, 0, 8, 0, 8, 8]]}
        above = [{"id": 0, "name": "things", "supercategory": "none"}] + [
            {"id": 7 + i, "name": n, "supercategory": "things"} for i, n in enumerate("rt")
        ]
        coco(tmp_path / split / "_annotations.coco.json", [f"{name}.jpg"], [annotation],
             categories=above)  # fmt: skip
    said = convert_annotations("coco-json", tmp_path, out=tmp_path / "out")
    assert "(1 train, 1 val)" in said
    assert labels(tmp_path / "out", "b", "val")[0].info.classes == ("background", "r", "t")


def test_cvat_masks(tmp_path):
    base = tmp_path / "task"
    image(base / "JPEGImages" / "a.jpg", HEIGHT, WIDTH)
    image(base / "JPEGImages" / "b.jpg", HEIGHT, WIDTH, seed=1)
    (base / "labelmap.txt").write_text(
        "# label:color_rgb:parts:actions\nbackground:0,0,0::\ncar:250,50,83::\nroad:1,2,3::\n"
    )
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[:5] = (1, 2, 3)
    pixels[5:9] = (250, 50, 83)
    (base / "SegmentationClass").mkdir()
    Image.fromarray(pixels).save(base / "SegmentationClass" / "a.png")
    Image.fromarray(pixels).quantize(8).save(base / "SegmentationClass" / "b.png")
    Image.fromarray(pixels).save(base / "SegmentationClass" / "gone.png")
    said = convert_annotations("cvat", base, out=tmp_path / "out")
    for key in "ab":  # colours, or a palette of them
        dataset, found = labels(tmp_path / "out", key)
        assert dataset.info.classes == ("background", "car", "road")
        assert found[:, 0].tolist() == [2] * 5 + [1] * 4 + [0] * (HEIGHT - 9)
    assert "gone.png: left out, its image is not there" in said
    pixels[0, 0] = (9, 9, 9)
    Image.fromarray(pixels).save(base / "SegmentationClass" / "a.png")
    with pytest.raises(DataError, match=r"a.png: the colour \(9, 9, 9\) is not in labelmap"):
        convert_annotations("cvat", base, out=tmp_path / "again")
    assert not (tmp_path / "again").exists(), "written whole or not at all"


@pytest.mark.parametrize("name", FORMATS)
def test_a_folder_without_annotations_is_a_clear_mistake(name, tmp_path, capsys):
    image(tmp_path / "photos" / "a.jpg")
    with pytest.raises(SystemExit) as end:
        cli.main(["data", "prepare", name, "--root", str(tmp_path / "photos")])
    assert end.value.code == 2
    assert str(tmp_path / "photos") in capsys.readouterr().err


def test_damaged_files_are_named(tmp_path):
    image(tmp_path / "a.jpg", HEIGHT, WIDTH)
    labelme(tmp_path, "a", [("x", "polygon", [[0]], {})])
    with pytest.raises(DataError, match=r"a\.json: shape 1 is damaged"):
        convert_annotations("labelme", tmp_path)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(DataError, match=r"a\.json: cannot be read as JSON"):
        convert_annotations("labelme", tmp_path)
    labelme(tmp_path, "a", [], imageHeight=99, imageWidth=99)
    with pytest.raises(DataError, match="annotated with 99×99"):
        convert_annotations("labelme", tmp_path)
    coco(tmp_path / "a.json", ["a.jpg"], [{"image_id": 0, "category_id": 1}])
    with pytest.raises(DataError, match="not COCO annotations"):
        convert_annotations("coco-json", tmp_path)


@pytest.mark.parametrize("named", ["../../a.jpg", "/data/photos/a.jpg", "C:\\photos\\a.jpg"])
def test_names_that_lead_out_of_the_folder_stay_inside(named, tmp_path):
    image(tmp_path / "p" / "a.jpg", HEIGHT, WIDTH)
    coco(tmp_path / "p" / "a.json", [named], [])
    convert_annotations("coco-json", tmp_path / "p", out=tmp_path / "out")
    assert labels(tmp_path / "out", "a")[1].max() == 0


def test_nothing_is_overwritten(tmp_path):
    image(tmp_path / "p" / "a.jpg", HEIGHT, WIDTH)
    labelme(tmp_path / "p", "a", [("x", "polygon", box(0, 0, 8, 8), {})])
    convert_annotations("labelme", tmp_path / "p")
    assert (tmp_path / "p-prepared" / "labels" / "a.png").is_file()
    with pytest.raises(UserError, match="exists already"):
        convert_annotations("labelme", tmp_path / "p")


def test_the_smaller_of_two_shapes_counts_in_any_order():
    large, small = (
        Shape("a", [np.array(box(0, 0, 20, 20))]),
        Shape("b", [np.array(box(5, 5, 9, 9))]),
    )
    for order in ([large, small], [small, large]):
        drawn = rasterise(order, {"a": 1, "b": 2}, HEIGHT, WIDTH)
        assert (drawn.labels == 2).sum() == 16
        assert drawn.contested == 16


def test_outlines_are_filled_where_pixel_centres_lie_inside():
    tools = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    ours, theirs = 0, 0
    for _ in range(40):
        angles = np.sort(rng.random(6)) * 2 * np.pi
        radius = rng.uniform(8, 30, 6)
        corners = np.column_stack((32 + radius * np.cos(angles), 32 + radius * np.sin(angles)))
        mine = Shape("x", [corners]).area(64, 64)
        other = tools.decode(tools.frPyObjects([corners.ravel().tolist()], 64, 64))[..., 0] > 0
        assert (mine & other).sum() > 0.8 * (mine | other).sum()
        ours, theirs = ours + mine.sum(), theirs + other.sum()
    assert abs(ours / theirs - 1) < 0.02


def test_run_lengths_of_another_size_are_refused():
    with pytest.raises(ValueError, match="run lengths of 7"):
        decode_runs([3, 4], 2, 2)


def test_unknown_tools_are_answered_with_the_known_ones(tmp_path):
    with pytest.raises(UserError, match="expected one of labelme, coco-json, cvat"):
        convert_annotations("labelbox", tmp_path)
