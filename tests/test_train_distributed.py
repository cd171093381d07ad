"""Two real processes train like one, through the launcher that a user would take."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hemnet
from hemnet.errors import UserError
from hemnet.inference.evaluate import evaluate
from hemnet.run_folder import RunFolder
from hemnet.training.checkpoints import read_checkpoint
from hemnet.training.config_parser import dump_config
from hemnet.training.loop import train
from hemnet.training.setup import open_datasets
from support.tiny_runs import FOR_SEVERAL, tiny_config

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo and torchrun on Windows")


def torchrun(folder: Path, *flags: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    (folder / "c.yaml").write_text(dump_config(tiny_config(*FOR_SEVERAL, *flags)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", "hemnet", "train", "--resume"]
    return subprocess.run(
        [*command, "--config", str(folder / "c.yaml"), "--out", str(folder / "two")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_two_processes_are_one_with_the_joined_batch(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    one = train(tiny_config(*FOR_SEVERAL), tmp_path / "one", quiet=True)
    done = torchrun(tmp_path)
    assert done.returncode == 0, done.stderr
    name = "checkpoints/last.safetensors"
    alone, _ = read_checkpoint(tmp_path / "one" / name)
    joined, progress = read_checkpoint(tmp_path / "two" / name)
    assert (progress.processes, progress.step) == (2, one.step)
    start = read_checkpoint_of_start(tmp_path)
    for key, value in alone.items():
        torch.testing.assert_close(joined[key], value, rtol=2e-4, atol=2e-6, msg=key)
    # The comparison means something only if training changed much more than rounding does.
    for key in (
        *("model.head.mix.0.weight", "model.head.attention.bases.value"),
        *("average.head.mix.0.weight", "average.head.attention.bases.value"),
    ):
        assert (alone[key] - start[key]).abs().max() > 100 * (alone[key] - joined[key]).abs().max()
    metrics = [RunFolder(tmp_path / run).read_metrics() for run in ("one", "two")]
    assert [m["step"] for m in metrics[0]] == [m["step"] for m in metrics[1]]
    for a, b in zip(*metrics, strict=True):
        if a["kind"] == "train":
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)


@pytest.mark.parametrize("average", ["null", "0.5"])
def test_all_processes_judge_the_model_that_is_saved(average: str, tmp_path: Path) -> None:
    """On a CPU each process has batch norms of its own, and judges its share of the images."""
    flags = ["--model.freeze_norm", "false", "--optim.ema_decay", average, "--optim.lr", "0.5"]
    flags += ["--data.val_length", "6", "--validation.keep", "last", "--optim.steps", "4"]
    done = torchrun(tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    line = RunFolder(tmp_path / "two").read_metrics()[-1]
    val = open_datasets(tiny_config(*flags).data)[1]
    assert val is not None
    found = evaluate(hemnet.from_pretrained(tmp_path / "two" / "model"), val, progress=None)
    assert line["pixel_accuracy"] == pytest.approx(found.pixel_accuracy, abs=1e-6)
    assert line["miou"] == pytest.approx(found.miou, abs=1e-6)


def read_checkpoint_of_start(folder: Path) -> dict[str, torch.Tensor]:
    config = tiny_config(*FOR_SEVERAL, "--optim.steps", "1", "--optim.lr", "1e-30")
    train(config, folder / "start", quiet=True)
    return read_checkpoint(folder / "start" / "checkpoints/last.safetensors")[0]


def test_a_batch_that_cannot_be_split_is_refused(tmp_path: Path) -> None:
    done = torchrun(tmp_path, "--optim.batch_size", "3")
    assert done.returncode != 0
    assert "it cannot be split into 2 processes" in done.stderr
    with pytest.raises(UserError, match="equal passes"):
        tiny_config("--optim.batch_size", "3", "--optim.accumulate", "2")
