"""What a person meets before the first step: data, classes, sizes, and mistakes in them."""

import logging
from pathlib import Path

import numpy as np
import pytest

from hemnet import cli
from hemnet.data import check_datasets, count_classes, open_dataset
from hemnet.errors import UserError
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import read_config
from hemnet.training.loop import train
from hemnet.training.summary import padded_share, padding_note
from support.tiny_data import folder, ids, image, label


def binary(root: Path, foreground: int = 255) -> Path:
    """Masks of 0 and 255, the commonest form there is."""
    for split, count in (("train", 4), ("val", 2)):
        for n in range(count):
            image(root / "images" / split / f"{n}.jpg", seed=n + 10 * count)
            mask = ids() if n % 2 else np.where(np.arange(32) < 8, foreground, ids())
            label(root / "labels" / split / f"{n}.png", mask.astype(np.uint8))
    (root / "classes.txt").write_text("ground\nthing\n")
    return root


def config(root: Path, *flags: str) -> TrainConfig:
    settings = {
        **{"data.name": "folder", "data.root": root, "data.crop": "[33, 33]", "data.workers": 0},
        **{"model.backbone": "test_resnet", "model.output_stride": 16, "model.channels": 16},
        **{"optim.steps": 2, "optim.batch_size": 2, "run.tensorboard": "false"},
    }
    found = [str(part) for k, v in settings.items() for part in (f"--{k}", v)]
    return read_config(None, [*found, *flags])


def test_binary_masks_of_0_and_255_are_found_with_their_cure(tmp_path: Path) -> None:
    root = binary(tmp_path / "data")
    report = check_datasets([open_dataset("folder", root, split) for split in ("train", "val")])
    assert [problem.kind for problem in report.problems] == ["classes", "classes"]
    for problem in report.problems:
        assert "`label_map=0:0,255:1`" in problem.message
        assert "'ground'" in problem.message
    with pytest.raises(UserError, match=r"255, which is void.*`label_map={0: 0, 255: 1}`"):
        train(config(root), tmp_path / "run", quiet=True)
    cured = config(root, "--data.label_map", "0:0,255:1")
    assert cured.data.label_map == {0: 0, 255: 1}
    result = train(cured, tmp_path / "cured", quiet=True)
    assert result.finished
    sets = [open_dataset("folder", root, s, label_map={0: 0, 255: 1}) for s in ("train", "val")]
    assert check_datasets(sets).problems == []


def test_the_cure_is_what_the_command_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = binary(tmp_path / "data")
    for flags, code in ((), 2), (("--data.label_map", "0:0,255:1"), 0):
        with pytest.raises(SystemExit) as end:
            cli.main(["data", "check", "folder", "--root", str(root), *flags])
        assert end.value.code == code
    assert "nothing wrong" in capsys.readouterr().out


def test_classes_of_binary_masks_are_found_with_the_label_map(tmp_path: Path) -> None:
    from hemnet.data import prepare_dataset

    root = binary(tmp_path / "data")
    (root / "classes.txt").unlink()
    said = prepare_dataset("folder", root)
    assert "2 classes" in said
    assert "`label_map=0:0,255:1`" in said


def test_labels_with_one_class_are_refused(tmp_path: Path) -> None:
    root = binary(tmp_path / "data", foreground=0)
    with pytest.raises(UserError, match=r"every labelled pixel is 'ground'.*nothing to learn"):
        train(config(root), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_rare_class_is_found_before_a_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = binary(tmp_path / "data", foreground=1)
    monkeypatch.setattr("hemnet.training.summary.LOOKED_AT", 1)
    label(root / "labels" / "train" / "0.png", ids())  # the one that is looked at first
    assert train(config(root), tmp_path / "run", quiet=True).finished


def test_the_opening_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = folder(tmp_path / "data", {"train": 4, "val": 2})
    train(config(root, "--loss.class_weights", "auto"), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    names = [line.split()[0] for line in lines[:7]]
    assert names == ["data", "classes", "weights", "network", "backbone", "device", "training"]
    assert "4 images of train, 2 of val" in lines[0]
    assert str(root) in lines[0]
    assert "kind0 3" in lines[1]
    assert "(of 4 labels)" in lines[1]
    assert "from scratch" in lines[4]
    assert "2 steps of 2 crops of 33×33: every image 1.0 times" in lines[6]
    assert any("time" in line.split()[:1] for line in lines), "how long it will take"


def test_weights_from_the_data_are_kept_by_the_run(tmp_path: Path) -> None:
    root = folder(tmp_path / "data", {"train": 4, "val": 2})
    for n in range(4):
        values = ids(value=1, seed=n)
        values[0, :4] = 2
        label(root / "labels" / "train" / f"{n}.png", values)
    given = config(root, "--loss.class_weights", "auto")
    train(given, tmp_path / "run", quiet=True)
    kept = read_config(tmp_path / "run" / "config.yaml").loss.class_weights
    assert isinstance(kept, list)
    assert len(kept) == 3
    assert kept[2] > 5 * kept[0]
    assert train(given, tmp_path / "run", resume=True, quiet=True).finished
    assert given.loss.class_weights == "auto", "what was given is as it was"


def test_crops_that_are_mostly_padding_are_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = folder(tmp_path / "data", {"train": 4, "val": 2})  # of 24×32 pixels
    large = config(root, "--data.crop", "96", "--data.scale", "[1, 1]")
    assert large.data.crop == (96, 96)
    with caplog.at_level(logging.WARNING, logger="hemnet"):
        train(large, tmp_path / "run")
    (note,) = [r.getMessage() for r in caplog.records if "padding" in r.getMessage()]
    assert note.startswith("92% of the training crops is padding")
    assert "images 24×32" in note
    assert "data.crop [17, 17] pads 0%" in note
    found = count_classes(open_dataset("folder", root, "train"))
    assert padded_share((96, 96), (1, 1), found) == pytest.approx(1 - 24 * 32 / 96**2)
    assert padding_note(config(root, "--data.crop", "[17, 17]").data, found) is None


def test_padding_is_what_the_crops_really_hold(tmp_path: Path) -> None:
    from hemnet.data import Augmentation, training_batches

    root = folder(tmp_path / "data", {"train": 4})
    dataset = open_dataset("folder", root, "train")
    look = Augmentation(crop=(33, 33), scale=(0.5, 2.0))
    batches = iter(training_batches(dataset, look, batch_size=8))
    seen = [next(batches).valid for _ in range(25)]
    real = float(np.mean([0 if valid is None else 1 - valid.float().mean() for valid in seen]))
    assert padded_share((33, 33), (0.5, 2.0), count_classes(dataset)) == pytest.approx(
        real, abs=0.06
    )
