"""Two hosts on one machine: network namespaces joined by a cable, which can be pulled.

    python tests/support/hosts.py

says whether this machine lets us make them; nothing but the standard library is needed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NODES = {"node0": "10.213.77.1", "node1": "10.213.77.2"}  # each pair is a world of its own
LINK = "eth0"
SETTINGS = Path("/etc/netns")  # what lies here for a namespace is its /etc
_numbers = itertools.count()


@dataclass(frozen=True)
class Host:
    """As Debian sets one up: its own name leads to itself only, the other's to the cable."""

    node: str
    name: str  # of its namespace
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def connect(self) -> None:
        _ip("-n", self.name, "address", "add", f"{NODES[self.node]}/24", "dev", LINK)
        for link in ("lo", LINK):
            _ip("-n", self.name, "link", "set", link, "up")
        own = dict.fromkeys((self.node, socket.gethostname()), "127.0.1.1")
        addresses = {"localhost": "127.0.0.1"} | NODES | own
        self._settings.mkdir(parents=True)
        lines = (f"{address} {name}\n" for name, address in addresses.items())
        (self._settings / "hosts").write_text("".join(lines))

    @property
    def _settings(self) -> Path:
        return SETTINGS / self.name

    def start(
        self, command: Sequence[str], env: dict[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        with open(log, "wb") as output:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
            )
        self.started.append(process)
        return process

    def unplug(self) -> None:
        """Nothing reaches it or leaves it any more, and nobody is told."""
        _ip("-n", self.name, "link", "set", LINK, "down")

    def kill(self) -> None:
        """As if its power failed: all its processes at once."""
        deadline = time.monotonic() + 60
        for process in self.started:
            process.kill()
        while pids := _ip("netns", "pids", self.name).split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            if time.monotonic() > deadline:
                raise RuntimeError(f"processes {pids} of {self.name} cannot be killed")
            time.sleep(0.02)
        for process in self.started:
            process.wait(timeout=60)

    def remove(self) -> None:
        try:
            self.kill()
        finally:
            shutil.rmtree(self._settings, ignore_errors=True)
            with contextlib.suppress(OSError):
                SETTINGS.rmdir()  # unless there are others
            _ip("netns", "delete", self.name)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts that reach each other and nothing else; afterwards nothing of them is left."""
    remove_forgotten()
    with contextlib.ExitStack() as stack:
        made = []
        for node in NODES:
            # Several test processes may do this at once.
            host = Host(node, f"hemnet-{os.getpid()}-{next(_numbers)}")
            _ip("netns", "add", host.name)
            stack.callback(host.remove)
            made.append(host)
        first, second = made
        peer = ("peer", "name", LINK, "netns", second.name)
        _ip("link", "add", "name", LINK, "netns", first.name, "type", "veth", *peer)
        for host in made:
            host.connect()
        yield first, second


def remove_forgotten() -> None:
    """Hosts whose test process was killed, and could not clean up."""
    for name in re.findall(r"^hemnet-\d+-\d+", _ip("netns", "list"), re.MULTILINE):
        try:
            os.kill(int(name.split("-")[1]), 0)
        except ProcessLookupError:
            with contextlib.suppress(RuntimeError):  # another test process does the same
                Host("", name).remove()


def refused() -> str | None:
    """Why there can be no such hosts here, or None."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    if shutil.which("ip") is None:
        return "there is no `ip` (on Debian or Ubuntu: apt-get install iproute2)"
    # Whether a connection gets through, and a name is found.
    program = "import socket, sys; socket.create_server(('', 5000)).accept()"
    calling = (
        "import socket, time\n"
        "for _ in range(100):\n"
        "    try: socket.create_connection(('node0', 5000), 1); break\n"
        "    except ConnectionError: time.sleep(0.1)\n"
        "else: raise SystemExit(1)"
    )
    try:
        with two_hosts() as hosts:
            log, env = Path(os.devnull), dict(os.environ)
            processes = [
                host.start([sys.executable, "-c", text], env, log)
                for host, text in zip(hosts, (program, calling), strict=True)
            ]
            codes = [process.wait(timeout=60) for process in reversed(processes)]
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        return f"this system does not let us make network namespaces: {error}"
    return None if codes == [0, 0] else "two network namespaces cannot talk to each other here"


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    if reason := refused():
        sys.exit(reason)
