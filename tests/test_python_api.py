"""What users of Python have without deep imports."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import hemnet
from hemnet.files import read_object
from support import tiny_data
from support.command_line import run
from support.tiny_runs import tiny_config


@pytest.mark.parametrize(
    "code",
    [
        "hemnet.data.open_dataset('scenes', split='val', size=32)[0]",
        "hemnet.open_dataset('scenes', split='val', size=32)[0]",
        "hemnet.list_datasets(), hemnet.dataset_info('voc').classes",
        "hemnet.models.create_model('fcn', 2, 'test_resnet')",
    ],
)
def test_packages_need_no_import_of_their_own(code: str) -> None:
    subprocess.run([sys.executable, "-c", f"import hemnet; {code}"], check=True)


def test_importing_hemnet_imports_no_torch() -> None:
    code = "import sys, hemnet; from hemnet.cli import build_parser; build_parser()"
    code += "; assert 'torch' not in sys.modules and hasattr(hemnet, 'train')"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", hemnet.__all__)
def test_every_name_is_there_and_has_a_docstring(name: str) -> None:
    found = getattr(hemnet, name)
    assert name in dir(hemnet)
    assert isinstance(found, str) or inspect.getdoc(found)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> hemnet.TrainResult:
    folder = tmp_path_factory.mktemp("api") / "run"
    return hemnet.train(tiny_config(), folder, {"optim.steps": 4}, quiet=True)


def test_a_run_has_folder_metrics_model_and_report(trained: hemnet.TrainResult) -> None:
    assert trained.finished
    assert trained.step == 4
    assert trained.metrics[-1]["miou"] == trained.miou
    assert isinstance(trained.model, hemnet.Segmenter)
    assert (trained.folder / "report.html").is_file()


def test_a_configuration_may_be_a_file_a_dictionary_or_an_object(tmp_path: Path) -> None:
    from hemnet.training.config_parser import dump_config, read_config

    config = tiny_config()
    (tmp_path / "c.yaml").write_text(dump_config(config))
    content = {
        "optim": {"steps": 9},
        "model": {"options": {"bases": 4}},
        "data": {"crop": (33, 33)},
    }
    expected = read_config(None, ["--optim.steps=9", "--model.options.bases=4", "--data.crop=33"])
    assert read_config(content) == read_config(overrides=content) == expected
    flat = {"optim.steps": 9, "model.options.bases": 4, "data.crop": (33, 33)}
    assert read_config(overrides=flat) == expected
    changes = {"optim.lr": 1e-5, "data.root": Path("5"), "model.options.dropout": 0.5}
    found = [read_config(s, overrides=changes) for s in (config, tmp_path / "c.yaml")]
    assert found[0] == found[1]
    assert (found[0].optim.lr, found[0].data.root) == (1e-5, "5")
    assert found[0].model.options == config.model.options | {"dropout": 0.5}
    with pytest.raises(hemnet.UserError, match=r"did you mean optim\.lr\?"):
        read_config(config, overrides={"optim.lrr": 1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "`out=RUN`"),
        ({"out": "run"}, "give a configuration with `config`"),
        ({"out": "run", "resume": True}, "holds no run to resume"),
        ({"out": "run", "preset": "cpu", "resume": True}, "for a run that begins"),
        ({"out": "run", "preset": "tpu"}, "expected cpu or gpu"),
        ({"out": "run", "config": {}, "allow_changes": True}, "belongs to `resume`"),
        ({"out": "run", "config": {"optim": {"lr": -1}}}, "optim.lr is -1.0"),
    ],
)
def test_mistakes_in_training_name_parameters(
    arguments: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hemnet.UserError, match=message):
        hemnet.train(**arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_data_sets_of_ones_own(tmp_path: Path) -> None:
    """Objects that no catalog knows are trained on."""
    root = tiny_data.folder(tmp_path, {"train": 4, "val": 2})
    sets = tuple(hemnet.open_dataset("folder", root, split) for split in ("train", "val"))
    changes = {"optim.steps": 2, "validation.every": 2}
    found = hemnet.train(tiny_config(), tmp_path / "run", changes, data=sets, quiet=True)
    assert found.model.config.classes == tuple(sets[1].info.classes)
    assert hemnet.evaluate(found.model, sets[1]).miou == pytest.approx(found.miou)


def test_evaluation_of_a_run_is_that_of_the_command(
    trained: hemnet.TrainResult, tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    flags = ("--flip", "--iterations", "2", "--workers", "0", "--json", str(file))
    assert run("evaluate", str(trained.folder), *flags) == 0
    expected = read_object(file)
    for model in (trained, trained.folder, str(trained.folder)):
        found = hemnet.evaluate(model, flip=True, iterations=2)
        assert found.confusion.tolist() == expected["confusion"]
    options = hemnet.InferenceOptions(flip=True, iterations=2)
    dataset = hemnet.open_dataset("scenes", split="val", size=48, length=3)
    assert hemnet.evaluate(trained.model, dataset, options).to_json() == found.to_json()
    named = {"name": "scenes", "size": 48, "length": 3}
    assert hemnet.evaluate(trained.model, named, options).to_json() == found.to_json()
    assert len(hemnet.evaluate(trained, {"length": 2}).images) == 2


def test_evaluation_says_what_is_missing_in_parameters(trained: hemnet.TrainResult) -> None:
    with pytest.raises(hemnet.UserError, match="give `name` and `root`"):
        hemnet.evaluate(trained.model)
    with pytest.raises(hemnet.UserError, match="`scales` is"):
        hemnet.evaluate(trained, scales=(0,))
    with pytest.raises(hemnet.UserError, match=r"among scales, flip.*; got scale$"):
        hemnet.evaluate(trained, scale=2)
    with pytest.raises(hemnet.UserError, match="`device=tpu`"):
        hemnet.evaluate(trained, device="tpu")


def test_predictions_are_those_of_the_command(trained: hemnet.TrainResult, tmp_path: Path) -> None:
    large = tiny_data.image(tmp_path / "large.png", 60, 80)
    small = tiny_data.image(tmp_path / "small.png", 30, 40, seed=1)
    flags = ("--flip", "--whole", "0.003", "--window", "48")
    out = ("--out", str(tmp_path / "out"))
    assert run("predict", str(trained.folder), str(large), str(small), *flags, *out) == 0
    options = {"flip": True, "whole": 0.003, "window": 48}
    with Image.open(large) as picture:
        found = hemnet.predict(
            trained, [large, str(small), picture, np.asarray(picture)], **options
        )
    for classes, name in zip(found, ("large", "small", "large", "large"), strict=True):
        with Image.open(tmp_path / f"out/classes/{name}.png") as expected:
            assert np.array_equal(classes, np.asarray(expected))
    alone = hemnet.predict(trained.model, small)
    assert np.array_equal(alone, trained.model.predict(small))
    assert hemnet.predict(trained.model, []) == []


def test_files_are_predicted_into_a_folder(trained: hemnet.TrainResult, tmp_path: Path) -> None:
    tiny_data.image(tmp_path / "in/a.png", 30, 40)
    (tmp_path / "in/b.png").write_bytes(b"no image")
    said: list[str] = []
    lines = hemnet.predict_files(
        trained, [tmp_path / "in"], tmp_path / "out", overlays=False, tell=said.append
    )
    written = (tmp_path / "out/predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == lines
    assert [set(line) & {"classes", "error", "overlay"} for line in lines] == [
        {"classes"},
        {"error"},
    ]
    assert said == [lines[1]["error"]]
    with pytest.raises(hemnet.UserError, match="cannot read the image"):
        hemnet.predict(trained, tmp_path / "in/b.png")


def test_validation_has_the_options_of_evaluation_and_their_defaults() -> None:
    from hemnet.training.config import ValidationConfig

    for kind in (ValidationConfig, hemnet.PredictOptions):
        for item in fields(hemnet.InferenceOptions):
            assert getattr(kind(), item.name) == getattr(hemnet.InferenceOptions(), item.name)


def test_a_module_of_ones_own_can_be_evaluated() -> None:
    dataset = hemnet.open_dataset("scenes", split="val", size=32, length=2)
    network = torch.nn.Conv2d(3, dataset.num_classes, 1)
    assert 0 <= hemnet.evaluate(network, dataset, progress=None).miou <= 100
