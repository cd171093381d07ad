"""A user's own images: folders in any nesting, lists of pairs, classes, label maps."""

import numpy as np
import pytest
from PIL import Image

from hemnet import cli
from hemnet.data import FileDataset, list_splits, open_dataset, prepare_dataset
from hemnet.data.class_lists import parse_label_map
from hemnet.data.dataset import read_image
from hemnet.errors import UserError
from support.tiny_data import folder, ids, image, label


def keys(dataset):
    assert isinstance(dataset, FileDataset)
    return [pair.id for pair in dataset.pairs]


def test_any_nesting_and_extension(tmp_path):
    for name, ending in (("a/b/one", "jpeg"), ("two", "PNG"), ("c/three", "webp"), ("four", "tif")):
        image(tmp_path / "images" / f"{name}.{ending}")
        label(tmp_path / "masks" / f"{name}.png", ids())
    dataset = open_dataset("folder", tmp_path, "all", classes="road,sky")
    assert sorted(keys(dataset)) == ["a/b/one", "c/three", "four", "two"]
    assert dataset.info.classes == ("road", "sky")
    assert all(dataset[i][0].shape == (3, 24, 32) for i in range(4))


def test_splits_above_or_below(tmp_path):
    below = folder(tmp_path / "below", {"train": 2, "val": 1})
    assert list_splits("folder", below) == ["train", "val"]
    image(tmp_path / "above" / "train" / "images" / "x.jpg")
    label(tmp_path / "above" / "train" / "labels" / "x.png", ids())
    assert list_splits("folder", tmp_path / "above") == ["train"]
    assert keys(open_dataset("folder", tmp_path / "above", "train", classes="2")) == ["x"]
    with pytest.raises(UserError, match="no split 'test'; this folder has train, val"):
        open_dataset("folder", below, "test")


def test_files_without_partner_are_left_out_and_listed(tmp_path):
    folder(tmp_path, {"train": 2})
    image(tmp_path / "images" / "train" / "lonely.jpg")
    label(tmp_path / "labels" / "train" / "orphan.png", ids())
    dataset = open_dataset("folder", tmp_path)
    assert len(dataset) == 2
    assert ["lonely" in text or "orphan" in text for text in dataset.unpaired] == [True, True]


def test_classes_with_colours_read_coloured_labels(tmp_path):
    image(tmp_path / "images" / "x.jpg")
    colours = np.zeros((24, 32, 3), np.uint8)
    colours[:12] = (128, 64, 128)
    colours[12:20] = (10, 20, 30)
    label(tmp_path / "labels" / "x.png", colours)
    (tmp_path / "classes.txt").write_text("main road #804080\nsky #0a141e\n")
    dataset = open_dataset("folder", tmp_path, "all")
    assert dataset.info.classes == ("main road", "sky")
    assert dataset[0][1][:, 0].unique().tolist() == [0, 1, 255]


def test_a_colour_called_void_does_not_count(tmp_path):
    """As the outlines of VOC's labels, which are white in many exports."""
    image(tmp_path / "images" / "x.jpg")
    colours = np.zeros((24, 32, 3), np.uint8)
    colours[:12] = (128, 64, 128)
    colours[12:20] = 255
    label(tmp_path / "labels" / "x.png", colours)
    classes = tmp_path / "classes.txt"
    classes.write_text("ground #000000\nroad #804080\n")
    with pytest.raises(UserError, match=r"colour #ffffff without a class.*`void #ffffff`"):
        open_dataset("folder", tmp_path, "all")[0]
    classes.write_text("ground #000000\nroad #804080\nvoid #ffffff\n")
    dataset = open_dataset("folder", tmp_path, "all")
    assert dataset.info.classes == ("ground", "road")
    assert dataset.info.palette == ((0, 0, 0), (128, 64, 128))
    assert dataset[0][1][:, 0].unique().tolist() == [0, 1, 255]
    classes.write_text("ground #000000\nroad #804080\nvoid #804080\n")
    with pytest.raises(UserError, match="same colour"):
        open_dataset("folder", tmp_path, "all")


def test_colours_for_classes_without_any_are_explained(tmp_path):
    image(tmp_path / "images" / "x.jpg")
    label(tmp_path / "labels" / "x.png", np.full((24, 32, 3), (128, 64, 128), np.uint8))
    (tmp_path / "classes.txt").write_text("ground\nroad\n")
    with pytest.raises(UserError, match=r"the classes have none.*#804080"):
        open_dataset("folder", tmp_path, "all")[0]


def test_any_sub_folder_can_be_a_split(tmp_path):
    folder(tmp_path, {"fold1": 2, "fold2": 1})
    assert len(open_dataset("folder", tmp_path, "fold1")) == 2
    assert len(open_dataset("folder", tmp_path, "all")) == 3


def test_two_files_for_one_name_are_refused(tmp_path):
    folder(tmp_path, {"train": 1})
    image(tmp_path / "images" / "train" / "0.png")
    with pytest.raises(UserError, match=r"0\.png: a second file beside 0\.jpg"):
        open_dataset("folder", tmp_path)


def test_labels_folder_missing_is_answered(tmp_path):
    image(tmp_path / "a" / "images" / "x.jpg")
    with pytest.raises(UserError, match="no labels beside the images"):
        open_dataset("folder", tmp_path / "a", "all", classes="1")
    image(tmp_path / "b" / "images" / "train" / "x.jpg")
    (tmp_path / "b" / "labels").mkdir()
    with pytest.raises(UserError, match=r"labels.train: no such folder"):
        open_dataset("folder", tmp_path / "b", "train", classes="1")


def test_prepare_finds_colours(tmp_path):
    image(tmp_path / "images" / "x.jpg")
    colours = np.zeros((24, 32, 3), np.uint8)
    colours[:12] = (128, 64, 128)
    label(tmp_path / "labels" / "x.png", colours)
    prepare_dataset("folder", tmp_path)
    assert (tmp_path / "classes.txt").read_text().splitlines() == [
        "class 0 #000000",
        "class 1 #804080",
    ]
    assert open_dataset("folder", tmp_path, "all")[0][1][:, 0].unique().tolist() == [0, 1]


def test_prepare_takes_colours_of_labels_that_happen_to_be_grey(tmp_path):
    for name, colour in (("x", (128, 64, 128)), ("y", (0, 0, 0)), ("z", (255, 255, 255))):
        image(tmp_path / "images" / f"{name}.jpg")
        label(tmp_path / "labels" / f"{name}.png", np.full((24, 32, 3), colour, np.uint8))
    assert "call it void" in prepare_dataset("folder", tmp_path)
    lines = (tmp_path / "classes.txt").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["#000000", "#804080", "#ffffff"]


def test_prepare_says_what_smoothed_labels_are(tmp_path):
    image(tmp_path / "images" / "x.jpg")
    noise = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    label(tmp_path / "labels" / "x.png", noise)
    with pytest.raises(UserError, match=r"colours; at most 255.*Smoothed"):
        prepare_dataset("folder", tmp_path)


def test_prepare_finds_classes(tmp_path):
    image(tmp_path / "images" / "x.jpg")
    label(tmp_path / "labels" / "x.png", ids(value=4))
    with pytest.raises(UserError, match="prepare folder"):
        open_dataset("folder", tmp_path, "all")
    assert "5 classes" in prepare_dataset("folder", tmp_path)
    assert open_dataset("folder", tmp_path, "all")[0][1].unique().tolist() == [4]
    assert "already" in prepare_dataset("folder", tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pairs.txt", "im/x.jpg la/x.png\n# a remark\n\n"),
        ("pairs.csv", "image,label\nim/x.jpg,la/x.png\n"),
        ("pairs.tsv", "im/x.jpg\tla/x.png\n"),
    ],
)
def test_lists_of_pairs(tmp_path, name, text):
    image(tmp_path / "im" / "x.jpg")
    label(tmp_path / "la" / "x.png", ids(value=1))
    (tmp_path / name).write_text(text)
    by_file = open_dataset("list", tmp_path / name, "train", classes="2")
    by_folder = open_dataset("list", tmp_path, "pairs", classes="2")
    assert keys(by_file) == keys(by_folder) == ["im/x"]
    assert by_file[0][1].unique().tolist() == [1]


def test_a_line_that_is_no_pair_is_named(tmp_path):
    (tmp_path / "pairs.txt").write_text("a.jpg b.png\nonlyone.jpg\n")
    with pytest.raises(UserError, match=r"pairs\.txt, line 2"):
        open_dataset("list", tmp_path / "pairs.txt", classes="2")


def test_label_map_option(tmp_path):
    assert parse_label_map("0:255,7:0, 8:void") == {0: 255, 7: 0, 8: 255}
    (tmp_path / "map.txt").write_text("3: 1\n4: void\n")
    assert parse_label_map(str(tmp_path / "map.txt")) == {3: 1, 4: 255}
    for wrong in ("3", "a:1", "1:b"):
        with pytest.raises(UserError, match="VALUE:CLASS"):
            parse_label_map(wrong)
    image(tmp_path / "images" / "x.jpg")
    label(tmp_path / "labels" / "x.png", ids(value=7))
    dataset = open_dataset("folder", tmp_path, "all", classes="2", label_map={7: 1})
    assert dataset[0][1].unique().tolist() == [1]


@pytest.mark.parametrize("wrong", ["road", "a,a", "a #000000,b #000000", "0", "300"])
def test_wrong_classes_are_answered(tmp_path, wrong):
    folder(tmp_path, {"train": 1})
    with pytest.raises(UserError):
        open_dataset("folder", tmp_path, classes=wrong)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16", "1"])
def test_images_of_every_mode_become_rgb(tmp_path, mode):
    grey = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (24, 1))
    if mode == "I;16":
        picture = Image.fromarray(grey.astype(np.uint16) * 257)
    elif mode == "P":
        picture = Image.fromarray(grey)
        picture.putpalette([level for level in range(256) for _ in range(3)])
    else:
        picture = Image.fromarray(np.stack([grey] * 3, 2)).convert(mode)
    path = tmp_path / ("x.jpg" if mode == "CMYK" else "x.png")
    picture.save(path)
    pixels = read_image(path)
    assert pixels.shape == (3, 24, 32)
    if mode != "1":
        assert np.abs(pixels[0].numpy().astype(int) - grey).max() <= 6


def beside(root, names, ending="_mask.png"):
    """Images and labels in one folder, told apart by their names."""
    for number, name in enumerate(names):
        image(root / f"{name}.png", seed=number)
        label(root / f"{name}{ending}", ids(value=2, seed=number))
    return root


def test_labels_beside_their_images_by_a_pattern(tmp_path):
    root = beside(tmp_path / "data", ["a", "b", "c_1", "c"])
    assert list_splits("folder", root, "{stem}_mask.png") == ["all"]
    prepare_dataset("folder", root, labels="{stem}_mask.png")
    dataset = open_dataset("folder", root, "all", labels="{stem}_mask.png")
    assert sorted(keys(dataset)) == ["a", "b", "c", "c_1"]
    assert dataset.num_classes == 3
    assert all(p.label.name == f"{p.id}_mask.png" for p in dataset.pairs)
    image(root / "alone.png")
    dataset = open_dataset("folder", root, "all", labels="{stem}_mask.png")
    assert dataset.unpaired == [f"{root / 'alone.png'}: no label for it by the pattern "
                                "{stem}_mask.png"]  # fmt: skip


@pytest.mark.parametrize(
    "image_name, label_name, pattern",
    [
        ("images/train/x.jpg", "labels/train/x_annotation.png", "{stem}_annotation.png"),
        ("images/train/x.jpg", "masks/train/x.png", "masks/{stem}.png"),
        ("images/train/x.jpg", "masks/train/x.png", "masks"),
        ("images/train/x.jpg", "gt/train/x.tif", "gt"),
        ("images/train/d/x.jpg", "gt/d/x.png", "gt/{path}.png"),
        ("train/x.jpg", "train/gt_x.png", "gt_{stem}.png"),
        ("train/images/x.jpg", "train/labels/x_L.png", "{stem}_L.png"),
    ],
)
def test_patterns(tmp_path, image_name, label_name, pattern):
    image(tmp_path / image_name)
    marked = label(tmp_path / label_name, ids(value=1, seed=0))
    assert list_splits("folder", tmp_path, pattern) == ["train"]
    dataset = open_dataset("folder", tmp_path, "train", classes="2", labels=pattern)
    assert [pair.label for pair in dataset.pairs] == [marked]


def test_names_that_do_not_match_are_shown_with_the_pattern_that_would(tmp_path):
    for n in range(3):
        image(tmp_path / "images" / "train" / f"{n:03}.jpg")
        label(tmp_path / "labels" / "train" / f"{n:03}_mask.png", ids())
    with pytest.raises(UserError) as error:
        open_dataset("folder", tmp_path, "train", classes="2")
    text = str(error.value)
    assert "none of the 3 labels has the name of one of the 3 images" in text
    assert "000.jpg needs the label 000.png; the closest is 000_mask.png" in text
    assert "`labels='{stem}_mask.png'`" in text
    assert "archive" not in text
    assert len(open_dataset("folder", tmp_path, classes="2", labels="{stem}_mask.png")) == 3


@pytest.mark.parametrize(
    "ending, said",
    [
        (".jpg", "JPG changes pixels when it compresses"),
        (".npy", "Save each .npy as PNG, with PIL"),
        (".json", "hemnet data prepare labelme"),
    ],
)
def test_labels_that_are_no_label_pictures_are_refused_by_name(tmp_path, ending, said):
    image(tmp_path / "images" / "train" / "a.png")
    (tmp_path / "labels" / "train").mkdir(parents=True)
    if ending == ".jpg":
        image(tmp_path / "labels" / "train" / "a.jpg")
    else:
        (tmp_path / "labels" / "train" / f"a{ending}").write_bytes(b"x")
    with pytest.raises(UserError, match=f"1 files such as a{ending}") as error:
        open_dataset("folder", tmp_path, "train", classes="2")
    assert said in str(error.value)


def test_bad_patterns(tmp_path):
    beside(tmp_path, ["a"])
    for pattern, said in (
        ("{name}.png", "expected a file name with {stem}"),
        ("*.png", "expected a file name with {stem}"),
        ("{stem}_mask.jpg", "Export the labels as PNG"),
        ("{stem}_gt.png", "none has a label by the pattern"),
    ):
        with pytest.raises(UserError) as error:
            open_dataset("folder", tmp_path, "all", classes="3", labels=pattern)
        assert said in str(error.value)


def test_two_folders_of_labels_are_named_and_one_is_chosen(tmp_path):
    folder(tmp_path, {"train": 2})
    for n in range(2):
        label(tmp_path / "masks" / "train" / f"{n}.png", ids(value=1))
    with pytest.raises(UserError, match=r"2 folders of labels, labels/ and masks/"):
        open_dataset("folder", tmp_path)
    chosen = open_dataset("folder", tmp_path, labels="masks")
    assert {pair.label.parent.parent.name for pair in chosen.pairs} == {"masks"}


def test_a_folder_without_splits_says_how_to_divide_it(tmp_path):
    image(tmp_path / "images" / "a.jpg")
    label(tmp_path / "labels" / "a.png", ids())
    with pytest.raises(UserError, match=r"no split 'train'.*hemnet data split folder"):
        open_dataset("folder", tmp_path, "train", classes="2")


def test_an_empty_folder_says_what_it_holds(tmp_path):
    (tmp_path / "images" / "train").mkdir(parents=True)
    (tmp_path / "labels" / "train").mkdir(parents=True)
    (tmp_path / "images" / "train" / "a.heic").write_bytes(b"x")
    with pytest.raises(UserError, match=r"no images \(1 × .heic\)"):
        open_dataset("folder", tmp_path, "train", classes="2")


@pytest.mark.parametrize("command", ["check", "show", "prepare", "split"])
def test_one_folder_for_all_says_which_pattern_its_labels_may_follow(tmp_path, capsys, command):
    root = beside(tmp_path / "data", ["a", "b", "c"], "_labels.png")
    with pytest.raises(SystemExit) as end:
        cli.main(["data", command, "folder", "--root", str(root)])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "If a_labels.png is the label of a.png: --labels '{stem}_labels.png'" in said
    image(tmp_path / "other" / "x.jpg")
    with pytest.raises(UserError, match=r"1 images, such as x"):
        list_splits("folder", tmp_path / "other")


def test_missing_classes_are_found_with_the_same_pattern(tmp_path):
    root = beside(tmp_path, ["a"])
    with pytest.raises(
        UserError, match=r"prepare folder --root .* --data.labels '{stem}_mask.png'"
    ):
        open_dataset("folder", root, "all", labels="{stem}_mask.png")
