"""The models that come with the package: complete, small, and found under their name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import hemnet
from hemnet.data import dataset_info
from hemnet.errors import UserError
from hemnet.inference.open_model import load_model
from hemnet.models.bundled import BUNDLED, CARD
from support import ROOT
from support.command_line import run
from support.tiny_data import ids, image, label

LARGEST = 12_000_000  # bytes of a model in the wheel


@pytest.fixture(autouse=True)
def _no_network_and_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    monkeypatch.chdir(tmp_path)


def small(folder: Path) -> Path:
    return hemnet.create_model("fcn", 3, "test_resnet", 16).save_pretrained(folder)


def pair(root: Path, split: str, name: str) -> None:
    image(root / split / f"{name}.png", 48, 64)
    label(root / f"{split}annot" / f"{name}.png", ids(48, 64, value=10, seed=1))


@pytest.mark.parametrize("name", hemnet.list_pretrained())
class TestEveryModel:
    def test_is_small_and_complete(self, name: str) -> None:
        sizes = {path.name: path.stat().st_size for path in (BUNDLED / name).iterdir()}
        assert sizes.keys() == {"config.json", "model.safetensors", CARD}
        assert sum(sizes.values()) <= LARGEST
        for path in (BUNDLED / name).iterdir():
            content = path.read_bytes()
            assert not any(word in content for word in (b"/home/", b"/tmp/", b"/root", b"/work"))

    def test_its_kernels_are_in_half_precision_and_nothing_else(self, name: str) -> None:
        with safe_open(BUNDLED / name / "model.safetensors", "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        half = {key for key, value in tensors.items() if value.dtype == torch.float16}
        assert half == {k for k, v in tensors.items() if k.endswith(".weight") and v.ndim == 4}
        assert all(bool(value.isfinite().all()) for value in tensors.values())

    def test_its_card_says_what_one_must_know(self, name: str) -> None:
        text = (BUNDLED / name / CARD).read_text(encoding="utf-8")
        titles = [line for line in text.splitlines() if line.startswith("## ")]
        assert titles == ["## Use", "## Data and terms", "## Recipe", "## Figures", "## Limits"]
        model = hemnet.from_pretrained(name)
        assert model.config.classes is not None
        for each in model.config.classes:
            assert f"| {each} |" in text

    def test_loads_in_single_precision_ready_to_use(self, name: str) -> None:
        model = hemnet.from_pretrained(name)
        assert not model.training
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        with torch.no_grad():
            assert model(torch.randn(1, 3, 50, 71)).isfinite().all()

    def test_is_in_the_wheel(self, name: str) -> None:
        builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder(str(ROOT))
        with builder.config.set_build_data({"artifacts": [], "force_include": {}}):
            files = {each.distribution_path for each in builder.recurse_included_files()}
        expected = {
            f"hemnet/models/bundled_models/{name}/{path.name}"
            for path in (BUNDLED / name).iterdir()
        }
        assert expected <= files


def test_camvid_has_camvids_classes() -> None:
    config = hemnet.from_pretrained("camvid").config
    info = dataset_info("camvid")
    assert (config.classes, config.palette) == (info.classes, info.palette)
    assert config.options["decoder"] == 128


def test_predicts_and_evaluates_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image(tmp_path / "street.jpg", 48, 64)
    assert run("predict", "camvid", "street.jpg", "--out", "found", "--workers", "0") == 0
    with Image.open("found/classes/street.png") as file:
        assert np.asarray(file).shape == (48, 64)
    for n in range(2):
        pair(tmp_path / "CamVid", "val", f"a{n}")
    flags = ("--data.name", "camvid", "--data.root", "CamVid", "--workers", "0")
    assert run("evaluate", "camvid", *flags) == 0
    assert "mIoU" in capsys.readouterr().out
    assert isinstance(load_model("camvid"), hemnet.Segmenter)
    assert isinstance(load_model(Path("camvid")), hemnet.Segmenter)


def test_a_folder_comes_before_a_model_of_ours(tmp_path: Path) -> None:
    small(tmp_path / "camvid")
    for load in (hemnet.from_pretrained, load_model):
        assert load("camvid").config.model == "fcn"
    (tmp_path / "camvid" / "model.safetensors").unlink()
    for load in (hemnet.from_pretrained, load_model):
        with pytest.raises(UserError, match=r"it has no model\.safetensors"):
            load("camvid")


def test_a_folder_without_a_model_does_not_hide_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair(tmp_path / "camvid", "train", "a")
    for load in (hemnet.from_pretrained, load_model):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "hemnet"):
            assert load("camvid").config.model == "hemnet"
        assert "camvid holds no model: taking the one that comes with hemnet" in caplog.text
    with pytest.raises(UserError, match=r"has no config\.json"):
        hemnet.from_pretrained("./camvid")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("camvd", r"'camvd' is neither a folder nor .* \(camvid\); did you mean camvid\?"),
        ("cityscapes", r"nor a model that comes with hemnet \(camvid\)\. Models of the hub"),
        ("run", r"\(camvid\); did you mean runs\?"),
        ("runs/cwhh", r"^there is no folder runs/cwhh; did you mean runs/cwh\?$"),
        ("runs/other", r"^there is no folder runs/other; runs has cwh$"),
        ("runs/cwh/modell", "no folder runs/cwh/modell; did you mean runs/cwh/model"),
        ("./camvid", r"^there is no folder \./camvid; \. has cwh\.onnx, runs$"),
        ("../camvid", r"^there is no folder \.\./camvid"),
        ("a/b/c", r"^there is no folder a/b/c, nor a/b \(looked from "),
        ("somewhere/model.onnx", r"^there is no file somewhere/model\.onnx, nor somewhere \("),
        ("cwh.onx", "neither a folder nor a model that comes with hemnet"),
        ("cwg.onnx", r"there is no file cwg\.onnx; did you mean cwh\.onnx\?"),
    ],
)
def test_what_is_nowhere(name: str, message: str, tmp_path: Path) -> None:
    small(tmp_path / "runs" / "cwh" / "model")
    (tmp_path / "cwh.onnx").touch()
    for load in (hemnet.from_pretrained, load_model):
        with pytest.raises(UserError, match=message):
            load(name)


def test_a_typing_error_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image(tmp_path / "street.jpg", 48, 64)
    assert run("predict", "runs/cwhh", "street.jpg", "--out", "found") == 2
    assert "hemnet: there is no folder runs/cwhh, nor runs (looked" in capsys.readouterr().err


def test_a_model_of_ours_has_no_revisions() -> None:
    with pytest.raises(UserError, match="revision 'v1' is for models of the hub"):
        hemnet.from_pretrained("camvid", revision="v1")


class TestHalf:
    def test_is_half_the_size_and_the_same_to_three_digits(self, tmp_path: Path) -> None:
        model = hemnet.create_model("hemnet", 3, "test_resnet", 16, 32, decoder=8).eval()
        folders = [model.save_pretrained(tmp_path / str(half), half=half) for half in (False, True)]
        whole, half = ((folder / "model.safetensors").stat().st_size for folder in folders)
        assert half < 0.6 * whole
        x = torch.randn(1, 3, 40, 56)
        with torch.no_grad():
            logits = hemnet.from_pretrained(folders[1])(x)
            torch.testing.assert_close(logits, model(x), rtol=1e-2, atol=1e-2)
            assert not torch.equal(logits, model(x))

    def test_refuses_weights_beyond_its_range(self, tmp_path: Path) -> None:
        model = hemnet.create_model("fcn", 3, "test_resnet", 16)
        with torch.no_grad():
            model.head.classifier[-1].weight[0] = 1e6
        with pytest.raises(UserError, match=r"half precision has no numbers as large as those of"):
            model.save_pretrained(tmp_path / "model", half=True)
        assert not (tmp_path / "model" / "config.json").exists()
