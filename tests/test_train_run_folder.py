"""The run folder: one run at a time, and what is said when it is damaged or a helper dies."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hemnet import cli
from hemnet.errors import UserError
from hemnet.run_folder import RunFolder
from hemnet.training.checkpoints import read_progress
from hemnet.training.config_parser import dump_config
from hemnet.training.loop import train
from hemnet.training.resume import locked
from support.steps import at_step
from support.tiny_runs import assert_same, outcome, tiny_config

HOLD = """
import sys, time
from pathlib import Path
from hemnet.training.resume import locked
from hemnet.run_folder import RunFolder
with locked(RunFolder(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def last(out: Path) -> Path:
    return out / "checkpoints" / "last.safetensors"


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_takes_one_run_at_a_time(tmp_path: Path, resume: bool) -> None:
    train(tiny_config("--optim.steps", "1"), tmp_path / "other", quiet=True)  # is not in the way
    out = tmp_path / "run"
    with (
        locked(RunFolder(out)),
        pytest.raises(UserError, match=rf"in use by another run \(.*{os.getpid()}"),
    ):
        train(tiny_config(), out, resume, quiet=True)
    assert not last(out).exists()
    assert train(tiny_config("--optim.steps", "1"), out, resume, quiet=True).finished


def test_a_model_without_a_run_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for resume in (False, True):
        with pytest.raises(UserError, match="would replace the model"):
            train(tiny_config(), tmp_path, resume, quiet=True)


def test_two_commands_into_one_folder(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(dump_config(tiny_config("--optim.steps", "40")))
    command = [sys.executable, "-m", "hemnet", "train", "--config", config, "--out"]
    command.append(tmp_path / "run")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runs = [subprocess.Popen(command, **pipes) for _ in range(2)]
    errors = [run.communicate(timeout=300)[1] for run in runs]
    codes = sorted(run.returncode for run in runs)
    assert codes == [0, 2], errors
    assert sum("in use by another run" in e or "already holds" in e for e in errors) == 1


@pytest.mark.skipif(os.name == "nt", reason="kills as Linux and macOS do")
def test_the_lock_ends_with_its_process_even_while_a_child_lives(tmp_path: Path) -> None:
    script = HOLD.replace("    print", "    child = __import__('os').fork()\n    child and print")
    holder = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="in use"), locked(RunFolder(tmp_path)):
            pass
        holder.kill()
        holder.wait()
        with locked(RunFolder(tmp_path)):
            pass
    finally:
        os.killpg(holder.pid, signal.SIGKILL)  # the child


def test_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    rests = [tmp_path / "checkpoints" / "best.safetensors.part", tmp_path / "metrics.jsonl.part"]
    for rest in rests:
        rest.write_bytes(b"half")
    train(tiny_config("--optim.steps", "1"), tmp_path, quiet=True)
    assert not any(rest.exists() for rest in rests)


@pytest.mark.skipif(os.name == "nt", reason="kills as Linux and macOS do")
def test_a_killed_reader_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    flags = ("--data.workers", "1")
    train(tiny_config(*flags), tmp_path / "whole", quiet=True)

    def kill() -> None:
        for child in multiprocessing.active_children():
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
        time.sleep(0.1)

    out = tmp_path / "cut"
    message = r"was killed.*checkpoint of step 3 .* is intact"
    with at_step(2, kill), pytest.raises(UserError, match=message):
        train(tiny_config(*flags), out, quiet=True)
    assert read_progress(last(out)).step == 3
    assert train(tiny_config(*flags), out, resume=True, quiet=True).finished
    assert_same(outcome(tmp_path / "whole"), outcome(out))


@pytest.mark.parametrize("name", ["deeplabv3plus", "pspnet"])
@pytest.mark.parametrize("crop", ["[1, 1]", "[48, 48]"])
def test_one_value_per_channel_is_no_batch(tmp_path: Path, name: str, crop: str) -> None:
    """A mean over the image has one, of any image; a feature map has several, of any image."""
    flags = ("--data.crop", crop, "--optim.batch_size", "1", "--optim.steps", "1")
    head = ("--model.name", name, "--model.options", "{}")
    with pytest.raises(UserError, match=r"one value per channel.*optim\.batch_size"):
        train(tiny_config(*flags, *head), tmp_path / "mean", quiet=True)
    assert train(tiny_config(*flags), tmp_path / "map", quiet=True).finished


@pytest.mark.parametrize("name", ["lamb", "adafactor", "muon"])
def test_every_optimizer_goes_on_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    config = tiny_config("--optim.name", name, "--optim.steps", "4")
    train(config, tmp_path / "whole", quiet=True)

    def cut() -> None:
        raise UserError("cut")

    with at_step(2, cut), pytest.raises(UserError, match="cut"):
        train(config, tmp_path / "cut", quiet=True)
    train(config, tmp_path / "cut", resume=True, quiet=True)
    assert_same(outcome(tmp_path / "whole"), outcome(tmp_path / "cut"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, of which one is done."""
    out = tmp_path_factory.mktemp("run")
    train(tiny_config("--optim.steps", "1"), out, quiet=True)
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(text.replace("steps: 1\n", "steps: 2\n", 1))
    assert "steps: 2" in (out / "config.yaml").read_text()
    return out


def resumed(
    run: Path, capsys: pytest.CaptureFixture[str], *flags: str, code: int | None = None
) -> str:
    """What the command says when it goes on with the run; never a traceback."""
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["train", "--resume", "--out", str(run), *flags])
    error = capsys.readouterr().err
    assert "Traceback" not in error
    if code is not None:
        assert exit_info.value.code == code, error
    return error


def progress_with(**values: object) -> dict[str, str]:
    from dataclasses import asdict

    from hemnet.training.checkpoints import Progress

    content = asdict(Progress(step=1)) | values
    return {"format": "1", "progress": json.dumps(content)}


DAMAGE: dict[str, dict[str, str]] = {
    "no step": progress_with(step=None),
    "step of text": progress_with(step="1"),
    "step below zero": progress_with(step=-5),
    "fraction": progress_with(step=1.5),
    "list": progress_with(scaler=[]),
    "best of text": progress_with(best_miou="x"),
    "unknown": progress_with(colour="red"),
    "no object": {"format": "1", "progress": "[]"},
    "null": {"format": "1", "progress": "null"},
    "deep": {"format": "1", "progress": "[" * 100_000},
    "no progress": {"format": "1"},
    "none": {},
    "optimizer": progress_with() | {"optimizer": "[1]"},
    "optimizer's values": progress_with() | {"optimizer": '{"values": 3}'},
    "optimizer's names": progress_with() | {"optimizer": '{"values": {"optimizer.x": 3}}'},
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_numbers_of_a_checkpoint(
    name: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    tensors = load_file(last(finished))
    save_file(tensors, last(tmp_path / "run"), DAMAGE[name])
    before = last(tmp_path / "run").read_bytes()
    error = resumed(tmp_path / "run", capsys, code=2)
    assert "last.safetensors" in error
    assert len(error) < 500
    assert last(tmp_path / "run").read_bytes() == before


@pytest.mark.parametrize(
    "old, new",
    [
        ("model.head.attention.bases.value", "model.other"),
        ("optimizer.0.momentum_buffer", "optimizer.999.momentum_buffer"),
        ("optimizer.0.momentum_buffer", "optimizer.x.momentum_buffer"),
        ("optimizer.0.momentum_buffer", "optimizer.-1000.momentum_buffer"),
        ("optimizer.0.momentum_buffer", "optimizer.group99.step"),
        ("optimizer.0.momentum_buffer", "optimizer.0"),
    ],
)
def test_wrong_names_of_tensors(
    old: str, new: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    tensors = load_file(last(finished))
    tensors[new] = tensors.pop(old)
    save_file(tensors, last(tmp_path / "run"), progress_with())
    error = resumed(tmp_path / "run", capsys, code=2)
    assert "does not fit this" in error


def test_missing_and_misshapen_optimizer_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    train(tiny_config("--optim.steps", "1", "--optim.name", "adamw"), out, quiet=True)
    whole = load_file(last(out))
    flags = ("--optim.steps", "2", "--allow-changes")
    for key in ("optimizer.0.exp_avg", "optimizer.0.step"):
        save_file({k: v for k, v in whole.items() if k != key}, last(out), progress_with())
        assert "optimizer" in resumed(out, capsys, *flags, code=2)
    save_file(whole | {"optimizer.0.exp_avg": torch.zeros(3)}, last(out), progress_with())
    assert "does not fit this optimizer" in resumed(out, capsys, *flags, code=2)


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "[]", "null", "3", "[" * 9999, '{"step": null}', '{"kind": "train"}'),
        '{"kind": "train", "step": 1}',
        '{"step": "1", "kind": "train"}',
        '{"kind": "validation", "step": 1, "iou": 3}',
    ],
)
def test_damaged_lines_of_metrics_are_left_out(text: str, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    good = RunFolder(tmp_path / "run").read_metrics()
    assert good
    metrics.write_text(text + "\n" + metrics.read_text())
    config = tiny_config("--optim.steps", "2")
    assert train(config, tmp_path / "run", resume=True, quiet=True).finished
    assert RunFolder(tmp_path / "run").read_metrics()[: len(good)] == good
    assert all(json.loads(line) for line in metrics.read_text().splitlines())


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "environment.json", "model"])
@pytest.mark.parametrize("kind", ["bytes", "empty", "folder", "gone", "null"])
def test_damaged_files_of_a_run(
    name: str, kind: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "folder":
        path.mkdir()
        (path / "x").write_text("x")
    elif kind != "gone":
        path.write_bytes({"bytes": b"\xff\x00\xfe", "empty": b"", "null": b"null\n"}[kind])
    before = last(tmp_path / "run").read_bytes()
    error = resumed(tmp_path / "run", capsys)
    if "step 2:" not in error:  # not finished: said why, lost nothing
        assert error.startswith("hemnet: ")
        assert last(tmp_path / "run").read_bytes() == before
