"""`check` finds each kind of fault and names the file; `show` draws; the command answers."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from hemnet import cli
from hemnet.data import (
    Augmentation,
    DataError,
    Scenes,
    check_datasets,
    draw_contact_sheet,
    open_dataset,
    training_batches,
)
from hemnet.data.contact_sheet import VOID_COLOUR, colour_labels, save_sheet
from hemnet.errors import UserError
from support.tiny_data import folder, ids, image, label


@pytest.fixture
def root(tmp_path):
    return folder(tmp_path / "data", {"train": 4, "val": 2})


@pytest.fixture
def hemnet(monkeypatch, capsys):
    """Run the command line: exit code, standard output, standard error."""
    monkeypatch.setattr(cli, "COMMANDS", {"data": "hemnet.cli.data"})

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["data", *map(str, arguments)])
        return exit_info.value.code, *capsys.readouterr()

    return run


def faults(root):
    report = check_datasets(
        [open_dataset("folder", root, s, skip_missing=True) for s in ("train", "val")]
    )
    return {(problem.kind, problem.split): problem.message for problem in report.problems}


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


# What is done to the data → (kind, split, file named)
FAULTS = {
    "image truncated": (lambda r: truncate(r / "images/train/1.jpg"), "unreadable", "1.jpg"),
    "label truncated": (lambda r: truncate(r / "labels/train/1.png"), "unreadable", "1.png"),
    "no image": (lambda r: (r / "images/train/1.jpg").write_text("x"), "unreadable", "1.jpg"),
    "image gone": (lambda r: (r / "images/train/1.jpg").unlink(), "unpaired", "1.png"),
    "label gone": (lambda r: (r / "labels/train/1.png").unlink(), "unpaired", "1.jpg"),
    "other size": (lambda r: label(r / "labels/train/1.png", ids(9, 9)), "size", "1.png"),
    "other value": (lambda r: label(r / "labels/train/1.png", ids(value=9)), "values", "1.png"),
    "all void": (lambda r: label(r / "labels/train/1.png", ids(value=255)), "void", "1.png"),
}


def test_a_sound_data_set_has_no_faults(root):
    assert faults(root) == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_and_named(root, fault):
    spoil, kind, name = FAULTS[fault]
    spoil(root)
    found = faults(root)
    assert list(found) == [(kind, "train")]
    assert name in found[kind, "train"]


def test_a_picture_in_two_splits_is_found_under_another_name(root):
    shutil.copy(root / "images/train/2.jpg", root / "images/val/0.jpg")
    found = faults(root)
    assert list(found) == [("duplicate", "val")]
    assert "0.jpg" in found["duplicate", "val"]
    assert "2.jpg" in found["duplicate", "val"]


def test_listed_files_that_are_gone_are_missing(tmp_path):
    image(tmp_path / "a.jpg")
    label(tmp_path / "a.png", ids())
    (tmp_path / "pairs.txt").write_text("a.jpg a.png\nb.jpg b.png\n")
    report = check_datasets(
        [open_dataset("list", tmp_path / "pairs.txt", classes="1", skip_missing=True)]
    )
    assert [p.kind for p in report.problems] == ["missing", "missing"]
    assert ["b." in p.message for p in report.problems] == [True, True]


def test_shares_are_of_labelled_pixels(tmp_path):
    image(tmp_path / "images/x.jpg")
    values = ids()
    values[:6] = 1
    values[6:12] = 255
    label(tmp_path / "labels/x.png", values)
    report = check_datasets([open_dataset("folder", tmp_path, "all", classes="a,b,c")])
    found = report.splits["all"]
    assert found.pixel_share == {"a": 12 / 18, "b": 6 / 18, "c": 0}
    assert found.image_count == {"a": 1, "b": 1, "c": 0}
    assert found.void_share == 0.25
    assert (found.widths, found.heights) == ((32, 32), (24, 24))
    assert any("no pixel of c" in note for note in report.notes)


def test_check_command_says_all_is_well_or_exits_with_2(hemnet, root, tmp_path):
    code, out, _ = hemnet("check", "folder", "--root", root)
    assert code == 0
    assert "nothing wrong" in out
    assert "kind2" in out
    truncate(root / "images/train/1.jpg")
    code, out, err = hemnet("check", "folder", "--root", root, "--json", tmp_path / "r.json")
    assert code == 2
    assert "1.jpg" in out
    assert "1 problem (1 unreadable)" in err
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["counts"] == {"unreadable": 1}
    assert report["splits"]["train"]["images"] == 4


def test_check_command_takes_a_part_when_asked(hemnet, tmp_path):
    image(tmp_path / "a.jpg")
    label(tmp_path / "a.png", ids())
    (tmp_path / "pairs.txt").write_text("a.jpg a.png\nb.jpg b.png\n")
    command = ("check", "list", "--root", tmp_path / "pairs.txt", "--classes", "1")
    code, _, err = hemnet(*command)
    assert code == 2
    assert "2 missing" in err
    assert "--skip-missing" in err
    code, out, err = hemnet(*command, "--skip-missing")
    assert code == 0
    assert "1 of 2 listed pairs miss a file" in out
    assert err == ""


def test_mistakes_get_one_message_and_exit_code_2(hemnet, tmp_path):
    for arguments, message in (
        (("check", "nothing"), "expected one of voc"),
        (("check", "voc", "--root", tmp_path), "does not hold this data set"),
        (("check", "folder", "--root", tmp_path / "gone"), "no such"),
        (("show", "scenes", "--size", "3"), "expected 32 to 4096"),
        (("show", "scenes", "--jitter", "7"), "jitter"),
        (("prepare", "voc"), "--root"),
        (("prepare", "pascal_context", "--root", tmp_path, "--download"), "cannot be downloaded"),
    ):
        code, _, err = hemnet(*arguments)
        assert code == 2, arguments
        assert message in err
        assert len(err.strip().splitlines()) == 1


def test_show_command_writes_a_sheet(hemnet, root, tmp_path):
    for name, extra in (("folder", ("--root", root)), ("scenes", ("--size", "48"))):
        path = tmp_path / f"{name}.png"
        code, out, _ = hemnet("show", name, *extra, "--out", path, "--count", "3", "--crop", "40")
        assert code == 0
        assert str(path) in out
        with Image.open(path) as sheet:
            assert sheet.width > 300
    assert not list(tmp_path.glob(".*"))


def test_nothing_to_prepare_is_said(hemnet, tmp_path):
    code, out, _ = hemnet("prepare", "camvid", "--root", tmp_path)
    assert (code, "nothing to prepare" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("camvid", "--download"), "cannot be downloaded"),
        (("folder", "--source", "x"), "--source is not for folder"),
        (("scenes", "--source", "x"), "--source is not for scenes"),
    ],
)
def test_preparing_refuses_what_would_do_nothing(hemnet, tmp_path, arguments, message):
    code, _, err = hemnet("prepare", *arguments, "--root", tmp_path)
    assert code == 2
    assert message in err


def test_labels_are_drawn_in_the_palette():
    scenes = Scenes("val", size=64)
    _, mask = scenes.read(0)
    drawn = colour_labels(mask, scenes.info.palette)
    for value in np.unique(mask):
        colour = scenes.info.palette[value] if value != 255 else VOID_COLOUR
        assert (drawn[mask.numpy() == value] == colour).all()


def test_sheet_holds_the_pictures_unscaled_and_their_augmented_form():
    scenes = Scenes("val", size=64)
    plain = np.asarray(draw_contact_sheet(scenes, [0, 1], tile=64))
    windows = np.lib.stride_tricks.sliding_window_view(plain, (64, 64, 3))[:, :, 0]
    image, mask = scenes.read(1)
    for wanted in (image.permute(1, 2, 0).numpy(), colour_labels(mask, scenes.info.palette)):
        found = (windows[:, :, ::9, ::9] == wanted[::9, ::9]).all((2, 3, 4))
        assert found.sum() == 1
    flipped = Augmentation(crop=(64, 64), scale=(1.0, 1.0), flip=1.0)
    both = np.asarray(draw_contact_sheet(scenes, [0, 1], tile=64, augmentation=flipped))
    assert both.shape[0] == plain.shape[0] + 64 + 6
    windows = np.lib.stride_tricks.sliding_window_view(both, (64, 64, 3))[:, :, 0]
    wanted = colour_labels(mask, scenes.info.palette)[:, ::-1]
    assert (windows[:, :, ::9, ::9] == wanted[::9, ::9]).all((2, 3, 4)).sum() == 1


def test_generated_scenes_are_sampled_and_it_is_said(hemnet, monkeypatch):
    drawn = []
    read = Scenes.read
    monkeypatch.setattr(Scenes, "read", lambda self, i: drawn.append(i) or read(self, i))
    code, out, _ = hemnet("check", "scenes", "--size", 48, "--workers", 1)
    assert code == 0
    assert len(drawn) <= 128
    assert "drawn" in out.splitlines()[0]
    assert "--length" in out.splitlines()[0]
    code, out, _ = hemnet("check", "scenes", "--size", 48, "--length", 7, "--split", "val")
    assert "7 images" in out
    assert "--length" not in out


def test_show_previews_exactly_what_training_sees(hemnet, tmp_path):
    root = tmp_path / "data"
    for n in range(5):  # of half the crop and twice it: some crops are padded
        image(root / "images" / "train" / f"{n}.png", 40, 60, seed=n)
        label(root / "labels" / "train" / f"{n}.png", ids(40, 60, value=2, seed=n))
    (root / "classes.txt").write_text("a\nb\nc\n")
    (tmp_path / "c.yaml").write_text("data: {name: folder, crop: [49, 49]}\nrun: {seed: 5}\n")
    out = tmp_path / "sheet.png"
    flags = ("--data.root", root, "--data.jitter=0.3", "--count", 4, "--tile", 49, "--columns", 4)
    code, said, err = hemnet("show", "--config", tmp_path / "c.yaml", *flags, "--out", out)
    assert code == 0, err
    assert "first 4 images of the training" in said
    dataset = open_dataset("folder", root, "train")
    look = Augmentation(crop=(49, 49), jitter=0.3)
    batch = next(iter(training_batches(dataset, look, batch_size=4, seed=5)))
    mean, std = (np.array(values)[:, None, None] for values in (look.mean, look.std))
    seen = (255 * (batch.images.numpy() * std + mean)).round().astype(np.uint8)
    with Image.open(out) as sheet:
        pixels = np.array(sheet).astype(int)
    for number in range(4):
        tile = seen[number].transpose(1, 2, 0).astype(int)
        rows = range(pixels.shape[0] - 49)
        columns = range(pixels.shape[1] - 49)
        corners = (
            (y, x) for y in rows for x in columns if abs(pixels[y, x] - tile[0, 0]).max() < 3
        )
        assert any(abs(pixels[y : y + 49, x : x + 49] - tile).max() < 3 for y, x in corners), number


def test_show_with_a_configuration_says_what_does_not_go_with_it(hemnet, tmp_path):
    (tmp_path / "c.yaml").write_text("data: {name: scenes}\n")
    for arguments, text in (
        (("show",), "say which data set"),
        (("show", "scenes", "--config", tmp_path / "c.yaml"), "does not go with --config"),
        (("show", "--config", tmp_path / "c.yaml", "--root", "x"), "--root does not go with"),
        (("show", "--config", tmp_path / "c.yaml", "--data.rot", "x"), "did you mean data.root"),
    ):
        code, _, err = hemnet(*arguments)
        assert code == 2
        assert text in err


def test_values_without_a_class_say_what_to_add(tmp_path):
    root = folder(tmp_path, {"train": 2})
    label(root / "labels/train/1.png", ids(value=4))
    with pytest.raises(DataError, match=r"values 4 .*list has 3, so the next line is"):
        open_dataset("folder", root)[1]
    with pytest.raises(DataError, match=r"0, 1 are missing from your label map.*0:255"):
        open_dataset("folder", root, label_map={2: 0})[0]


def test_sheets_are_png_or_jpeg(tmp_path):
    sheet = draw_contact_sheet(Scenes("val", size=32), [0])
    with pytest.raises(UserError, match=r"ends in \.png, \.jpg, \.jpeg"):
        save_sheet(sheet, tmp_path / "sheet.webp")
    save_sheet(sheet, tmp_path / "sheet.JPG")
    with Image.open(tmp_path / "sheet.JPG") as image:
        assert image.format == "JPEG"
