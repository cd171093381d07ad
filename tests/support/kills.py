"""Runs that are killed, resumed, and compared with one that was left alone."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from pathlib import Path
from typing import Any

import torch

from hemnet.training import checkpoints as checkpoint
from hemnet.training.config import TrainConfig
from hemnet.training.loop import train
from support.tiny_runs import assert_same, outcome, tiny_config

AT_RANDOM, IN_WRITE, FINISHED = "killed at random", "killed in a write", "finished first"


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
