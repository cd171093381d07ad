"""Two hosts, a network between them, the commands of docs/distributed.md; and one host dies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from hemnet.training import distributed as processes
from hemnet.training.checkpoints import read_checkpoint
from hemnet.training.config_parser import dump_config
from hemnet.training.loop import train
from support import hosts
from support.tiny_runs import FOR_SEVERAL, assert_same, outcome, tiny_config

LONG = 600  # seconds that nothing here takes, on however slow a machine
TIMEOUT = 20  # that processes wait for each other: also for one that takes long to start


@pytest.fixture(scope="module")
def _hosts_allowed() -> None:
    if reason := hosts.refused():
        pytest.skip(reason)


@dataclass
class Launch:
    """`torchrun` on each host, with one process each."""

    folder: Path
    out: Path
    pair: Sequence[hosts.Host]
    name: str
    hold: dict[int, int] = field(default_factory=dict)  # host → its steps before it stops

    def start(self) -> None:
        self.processes = [self._start(number) for number in range(2)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if k != processes.INTERFACE}
        paths = (str(Path(__file__).parent), env.get("PYTHONPATH"))
        env |= {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "OMP_NUM_THREADS": "1"}
        module = "hemnet"
        if number in self.hold:
            module = "support.hold"
            env |= {"HOLD_STEP": str(self.hold[number]), "HOLD_FILE": str(self._held)}
        command = f"-m torch.distributed.run --nnodes 2 --node-rank {number} --nproc-per-node 1"
        command += f" --master-addr node0 --master-port 29500 -m {module} train --resume"
        config = ["--config", str(self.folder / "c.yaml"), "--out", str(self.out)]
        return self.pair[number].start(
            [sys.executable, *command.split(), *config], env, self._log(number)
        )

    @property
    def _held(self) -> Path:
        return self.folder / f"{self.name}.held"

    def _log(self, number: int) -> Path:
        return self.folder / f"{self.name}.node{number}"

    def read(self, number: int) -> str:
        return self._log(number).read_text(errors="replace")

    def wait_for_hold(self) -> None:
        deadline = time.monotonic() + LONG
        while not self._held.exists():
            assert all(p.poll() is None for p in self.processes), self.read(0) + self.read(1)
            assert time.monotonic() < deadline, self.read(0) + self.read(1)
            time.sleep(0.05)

    def finish(self) -> None:
        for number, process in enumerate(self.processes):
            assert process.wait(timeout=LONG) == 0, self.read(number)

    def assert_ends_clearly(self, survivor: int, step: int) -> None:
        """The host that is left says what has happened and what to do, and waits no longer."""
        assert self.processes[survivor].wait(timeout=LONG) != 0
        text = self.read(survivor)
        assert "hemnet: another process of this run has ended or cannot be reached" in text
        kept = f"The checkpoint of step {step} in {self.out} is intact: go on from it with --resume"
        assert kept in text, text
        assert "hemnet/training" not in text, f"a traceback of ours:\n{text}"


@pytest.mark.two_hosts
@pytest.mark.usefixtures("_hosts_allowed")
def test_nothing_is_left_of_a_test_that_was_killed() -> None:
    program = """
import os, pathlib, signal
from support import hosts
with hosts.two_hosts() as pair:
    for host in pair:
        host.start(["sleep", "600"], dict(os.environ), pathlib.Path(os.devnull))
    print(*(host.name for host in pair), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", program]
    killed = subprocess.run(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    names = set(killed.stdout.split())
    assert len(names & namespaces()) == 2
    hosts.remove_forgotten()
    assert not names & namespaces()
    with contextlib.suppress(KeyError), hosts.two_hosts() as pair:
        mine = {host.name for host in pair}
        assert len(mine & namespaces()) == 2
        raise KeyError  # a test that fails
    assert not mine & namespaces()


def namespaces() -> set[str]:
    done = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True)
    return {line.split()[0] for line in done.stdout.splitlines()}


@pytest.mark.two_hosts
@pytest.mark.usefixtures("_hosts_allowed")
def test_two_hosts_train_like_one_process_and_outlive_each_other(tmp_path: Path) -> None:
    config = tiny_config(*FOR_SEVERAL, "--run.timeout", str(TIMEOUT))
    (tmp_path / "c.yaml").write_text(dump_config(config))
    torch.set_num_threads(1)
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    with hosts.two_hosts() as pair, hosts.two_hosts() as doomed:
        # The first host, which writes the checkpoints and where all meet, disappears.
        cut = Launch(tmp_path, broken, doomed, "cut", hold={0: 3})
        cut.start()
        cut.wait_for_hold()
        doomed[0].unplug()
        doomed[0].kill()

        # While the other one waits for it: a run that nothing happens to.
        whole = Launch(tmp_path, unbroken, pair, "whole")
        whole.start()
        train(config, tmp_path / "one", quiet=True)
        whole.finish()
        cut.assert_ends_clearly(survivor=1, step=3)

        # The second host dies, and its system tells the first one.
        killed = Launch(tmp_path, broken, pair, "killed", hold={1: 2})
        killed.start()
        killed.wait_for_hold()
        pair[1].kill()
        killed.assert_ends_clearly(survivor=0, step=5)

        rest = Launch(tmp_path, broken, pair, "rest")
        rest.start()
        rest.finish()
    assert_same(outcome(unbroken), outcome(broken))

    name = "checkpoints/last.safetensors"
    alone, _ = read_checkpoint(tmp_path / "one" / name)
    joined, progress = read_checkpoint(unbroken / name)
    assert (progress.processes, progress.step) == (2, config.optim.steps)
    for key, value in alone.items():
        torch.testing.assert_close(joined[key], value, rtol=2e-4, atol=2e-6, msg=key)
