"""Kill a run again and again, resume it, and compare with a run that was left alone.

    python tests/kills.py --kills 25

Every attempt is a real process, ended by a real SIGKILL: after a random time, or inside the
writing of a checkpoint, at a randomly chosen file operation.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from hemnet.run_folder import RunFolder
from hemnet.training import checkpoints as checkpoint
from hemnet.training.checkpoints import read_checkpoint
from hemnet.training.config import TrainConfig
from hemnet.training.config_parser import read_config
from hemnet.training.loop import train

AT_RANDOM, IN_WRITE, FINISHED = "killed at random", "killed in a write", "finished first"
TIMING = ("images_per_second", "data_wait", "seconds")


def tiny_config(*flags: str) -> TrainConfig:
    """A run of seconds that uses everything with a state: moving averages, momentum, dropout."""
    settings = {
        "model.backbone": "test_resnet",
        "model.output_stride": 16,
        "model.channels": 16,
        "model.options": "{bases: 8, variance: auto, dropout: 0.2, start: average}",
        "data.size": 48,
        "data.crop": "[48, 48]",
        "data.length": 10,
        "data.val_length": 3,
        "data.workers": 0,
        "optim.batch_size": 4,
        "optim.steps": 8,
        "validation.every": 4,
        "run.log_every": 3,
        "run.health_every": 3,
        "run.checkpoint_every": 1,
        "run.tensorboard": "false",
        "run.device": "cpu",
    }
    given = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    return read_config(None, [*given, *flags])


def attempt(config: TrainConfig, out: Path, rng: random.Random, longest: float) -> str:
    """Train or resume in a child process and kill it; says how it ended."""
    in_write = rng.random() < 0.5
    operation = rng.randrange(1, 40)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        if in_write:
            _die_at(operation)
        try:
            train(config, out, resume=True, quiet=True)
        except BaseException as error:
            print(f"attempt failed: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + (600 if in_write else rng.uniform(0.0, longest))
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.002)
    else:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return IN_WRITE if in_write else AT_RANDOM
    assert os.WEXITSTATUS(status) == 0, "an attempt failed by itself"
    return FINISHED


def _die_at(operation: int) -> None:
    """Make this process kill itself before the n-th fsync, rename or link of its checkpoints."""
    count = 0

    class Operations:
        def __getattr__(self, name: str) -> Any:
            real = getattr(os, name)
            if name not in ("fsync", "replace", "link"):
                return real

            def counted(*args: Any) -> Any:
                nonlocal count
                count += 1
                if count == operation:
                    if name == "fsync" and stat.S_ISREG(os.fstat(args[0]).st_mode):
                        # What has not reached the disk may be half of it.
                        os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args)

            return counted

    checkpoint.os = Operations()  # type: ignore[attr-defined]


def outcome(out: Path) -> dict[str, Any]:
    """Everything of a run that must not depend on kills."""
    tensors, progress = read_checkpoint(out / "checkpoints" / "last.safetensors")
    best, best_progress = read_checkpoint(out / "checkpoints" / "best.safetensors")
    lines = RunFolder(out).read_metrics()
    return {
        "last": tensors,
        "best": best,
        "model": load_file(out / "model" / "model.safetensors"),
        "progress": progress,
        "best progress": best_progress,
        "metrics": [{k: v for k, v in line.items() if k not in TIMING} for line in lines],
    }


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part, value in one.items():
        if not isinstance(value, dict):
            assert value == other[part], f"{part}: {value} and {other[part]}"
            continue
        assert value.keys() == other[part].keys(), part
        for name, tensor in value.items():
            same = torch.equal(tensor, other[part][name])
            assert same, f"{part}: {name} differs"


def run_with_kills(folder: Path, kills: int, seed: int, *flags: str) -> dict[str, int]:
    """Kill at least `kills` times and compare with a run left alone; how attempts ended."""
    config = tiny_config(*flags)
    start = time.monotonic()
    train(config, folder / "alone", quiet=True)
    longest = 1.2 * (time.monotonic() - start)
    rng, ends, number = random.Random(seed), dict.fromkeys((AT_RANDOM, IN_WRITE, FINISHED), 0), 0
    while ends[AT_RANDOM] + ends[IN_WRITE] < kills:
        out = folder / f"killed{number}"
        for _ in range(rng.randrange(2, 6)):  # several kills of one run
            ends[attempt(config, out, rng, longest)] += 1
        train(config, out, resume=True, quiet=True)
        assert_same(outcome(folder / "alone"), outcome(out))
        number += 1
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    args, flags = parser.parse_known_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ends = run_with_kills(Path(folder), args.kills, args.seed, *flags)
    print(json.dumps(ends, indent=1))
    kills = ends[AT_RANDOM] + ends[IN_WRITE]
    print(f"{kills} kills: weights, bases, optimizer and metrics are bit-identical")


if __name__ == "__main__":
    main()
