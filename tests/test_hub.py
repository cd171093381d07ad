"""Saved models: what a folder holds, the hub, and files that are damaged or hostile."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hemnet
from hemnet.errors import UserError
from support import ROOT


@pytest.fixture
def model() -> hemnet.Segmenter:
    return hemnet.create_model(
        "hemnet",
        3,
        "test_resnet",
        channels=16,
        step_size=0.6,
        iterations=4,
        preset="paper",
        classes=["sky", "tree", "rûe"],
        palette=[[0, 0, 255], [0, 255, 0], [9, 9, 9]],
        mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6),
    ).eval()


@pytest.fixture
def folder(model: hemnet.Segmenter, tmp_path: Path) -> Path:
    return model.save_pretrained(tmp_path / "model")


def test_the_folder_has_everything_to_rebuild_the_model(
    model: hemnet.Segmenter, folder: Path
) -> None:
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors"]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["model"] == "hemnet"
    assert config["backbone"] == "test_resnet"
    assert config["classes"] == ["sky", "tree", "rûe"]
    assert config["palette"] == [[0, 0, 255], [0, 255, 0], [9, 9, 9]]
    assert (config["mean"], config["std"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    assert (config["options"]["iterations"], config["options"]["step_size"]) == (4, 0.6)
    assert config["options"]["bases"] == 64  # a default, written out
    loaded = hemnet.from_pretrained(folder)
    assert loaded.config == model.config
    x = torch.randn(1, 3, 20, 30)
    with torch.no_grad():
        assert torch.equal(loaded(x), model(x))


def test_what_a_preset_chose_is_written_out(tmp_path: Path) -> None:
    made = hemnet.create_model("hemnet", 3, "test_resnet", channels=16).eval()
    nn.init.ones_(made.head.attention.norm.weight)
    saved = made.save_pretrained(tmp_path / "recommended")
    assert json.loads((saved / "config.json").read_text())["options"]["gain_lr_mult"] == 30
    x = torch.randn(1, 3, 20, 30)
    with torch.no_grad():
        assert torch.equal(hemnet.from_pretrained(saved)(x), made(x))


def test_a_model_saved_before_the_gain_had_a_rate(folder: Path) -> None:
    model = hemnet.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["options"] |= {"preset": "recommended"}
    for late in ("normalise", "gain", "gain_lr_mult"):
        del config["options"][late]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    x = torch.randn(1, 3, 20, 30)
    with torch.no_grad():
        assert torch.equal(hemnet.from_pretrained(folder)(x), model(x))


def test_both_files_have_the_same_readers(folder: Path) -> None:
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert len(modes) == 1


def test_saving_twice_replaces(model: hemnet.Segmenter, folder: Path) -> None:
    with torch.no_grad():
        model.head.classifier[1].bias.fill_(7)
    model.save_pretrained(folder)
    assert (hemnet.from_pretrained(folder).head.classifier[1].bias == 7).all()
    assert len(list(folder.iterdir())) == 2


class TestRefusals:
    def refuse(self, folder: Path, message: str) -> None:
        with pytest.raises(UserError, match=message) as caught:
            hemnet.from_pretrained(folder)
        assert "\n" not in str(caught.value).strip()

    @pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
    def test_truncated_weights(self, folder: Path, share: float) -> None:
        path = folder / "model.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])
        self.refuse(folder, "cannot be read, it is damaged or not a safetensors file")

    def test_a_pickle_is_never_executed(self, folder: Path) -> None:
        marker = folder.parent / "executed"
        (folder / "model.safetensors").write_bytes(pickle.dumps(_Evil(marker)))
        self.refuse(folder, "damaged or not a safetensors file")
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(_Evil(marker)))
        self.refuse(folder, "it has no model.safetensors")
        assert not marker.exists()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"num_classes": 4, "classes": None, "palette": None}, r"shape \(3, 256, 1, 1\)"),
            ({"channels": 10**12}, "cannot be used|does not belong"),
            ({"channels": 24}, "does not belong to its config.json"),
            ({"model": "fcn", "channels": None, "options": {}}, "tensors are missing or too many"),
            ({"model": "unet"}, "there is no model 'unet'"),
            ({"backbone": "hf-hub:someone/model"}, "timm has no backbone"),
            ({"backbone": "local-dir:/"}, "timm has no backbone"),
            ({"backbone": ["test_resnet"]}, "timm has no backbone"),
            ({"output_stride": "8"}, "output_stride must be one of"),
            ({"options": {"iterations": "many"}}, "iterations"),
            ({"options": {"__class__": 1}}, "no option '__class__'"),
            ({"options": [1]}, "cannot be used"),
            ({"mean": [1, 2]}, "mean must be three numbers"),
            ({"classes": [1, 2, 3]}, "classes must be 3 names"),
            ({"format": 2}, "newer hemnet"),
            ({"unheard": 1}, "missing or unknown unheard"),
        ],
    )
    def test_a_configuration_that_does_not_fit(
        self, folder: Path, change: dict[str, Any], message: str
    ) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        self.refuse(folder, message)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", "[" * 100_000, "\xff"])
    def test_a_configuration_that_is_none(self, folder: Path, text: str) -> None:
        (folder / "config.json").write_text(text, encoding="latin-1")
        self.refuse(folder, "is damaged|does not describe a hemnet model")

    def test_a_missing_field(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        del config["palette"]
        (folder / "config.json").write_text(json.dumps(config))
        self.refuse(folder, "missing or unknown palette")

    def test_other_bases_are_named(self, folder: Path) -> None:
        path = folder / "model.safetensors"
        state = load_file(path)
        state["head.attention.bases.value"] = torch.zeros(5, 16)
        save_file(state, path)
        self.refuse(folder, r"bases.value has shape \(5, 16\), \(64, 16\) is needed")

    def test_nothing_there(self, tmp_path: Path) -> None:
        self.refuse(tmp_path, "it has no config.json")


class TestHub:
    def test_downloads_only_the_two_files(
        self, folder: Path, model: hemnet.Segmenter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = []

        def snapshot_download(repo_id: str, **options: Any) -> str:
            calls.append((repo_id, options))
            return str(folder)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert hemnet.from_pretrained("user/model", revision="v1").config == model.config
        files = ["config.json", "model.safetensors"]
        assert calls == [("user/model", {"revision": "v1", "allow_patterns": files})]

    def test_what_is_neither_folder_nor_on_the_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def offline(*_: Any, **__: Any) -> str:
            raise huggingface_hub.errors.LocalEntryNotFoundError("no connection")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
        with pytest.raises(UserError, match="is neither a folder nor a model on the hub"):
            hemnet.from_pretrained("user/missing")

    def test_uploads_what_save_writes(
        self, model: hemnet.Segmenter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        uploaded: dict[str, Any] = {}

        class Client:
            def create_repo(self, repo_id: str, private: bool, exist_ok: bool) -> str:
                uploaded["private"] = private
                return f"https://example.org/{repo_id}"

            def upload_folder(self, repo_id: str, folder_path: str, **_: Any) -> None:
                uploaded["files"] = sorted(p.name for p in Path(folder_path).iterdir())
                uploaded["config"] = hemnet.from_pretrained(folder_path).config

        monkeypatch.setattr(huggingface_hub, "HfApi", Client)
        assert model.push_to_hub("user/model", private=True) == "https://example.org/user/model"
        assert uploaded == {
            "private": True,
            "files": ["config.json", "model.safetensors"],
            "config": model.config,
        }

    def test_torch_hub(self, folder: Path) -> None:
        for name in hemnet.list_models():
            options = {"num_classes": 4, "backbone": "test_resnet"}
            made = torch.hub.load(str(ROOT), name, source="local", **options)
            assert (made.config.model, made.config.num_classes) == (name, 4)
        loaded = torch.hub.load(str(ROOT), "pretrained", str(folder), source="local")
        assert loaded.config.model == "hemnet"


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("runs/cwhh", "did you mean runs/cwhg?"),
        ("runs/other", "runs has cwhg"),
        ("./cwhh", "there is no folder ./cwhh"),
        ("runs/cwhg/mdel", "did you mean runs/cwhg/model"),
        ("runz/deep/cwhh", "nor runz/deep"),
        ("model.onnx", "there is no file model.onnx; . has runs"),
    ],
)
def test_a_typing_error_in_a_path_is_not_asked_of_the_hub(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "cwhg" / "model").mkdir(parents=True)

    def ask(*_: object, **__: object) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", ask)
    with pytest.raises(UserError) as error:
        hemnet.from_pretrained(source)
    assert said in str(error.value)
