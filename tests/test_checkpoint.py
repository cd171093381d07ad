"""Checkpoints: complete or absent, safe to load, exact."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import hemnet
from hemnet.errors import UserError
from hemnet.files import write_text
from hemnet.run_folder import RunFolder
from hemnet.training.checkpoints import (
    Checkpoints,
    Progress,
    load_checkpoint,
    read_checkpoint,
    read_progress,
    save_checkpoint,
)
from hemnet.training.config import OptimConfig
from hemnet.training.optim import make_optimizer, set_lr


def made(bases: int = 8, name: str = "adamw") -> tuple[hemnet.Segmenter, torch.optim.Optimizer]:
    model = hemnet.create_model("hemnet", 3, "test_resnet", 16, 16, bases=bases)
    model.train().to(memory_format=torch.channels_last)
    return model, make_optimizer(model, OptimConfig(name=name))


def step(model: hemnet.Segmenter, optimizer: torch.optim.Optimizer, seed: int) -> None:
    torch.manual_seed(seed)
    set_lr(optimizer, 0.01)
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb", "adafactor", "muon"])
def test_a_loaded_run_goes_on_bit_by_bit(name: str, tmp_path: Path) -> None:
    model, optimizer = made(name=name)
    step(model, optimizer, 1)
    progress = Progress(step=1, best_miou=0.1 + 0.2, loss_sum=1 / 3, scaler={"scale": 65536.0})
    save_checkpoint(tmp_path / "a.safetensors", model, optimizer, progress)
    other, other_optimizer = made(name=name)
    assert load_checkpoint(tmp_path / "a.safetensors", other, other_optimizer) == progress
    for each, its in ((model, optimizer), (other, other_optimizer)):
        step(each, its, 2)
        save_checkpoint(tmp_path / f"{id(each)}.safetensors", each, its, progress)
    one, two = (read_checkpoint(tmp_path / f"{id(m)}.safetensors")[0] for m in (model, other))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_numbers_are_json_and_tensors_are_safetensors(tmp_path: Path) -> None:
    model, optimizer = made()
    step(model, optimizer, 1)
    save_checkpoint(tmp_path / "a.safetensors", model, optimizer, Progress(step=7))
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert json.loads(file.metadata()["progress"])["step"] == 7
        keys = set(file.keys())
    assert "model.head.attention.bases.value" in keys
    assert any(key.startswith("optimizer.0.") for key in keys)
    assert read_progress(tmp_path / "a.safetensors").step == 7


@pytest.mark.parametrize("operation", ["write", "fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_text(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if operation == "write":
        monkeypatch.setattr(Path, "open", lambda *_: Full())
    else:
        monkeypatch.setattr(os, operation, fail)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new", durable=True)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


class Full:
    """A file on a full disk."""

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None: ...

    def write(self, _: bytes) -> None:
        raise OSError(28, "No space left on device")


def test_best_keeps_its_step_while_last_moves_on(tmp_path: Path) -> None:
    model, optimizer = made()
    keeper = Checkpoints(RunFolder(tmp_path), validates=True)
    keeper.save(model, optimizer, Progress(step=4, best_step=4, best_miou=50.0))
    step(model, optimizer, 1)
    keeper.save(model, optimizer, Progress(step=8, best_step=4, best_miou=50.0))
    assert read_progress(keeper.last).step == 8
    assert read_progress(keeper.best).step == 4
    saved = hemnet.from_pretrained(tmp_path / "model")
    assert not torch.equal(saved.head.mix[0].weight, model.head.mix[0].weight)


def test_a_kill_between_last_and_best_is_mended(tmp_path: Path) -> None:
    model, optimizer = made()
    keeper = Checkpoints(RunFolder(tmp_path), validates=True)
    progress = Progress(step=4, best_step=4, best_miou=50.0)
    save_checkpoint(keeper.last, model, optimizer, progress)
    (tmp_path / "model" / ".saving-x").mkdir(parents=True)
    keeper.repair(model, progress)
    assert read_progress(keeper.best) == progress
    assert sorted(p.name for p in keeper.model_folder.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_without_validation_the_model_is_the_last(tmp_path: Path) -> None:
    model, optimizer = made()
    keeper = Checkpoints(RunFolder(tmp_path), validates=False)
    assert keeper.load(model, optimizer) is None
    keeper.save(model, optimizer, Progress(step=4))
    assert not keeper.best.exists()
    assert (tmp_path / "model" / "config.json").exists()


def test_file_systems_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    model, optimizer = made()
    keeper = Checkpoints(RunFolder(tmp_path), validates=True)
    keeper.save(model, optimizer, Progress(step=4, best_step=4))
    assert read_progress(keeper.best).step == 4


def test_errors_name_the_file(tmp_path: Path) -> None:
    model, optimizer = made()
    path = tmp_path / "a.safetensors"
    save_checkpoint(path, model, optimizer, Progress(step=1))
    other, other_optimizer = made(bases=4)
    with pytest.raises(UserError, match=r"does not fit this model: .*8 bases"):
        load_checkpoint(path, other, other_optimizer)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match=r"a\.safetensors cannot be read"):
        load_checkpoint(path, model, optimizer)
    (tmp_path / "b.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be read"):
        read_progress(tmp_path / "b.safetensors")


def test_the_last_model_can_be_kept_instead_of_the_best(tmp_path: Path) -> None:
    model, optimizer = made()
    keeper = Checkpoints(RunFolder(tmp_path), validates=True, keep="last")
    keeper.save(model, optimizer, Progress(step=4, best_step=4, best_miou=50.0))
    step(model, optimizer, 1)
    keeper.save(model, optimizer, Progress(step=8, best_step=4, best_miou=50.0))
    assert read_progress(keeper.best).step == 4
    saved = hemnet.from_pretrained(tmp_path / "model")
    assert torch.equal(saved.head.mix[0].weight, model.head.mix[0].weight)


class Odd(torch.optim.SGD):
    """Remembers what no optimizer of today does: odd shapes, types and places."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["calls"] = group.get("calls", 0) + 1
            group["mean"] = torch.full((2,), float(group["calls"]), dtype=torch.float64)
            for number, parameter in enumerate(group["params"]):
                state = self.state[parameter]
                state["rows"] = torch.arange(number + 3)
                state["mode"] = "warm"
                state["flags"] = torch.tensor([True, False])
                state["half"] = torch.ones(1, 2, dtype=torch.bfloat16)
                state["nothing"] = torch.zeros(0, 3)
                state["step"] = state.get("step", 0) + 1


def test_whatever_an_optimizer_remembers_comes_back(tmp_path: Path) -> None:
    model, _ = made()
    first, second = (Odd(model.parameters(), lr=0.1) for _ in range(2))
    first.step()
    save_checkpoint(tmp_path / "a.safetensors", model, first, Progress(step=1))
    load_checkpoint(tmp_path / "a.safetensors", model, second)
    for optimizer in (first, second):
        optimizer.step()
    one, two = first.state_dict(), second.state_dict()
    assert one["param_groups"][0].pop("mean").equal(two["param_groups"][0].pop("mean"))
    assert one["param_groups"] == two["param_groups"]
    assert one["param_groups"][0]["calls"] == 2
    for index, state in one["state"].items():
        for name, value in state.items():
            other = two["state"][index][name]
            assert type(value) is type(other)
            same = value.dtype == other.dtype and value.equal(other) if name in (
                "rows", "flags", "half", "nothing"
            ) else value == other  # fmt: skip
            assert same, name


def test_another_optimizers_state_is_refused(tmp_path: Path) -> None:
    model, optimizer = made(name="sgd")
    step(model, optimizer, 1)
    save_checkpoint(tmp_path / "a.safetensors", model, optimizer, Progress(step=1))
    other, adamw = made(name="adamw")
    with pytest.raises(UserError, match=r"does not fit this optimizer \(it is SGD's\)"):
        load_checkpoint(tmp_path / "a.safetensors", other, adamw)
