"""How processes find each other, what they refuse, and what is said when one is lost."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import distributed

from hemnet.cli.shared_flags import chosen_device
from hemnet.errors import UserError, explain
from hemnet.training import distributed as processes
from hemnet.training.accelerator import computing
from hemnet.training.config import RunConfig
from hemnet.training.config_parser import differences
from support.tiny_runs import tiny_config

LOOPBACK = {"lo": ["127.0.0.1", "127.0.1.1", "::1"]}
ROUTED = {"eth0": ["192.168.3.4", "fe80::1%eth0"], "ib0": ["10.0.0.7"]}


def machine(
    monkeypatch: pytest.MonkeyPatch, interfaces: dict[str, list[str]], routes: dict[str, str]
) -> None:
    """One with these addresses, and with these own addresses on the way to others."""

    def family(address: str) -> int:
        return socket.AF_INET6 if ":" in address else socket.AF_INET

    addresses = {
        name: [SimpleNamespace(family=family(a), address=a) for a in found]
        for name, found in (LOOPBACK | interfaces).items()
    }
    up = dict.fromkeys(addresses, SimpleNamespace(isup=True))
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: up)
    monkeypatch.setattr(processes, "address_towards", routes.get)
    monkeypatch.setenv("MASTER_ADDR", "node0")


DEFAULT_ROUTE = {processes.NOWHERE: "192.168.3.4"}


@pytest.mark.parametrize(
    ("interfaces", "routes", "expected"),
    [
        (ROUTED, {"node0": "10.0.0.7"} | DEFAULT_ROUTE, "ib0"),
        (ROUTED, {"node0": "fe80::1"}, "eth0"),
        (ROUTED, {"node0": "127.0.1.1"} | DEFAULT_ROUTE, "eth0"),  # as the first machine may
        ({"eth5": ["10.9.9.9"]}, {"node0": "127.0.0.1"}, "eth5"),  # the only one there is
        ({"eth5": ["10.9.9.9"]}, {}, "eth5"),
        (ROUTED, {"node0": "127.0.0.1"}, None),
        ({}, {}, None),
    ],
)
def test_the_interface_that_leads_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
    interfaces: dict[str, list[str]],
    routes: dict[str, str],
    expected: str | None,
) -> None:
    machine(monkeypatch, interfaces, routes)
    assert processes.interface() == expected


def test_the_own_address_on_the_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes.address_towards("127.0.0.1") == "127.0.0.1"
    assert processes.address_towards("no such.name") is None
    assert processes.address_towards("x" * 70) is None
    datagram = (socket.SOCK_DGRAM, 0, "")
    unreachable = (socket.AF_INET, *datagram, ("no address", 9))  # as IPv6 often is
    found = [unreachable, (socket.AF_INET, *datagram, ("127.0.0.1", 9))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert processes.address_towards("node0") == "127.0.0.1"


@pytest.mark.parametrize(
    ("local", "given", "expected"), [(1, None, "ib0"), (1, "eth0", "eth0"), (2, None, None)]
)
def test_only_several_machines_need_an_interface(
    monkeypatch: pytest.MonkeyPatch, local: int, given: str | None, expected: str | None
) -> None:
    machine(monkeypatch, ROUTED, {"node0": "10.0.0.7"})
    monkeypatch.setattr(processes, "PartialState", lambda **_: None)
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(local), "MASTER_ADDR": "node0"}
    if given is not None:
        environment[processes.INTERFACE] = given
    monkeypatch.setattr(processes.os, "environ", environment)
    processes.join(cpu=True, timeout=5)
    assert environment.get(processes.INTERFACE) == expected


def test_evaluation_on_cpus_joins_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --device auto, too: each would see all images otherwise."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.mps, "is_available", lambda: False)
    joined: list[bool] = []

    def join(*, cpu: bool, timeout: float) -> Any:
        joined.append(cpu)
        return SimpleNamespace(
            device=torch.device("cpu"), is_main_process=True, destroy_process_group=lambda: None
        )

    monkeypatch.setattr(processes, "join", join)
    assert chosen_device("auto") == (torch.device("cpu"), True)
    assert joined == [True]
    with pytest.raises(UserError, match="this machine has none"):
        chosen_device("cuda")


def test_the_timeout_is_the_group_s(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(processes, "PartialState", lambda **k: given.append(k["timeout"].seconds))
    with computing(RunConfig(device="cpu", timeout=600)):
        assert given == [600]
    with pytest.raises(UserError, match=r"run\.timeout is 0\.0: expected 1 to"):
        tiny_config("--run.timeout", "0")
    assert differences(tiny_config(), tiny_config("--run.timeout", "60")) == []


def test_processes_that_were_started_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.check_alike({"anything": 1})  # one process

    def gather(everyone: list[Any], mine: Any) -> None:
        everyone[:] = [("node0", {"step": 4, "rate": 0.1}), ("node1", {"step": 0, "rate": 0.1})]

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather_object", gather)
    with pytest.raises(UserError) as error:
        processes.check_alike({"step": 4, "rate": 0.1})
    message = str(error.value)
    assert "step is 4 for process 0 on node0, and 0 for process 1 on node1" in message
    assert "a disk that every machine sees" in message


GLOO = "[/__w/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError(f"{GLOO}unbound_buffer.cc:78] Timed out waiting 5000ms for recv"),
            "(Timed out waiting 5000ms for recv)",
        ),
        (
            RuntimeError(f"{GLOO}pair.cc:561] Connection closed by peer [10.0.0.2]:41. Typical!"),
            "(Connection closed by peer [10.0.0.2]:41)",
        ),
        (
            RuntimeError(f"Gloo connectFullMesh failed with {GLOO}pair.cc:152] timed out"),
            "(Gloo connectFullMesh failed with timed out)",
        ),
        (distributed.DistStoreError("wait timeout after 5000ms"), "(wait timeout after 5000ms)"),
        (distributed.DistBackendError(""), "(DistBackendError)"),
    ],
)
def test_a_lost_process_is_explained(error: RuntimeError, reason: str) -> None:
    text = explain(error)
    assert text is not None
    assert text.startswith("another process of this run has ended or cannot be reached")
    assert reason in text


def test_other_errors_are_not_taken_for_a_lost_process() -> None:
    assert explain(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
