"""Several processes: how they find each other, and what must be the same for all of them."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from accelerate import PartialState

from hemnet.errors import UserError

INTERFACE = "GLOO_SOCKET_IFNAME"
NOWHERE = "192.0.2.1"  # an address for examples (RFC 5737): the way to it is the default route


def join(*, cpu: bool, timeout: float) -> PartialState:
    """Join the processes that `torchrun` or `accelerate launch` started; alone, do nothing.

    Afterwards no process waits longer than `timeout` seconds for another one.
    """
    if on_several_machines() and INTERFACE not in os.environ:
        name = interface()
        if name is not None:
            os.environ[INTERFACE] = name
    return PartialState(cpu=cpu, timeout=timedelta(seconds=timeout))


def on_several_machines() -> bool:
    world = os.environ.get("WORLD_SIZE", "1")
    return int(os.environ.get("LOCAL_WORLD_SIZE", world)) < int(world)


def interface() -> str | None:
    """The network interface that leads to the other machines; None where it is not clear.

    Left to itself, gloo takes the address that this machine's own name has, which many systems
    set to the loopback interface: nobody else can connect to that.
    """
    names = {
        _plain(address.address): name
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }
    # The first machine may know itself by a loopback address, too.
    for target in (os.environ.get("MASTER_ADDR", NOWHERE), NOWHERE):
        address = address_towards(target)
        if address in names and not ipaddress.ip_address(address).is_loopback:
            return names[address]
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    others = {n for a, n in names.items() if n in up and not ipaddress.ip_address(a).is_loopback}
    return others.pop() if len(others) == 1 else None


def address_towards(target: str) -> str | None:
    """This machine's address on the way to another; nothing is sent."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return None
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # fails where a name has an IPv6 address and the network none
            return _plain(probe.getsockname()[0])
    return None


def _plain(address: str) -> str:
    return address.split("%")[0]  # without an IPv6 address's scope


def check_alike(mine: Mapping[str, Any]) -> None:
    """Refuse, in every process, a run that was started with different things.

    `mine` is what this process has, by name. Processes that do not agree would wait for each
    other in different places, or train on different images without a word.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (socket.gethostname(), dict(mine)))
    host, first = everyone[0]
    for number, (other_host, other) in enumerate(everyone):
        for name in dict.fromkeys((*first, *other)):
            if first.get(name) != other.get(name):
                raise UserError(
                    f"the processes were not started alike: {name} is {first.get(name)} for "
                    f"process 0 on {host}, and {other.get(name)} for process {number} on "
                    f"{other_host}. All need the same configuration and data, and a run folder "
                    "(`out`) on a disk that every machine sees"
                )
