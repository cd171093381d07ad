"""Two hosts on one machine: network namespaces joined by a cable, which can be pulled.

    python tests/hosts.py

says whether this machine lets us make them; nothing but the standard library is needed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ADDRESSES = ("10.213.77.1", "10.213.77.2")  # of nobody else's concern: each pair is a world apart
LINK = "eth0"


@dataclass(frozen=True)
class Host:
    name: str  # of its namespace
    address: str

    def start(self, command: Sequence[str], output: IO[str], **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **env},
        )

    def unplug(self) -> None:
        """From now on nothing reaches it or leaves it, and nobody is told."""
        _ip("-n", self.name, "link", "set", LINK, "down")

    def kill(self) -> None:
        """As if its power failed: all its processes at once."""
        deadline = time.monotonic() + 60
        while pids := _ip("netns", "pids", self.name).split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            assert time.monotonic() < deadline, f"processes {pids} cannot be killed"
            time.sleep(0.05)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else; afterwards nothing of them is left."""
    made = []
    try:
        for number, address in enumerate(ADDRESSES):
            # Several test processes may do this at once.
            host = Host(f"hemnet-{os.getpid()}-{number}", address)
            _ip("netns", "add", host.name)
            made.append(host)
        first, second = made
        peer = ("peer", "name", LINK, "netns", second.name)
        _ip("link", "add", "name", LINK, "netns", first.name, "type", "veth", *peer)
        for host in made:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", LINK)
            for link in ("lo", LINK):
                _ip("-n", host.name, "link", "set", link, "up")
        yield first, second
    finally:
        for host in made:
            try:
                host.kill()
            finally:
                _ip("netns", "delete", host.name)


def refused() -> str | None:
    """Why there can be no such hosts here, or None."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    if shutil.which("ip") is None:
        return "there is no `ip` (on Debian or Ubuntu: apt-get install iproute2)"
    try:
        with two_hosts() as (host, _):
            done = host.start(["true"], sys.stderr).wait(timeout=60)
        return None if done == 0 else "`ip netns exec` fails"
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        return f"this system does not permit network namespaces: {error}"


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    if reason := refused():
        sys.exit(f"{Path(__file__).name}: {reason}")
