"""The UDP port of each data path of this process, from its epoll instances.

An engine has one epoll instance, which holds its doorbell and its sockets, each with its number in
order of opening (native/datapath/udp/udp_datapath.cc). `/proc/self/fdinfo` shows these
(proc_pid_fdinfo(5)). Path i of an engine has its i-th socket at the address of the device.
"""

from __future__ import annotations

import os
import re
import socket
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

FDINFO = Path("/proc/self/fdinfo")
HELD = re.compile(r"^tfd:\s*(\d+) events:\s*[0-9a-f]+ data:\s*([0-9a-f]+)", re.MULTILINE)
DOORBELL = 0xFFFFFFFF


def path_ports(address: str, engines: int) -> dict[tuple[int, int], int]:
    """The UDP port of each (engine, path) at a device's address; empty if it cannot be known.

    Engines open their epoll instances in turn, so that their descriptors ascend.
    """
    found: dict[tuple[int, int], int] = {}
    instances = [one for one in map(_held, _descriptors()) if DOORBELL in one]
    if len(instances) != engines:
        return {}
    for engine, held in enumerate(instances):
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for number in sorted(held.keys() - {DOORBELL}):
            where, port = _bound(held[number])
            numbers[where].append(port)
        found |= {(engine, path): port for path, port in enumerate(numbers[address])}
    return found


def _descriptors() -> list[int]:
    try:
        return sorted(map(int, os.listdir(FDINFO)))
    except OSError:
        return []


def _held(descriptor: int) -> dict[int, int]:
    """The descriptors that an epoll instance holds, by their number there; empty if it is none."""
    try:
        text = (FDINFO / str(descriptor)).read_text()
    except OSError:
        return {}
    return {int(number, 16): int(held) for held, number in HELD.findall(text)}


def _bound(descriptor: int) -> tuple[str, int]:
    """The address of a UDP socket of this process, as a device states it, and its port."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return "", 0
    try:
        one = socket.socket(fileno=copy)
    except OSError:  # no socket
        os.close(copy)
        return "", 0
    with one, suppress(OSError):
        if one.type == socket.SOCK_DGRAM:
            address, port, *scope = one.getsockname()
            if len(scope) == 2 and scope[1]:
                address = f"{address.partition('%')[0]}%{socket.if_indextoname(scope[1])}"
            return str(address), int(port)
    return "", 0
