"""`hemnet data split`: groups stay whole, classes are spread alike, and it can be done again."""

import shutil

import pytest

from hemnet import cli
from hemnet.data import open_dataset
from hemnet.data.catalog import list_splits
from hemnet.data.split import stratified_split
from hemnet.errors import UserError
from support.tiny_data import ids, image, label


def films(root, count=12, frames=5):
    """Films of frames; a rare class is in every fourth film."""
    for film in range(count):
        for frame in range(frames):
            name = f"film{film}_{frame}"
            image(root / "images" / f"{name}.jpg", seed=film * frames + frame)
            values = ids(value=1, seed=film * frames + frame)
            values[:4] = 2 if film % 4 == 0 else 0
            label(root / "labels" / f"{name}.png", values)
    (root / "classes.txt").write_text("ground\ncommon\nrare\n")
    return root


def members(root):
    return {s: {p.id for p in open_dataset("folder", root, s).pairs} for s in ("train", "val")}


def run(*arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(["data", "split", "folder", *map(str, arguments)])
    return end.value.code


def test_films_stay_whole_and_every_class_is_in_every_part(tmp_path, capsys):
    root = films(tmp_path / "data")
    assert run("--root", root, "--val", 0.25, "--group", r"^(film\d+)_") == 0
    found = members(root)
    parts = {split: {name.split("_")[0] for name in names} for split, names in found.items()}
    assert not parts["train"] & parts["val"]
    assert len(found["val"]) == 15
    rare = {f"film{n}" for n in range(0, 12, 4)}
    assert len(rare & parts["val"]) == 1, "a third of the rare films, as near as it gets"
    assert list_splits("folder", root) == ["train", "val"]
    out = capsys.readouterr().out
    assert "45 images in 9 groups" in out
    assert "rare" in out


def test_the_same_seed_gives_the_same_parts_wherever_the_files_lie(tmp_path):
    first = films(tmp_path / "a")
    second = tmp_path / "b"
    for path in sorted(first.rglob("*.*"), reverse=True):
        target = second / path.relative_to(first)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for root, seed in ((first, 3), (second, 3)):
        assert run("--root", root, "--seed", seed) == 0
    assert members(first) == members(second)
    shutil.rmtree(second / "splits")
    assert run("--root", second, "--seed", 4) == 0
    assert members(first) != members(second)


def test_copies_of_an_image_stay_together(tmp_path):
    root = films(tmp_path, 10, 1)
    for n in range(5):
        shutil.copy(root / "images" / f"film{n}_0.jpg", root / "images" / f"copy{n}.jpg")
        shutil.copy(root / "labels" / f"film{n}_0.png", root / "labels" / f"copy{n}.png")
    assert run("--root", root, "--val", 0.4) == 0
    for names in members(root).values():
        for n in range(5):
            assert (f"film{n}_0" in names) == (f"copy{n}" in names)


@pytest.mark.parametrize("seed", range(3))
def test_rare_classes_are_dealt_out_like_common_ones(seed, tmp_path):
    for n in range(60):
        image(tmp_path / "images" / f"{n:02}.jpg", seed=n)
        values = ids(value=0)
        values[: n % 7] = 1
        values[-1] = 2 if n % 10 == 0 else 0  # six of sixty
        label(tmp_path / "labels" / f"{n:02}.png", values)
    dataset = open_dataset("folder", tmp_path, "all", classes="3")
    division = stratified_split(dataset, {"train": 0.5, "val": 1 / 3, "test": 1 / 6}, seed=seed)
    assert [len(m) for m in division.members.values()] == [30, 20, 10]
    rare = {part: sum(i in range(0, 60, 10) for i in m) for part, m in division.members.items()}
    assert rare == {"train": 3, "val": 2, "test": 1}


def test_validation_from_training_where_there_is_a_test_set(tmp_path):
    for split, count in (("train", 8), ("test", 3)):
        for n in range(count):
            image(tmp_path / "images" / split / f"{n}.jpg", seed=n + 10 * count)
            label(tmp_path / "labels" / split / f"{n}.png", ids(value=1, seed=n))
    (tmp_path / "classes.txt").write_text("a\nb\n")
    assert run("--root", tmp_path, "--split", "train", "--val", 0.25) == 0
    assert list_splits("folder", tmp_path) == ["train", "test", "val"]
    assert {k: len(v) for k, v in members(tmp_path).items()} == {"train": 6, "val": 2}
    assert len(open_dataset("folder", tmp_path, "test")) == 3


def test_mistakes(tmp_path, capsys):
    root = films(tmp_path, 3, 2)
    for arguments, text in (
        (("--group", "("), "not a regular expression"),
        (("--group", "film"), "put brackets"),
        (("--group", r"(film9)_"), "does not match the image"),
        (("--group", r"^(film)"), "cannot be divided into 2 parts"),
        (("--val", 1.5), "leave room for train"),
        (("--root", root / "gone"), "no such"),
    ):
        assert run("--root", root, *arguments) == 2
        assert text in capsys.readouterr().err
    assert run("--root", root) == 0
    assert run("--root", root) == 2
    assert "remove it to divide anew" in capsys.readouterr().err
    with pytest.raises(UserError, match="no split 'test'; this folder has train, val"):
        open_dataset("folder", root, "test")
