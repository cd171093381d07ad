"""Runs: what they leave behind, how they stop, and that they go on exactly."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import hemnet
from hemnet import cli
from hemnet.errors import UserError
from hemnet.nn.attention import PRESETS
from hemnet.report import write_report
from hemnet.run_folder import RunFolder
from hemnet.training import checkpoints as checkpoint
from hemnet.training import loop as training
from hemnet.training.checkpoints import read_checkpoint, read_progress
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import dump_config, read_config
from hemnet.training.loop import train
from hemnet.training.setup import build_model, settle
from support import ROOT
from support.steps import at_step
from support.tiny_data import folder
from support.tiny_runs import assert_same, outcome, tiny_config


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def last(out: Path) -> Path:
    return out / "checkpoints" / "last.safetensors"


def test_a_run_folder_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config("--run.tensorboard", "true")
    result = train(config, tmp_path, report=write_report)
    assert result.finished
    assert result.step == 8
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        ".lock",
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "checkpoints",
        "model",
        "tensorboard",
        "report.html",
    }
    assert read_config(tmp_path / "config.yaml") == settle(config)
    assert json.loads((tmp_path / "environment.json").read_text())["torch"] == torch.__version__
    lines = RunFolder(tmp_path).read_metrics()
    steps = {
        kind: [m["step"] for m in lines if m["kind"] == kind] for kind in ("train", "validation")
    }
    assert steps == {"train": [3, 6, 8], "validation": [4, 8]}
    assert lines[0].keys() == {
        *("kind", "step", "loss", "rate", "images_per_second", "data_wait", "health")
    }
    assert lines[0]["health"].keys() == {
        "ratio", "spread", "entropy", "in_use", "rebuilt", "e_step"
    }  # fmt: skip
    validations = [m for m in lines if m["kind"] == "validation"]
    assert result.best_miou == max(m["miou"] for m in validations)
    assert validations[0]["iou"].keys() == set(hemnet.data.dataset_info("scenes").classes)
    model = hemnet.from_pretrained(tmp_path / "model")
    best = read_checkpoint(tmp_path / "checkpoints" / "best.safetensors")[0]
    assert all(torch.equal(v, best[f"model.{k}"]) for k, v in model.state_dict().items())
    shown = capsys.readouterr().err
    assert "step 3/8 · loss" in shown
    assert "images/s" in shown
    assert "data wait" in shown
    assert "mIoU" in shown


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills by signal")
def test_kills_at_any_moment_change_nothing() -> None:
    # In a process of its own: it forks, and autograd's threads of earlier tests would not be there.
    command = [sys.executable, str(ROOT / "tests/kills.py"), "--kills", "4", "--seed", "1"]
    flags = ["--optim.accumulate", "2", "--optim.ema_decay", "0.9"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) kills: .* bit-identical", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) >= 4


def test_other_intervals_and_workers_give_the_same_weights(tmp_path: Path) -> None:
    train(tiny_config(), tmp_path / "a", quiet=True)
    flags = ["--run.checkpoint_every", "100", "--data.workers", "1", "--run.log_every", "1"]
    train(tiny_config(*flags), tmp_path / "b", quiet=True)
    one, other = (read_checkpoint(last(tmp_path / name))[0] for name in "ab")
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_accumulated_passes_are_one_step(tmp_path: Path) -> None:
    flags = ["--model.freeze_norm", "true", "--model.options.dropout", "0", "--optim.steps", "3"]
    train(tiny_config(*flags), tmp_path / "a", quiet=True)
    train(tiny_config(*flags, "--optim.accumulate", "4"), tmp_path / "b", quiet=True)
    one, other = (read_checkpoint(last(tmp_path / name))[0] for name in "ab")
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=1e-3, atol=1e-5)


def test_all_options_together(tmp_path: Path) -> None:
    config = tiny_config(
        *("--optim.name", "adamw", "--optim.clip", "0.1", "--optim.warmup", "2"),
        *("--loss.ohem", "0.5", "--loss.auxiliary", "0.4", "--run.precision", "bf16"),
        *("--model.freeze_stages", "1", "--run.channels_last", "false", "--optim.steps", "3"),
        *("--validation.flip", "true", "--validation.scales", "[0.5, 1]"),
    )
    before = build_model(config, hemnet.data.dataset_info("scenes")).state_dict()
    train(config, tmp_path, quiet=True)
    after = read_checkpoint(last(tmp_path))[0]
    frozen = "backbone.network.conv1.0.weight"
    frozen = frozen if frozen in before else "backbone.network.conv1.weight"
    assert torch.equal(after[f"model.{frozen}"], before[frozen])
    assert not torch.equal(after["model.head.mix.0.weight"], before["head.mix.0.weight"])


def test_clipping_limits_the_change(tmp_path: Path) -> None:
    flags = ["--optim.steps", "1", "--optim.lr", "1", "--optim.weight_decay", "0"]
    config = tiny_config(*flags, "--optim.clip", "0.01", "--optim.bias_lr_mult", "1")
    before = build_model(config, hemnet.data.dataset_info("scenes"))
    train(config, tmp_path, quiet=True)
    after = read_checkpoint(last(tmp_path))[0]
    squares = sum(
        float((after[f"model.{name}"] - p.detach()).square().sum())
        for name, p in before.named_parameters()
    )
    assert squares**0.5 == pytest.approx(0.01, rel=1e-2)


def test_signals_save_and_resume_exactly(tmp_path: Path) -> None:
    config = tiny_config("--run.checkpoint_every", "100")
    train(config, tmp_path / "alone", quiet=True)
    out = tmp_path / "stopped"
    for number, done, more in ((signal.SIGINT, 0, 2), (signal.SIGTERM, 2, 3)):
        with at_step(more - 1, partial(signal.raise_signal, number)):  # it is finished first
            result = train(config, out, resume=True, quiet=True)
        assert (result.stopped_by, result.finished, result.step) == (number, False, done + more)
        assert read_progress(last(out)).step == done + more
    assert train(config, out, resume=True, quiet=True).finished
    assert_same(outcome(tmp_path / "alone"), outcome(out))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_during_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_config(), tmp_path / "alone", quiet=True)
    out, real = tmp_path / "stopped", training.evaluate

    def interrupted(*args: object, **kwargs: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("validation went on")

    monkeypatch.setattr(training, "evaluate", interrupted)
    result = train(tiny_config(), out, quiet=True)
    assert (result.step, result.stopped_by) == (4, signal.SIGTERM)
    monkeypatch.setattr(training, "evaluate", real)
    train(tiny_config(), out, resume=True, quiet=True)
    assert_same(outcome(tmp_path / "alone"), outcome(out))


def test_the_command_can_be_interrupted_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(dump_config(tiny_config("--optim.steps", "5000")))
    command = [sys.executable, "-m", "hemnet", "train", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*command, "--config", str(tmp_path / "c.yaml"), "--data.workers", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    timer = threading.Timer(300, process.kill)
    timer.start()
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 6/"):
            process.terminate()
            break
    out, error = process.communicate()
    timer.cancel()
    assert process.returncode == 128 + signal.SIGTERM, error
    assert "Traceback" not in error
    assert "stopped at step" in out
    done = read_progress(last(tmp_path / "run")).step
    assert done >= 6
    with pytest.raises(SystemExit) as exit_info:
        cli.main(
            [
                "train",
                "--resume",
                "--allow-changes",
                "--out",
                str(tmp_path / "run"),
                f"--optim.steps={done + 1}",
            ]
        )
    assert exit_info.value.code == 0
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert saved["optim"]["steps"] == done + 1


def test_a_run_is_not_overwritten_nor_resumed_with_another_configuration(tmp_path: Path) -> None:
    train(tiny_config("--optim.steps", "2"), tmp_path, quiet=True)
    with pytest.raises(UserError, match="already holds a run, which is at step 2"):
        train(tiny_config("--optim.steps", "2"), tmp_path, quiet=True)
    longer = tiny_config("--optim.steps", "3", "--optim.lr", "0.5")
    with pytest.raises(UserError, match=r"(?s)optim.steps: 2 → 3.*optim.lr: 0.009 → 0.5"):
        train(longer, tmp_path, resume=True, quiet=True)
    result = train(longer, tmp_path, resume=True, allow_changes=True, quiet=True)
    assert result.step == 3
    # Nothing left to do is no error, and what does not matter may differ.
    workers = tiny_config("--optim.steps", "3", "--optim.lr", "0.5", "--data.workers", "1")
    assert train(workers, tmp_path, resume=True, quiet=True).finished


def test_a_run_keeps_what_its_preset_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_config("--optim.steps", "2"), tmp_path, quiet=True)
    recommended = PRESETS["recommended"]
    monkeypatch.setitem(PRESETS, "recommended", recommended | {"gain_lr_mult": 2.0})
    longer = read_config(tmp_path / "config.yaml", ["--optim.steps", "3"])
    assert train(longer, tmp_path, resume=True, allow_changes=True, quiet=True).step == 3
    unit = hemnet.from_pretrained(tmp_path / "model").head.attention
    assert unit.gain.factor == recommended["gain_lr_mult"]
    with pytest.raises(UserError, match="gain_lr_mult"):
        train(tiny_config("--optim.steps", "3"), tmp_path, resume=True, quiet=True)


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_config(), tmp_path / "alone", quiet=True)
    out, real = tmp_path / "full", os.fsync
    saves = 0

    def fsync(handle: int) -> None:
        nonlocal saves
        saves += read_saved(out) >= 3
        if saves:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(UserError, match=r"the disk is full. The checkpoint of step 3 .* is intact"):
        train(tiny_config(), out, quiet=True)
    monkeypatch.setattr(os, "fsync", real)
    train(tiny_config(), out, resume=True, quiet=True)
    assert_same(outcome(tmp_path / "alone"), outcome(out))


def read_saved(out: Path) -> int:
    return read_progress(last(out)).step if last(out).exists() else -1


def test_lost_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = folder(tmp_path / "data", {"train": 12, "val": 2})
    flags = ["--data.name", "folder", "--data.root", str(data), "--data.crop", "[24, 24]"]
    flags += ["--data.size", "null", "--data.length", "null", "--data.val_length", "null"]
    config = tiny_config(*flags)
    reads, original = 0, hemnet.data.FileDataset.read

    def read(self: hemnet.data.FileDataset, index: int) -> object:
        nonlocal reads
        reads += 1
        if reads == 10:
            shutil.move(data, tmp_path / "gone")
        return original(self, index)

    monkeypatch.setattr(hemnet.data.FileDataset, "read", read)
    with pytest.raises(UserError, match=r"No such file.* The checkpoint of step 2 .* intact"):
        train(config, tmp_path / "run", quiet=True)
    shutil.move(tmp_path / "gone", data)
    assert train(config, tmp_path / "run", resume=True, quiet=True).finished


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    config = tiny_config("--optim.lr", "1e30", "--optim.steps", "20")
    with pytest.raises(UserError, match=r"diverged. Try a lower optim.lr"):
        train(config, tmp_path, quiet=True)
    if last(tmp_path).exists():
        tensors, progress = read_checkpoint(last(tmp_path))
        assert progress.step < 20
        assert all(bool(value.isfinite().all()) for value in tensors.values())


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--model.name", "hemnot"], "no model 'hemnot'"),
        (["--model.options.step", "1"], "no option 'step'"),
        (["--model.backbone", "resnet5"], "did you mean"),
        (["--model.weights", "gone.safetensors"], "no weight file"),
        (["--model.freeze_stages", "77"], "stages"),
        (["--data.name", "vocc"], "expected one of"),
        (["--data.name", "voc"], "is not for voc"),
        (["--data.val_split", "tests"], "split 'tests'"),
        (["--loss.class_weights", "[1]"], "has 1 numbers"),
        (["--run.device", "mps"], "`device=mps`: this machine has none"),
        (["--run.wandb", "project"], "wandb is not installed"),
    ],
)
def test_mistakes_before_the_first_step(
    flags: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    without = lambda name, *rest: None if name == "wandb" else real(name, *rest)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", without)
    monkeypatch.setattr(torch.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=message):
        train(tiny_config(*flags), tmp_path / "run", quiet=True)
    assert not last(tmp_path / "run").exists()


def test_wandb_gets_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def __init__(self) -> None:
            self.logged: list[tuple[int, dict[str, float]]] = []
            self.options: dict[str, object] = {}

        def init(self, **options: object) -> "Fake":
            self.options.update(options)
            return self

        def log(self, values: dict[str, float], step: int) -> None:
            self.logged.append((step, values))

        def finish(self) -> None: ...

    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(training, "check_wandb", lambda config: None)
    train(tiny_config("--run.wandb", "things", "--optim.steps", "3"), tmp_path, quiet=True)
    assert fake.options["project"] == "things"
    assert [step for step, _ in fake.logged] == [3, 3]
    assert "train/loss" in fake.logged[0][1]
    assert "validation/iou/lamp" in fake.logged[1][1]


def test_no_validation(tmp_path: Path) -> None:
    config: TrainConfig = tiny_config("--data.val_split", "null", "--optim.steps", "2")
    result = train(config, tmp_path, quiet=True)
    assert result.best_miou is None
    assert hemnet.from_pretrained(tmp_path / "model").config.num_classes == 11
    assert checkpoint.read_progress(last(tmp_path)).best_step == -1


def test_a_compiled_model_trains_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, real = [], torch.nn.Module.compile

    def without_code_generation(self: torch.nn.Module) -> None:  # which needs a C++ compiler
        compiled.append(self)
        real(self, backend="aot_eager")

    monkeypatch.setattr(torch.nn.Module, "compile", without_code_generation)
    flags = ["--optim.steps", "1", "--model.options.dropout", "0", "--data.val_split", "null"]
    train(tiny_config(*flags), tmp_path / "a", quiet=True)
    train(tiny_config(*flags, "--run.compile", "true"), tmp_path / "b", quiet=True)
    assert len(compiled) == 1
    one, other = (read_checkpoint(last(tmp_path / name))[0] for name in "ab")
    for key in one:
        torch.testing.assert_close(one[key], other[key], rtol=1e-2, atol=1e-4, msg=key)


def test_the_report_is_there_while_it_trains(tmp_path: Path) -> None:
    seen: list[str] = []

    def report(*args: Any, **options: Any) -> None:
        seen.append(write_report(*args, **options).read_text(encoding="utf-8"))

    config = tiny_config("--optim.steps", "6", "--validation.every", "2")
    train(config, tmp_path, report=report)
    assert len(seen) == 2, "that of the end is for whoever started the run"
    assert all('http-equiv="refresh"' in page for page in seen)
    assert "http-equiv" not in write_report(tmp_path).read_text(encoding="utf-8")
