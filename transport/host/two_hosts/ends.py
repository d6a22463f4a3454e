"""One end of a test: its endpoint, its listeners, and what it tells the other end of itself."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import transport
from transport import Device, Endpoint, Listener, native
from transport.endpoint import knobs
from transport.host import rdma
from transport.host.probes import BESIDE_A_JOB
from transport.host.two_hosts.datagrams import ProbePort
from transport.host.two_hosts.facts import (
    CHARACTERS_MAX,
    DEVICES_MAX,
    TOKEN_BYTES,
    DeviceFact,
    Hello,
    NicFact,
)
from transport.host.two_hosts.ports import free_ports, port_range
from transport.host.uses import Nic, setting_of

BACK_S = 4.0  # some tries of TCP
# Settings of both ends. A test of this host with itself is of the network, too.
OVER_THE_NETWORK = {**BESIDE_A_JOB, "local": "off"}


def back_socket(stack: ExitStack, address: str) -> int:
    """Opens a TCP port that the other end should reach as a listener of a job; 0 if none is free.

    The kernel completes the connection, which carries nothing.
    """
    for port in reversed(port_range("control_port") or range(1)):
        with suppress(OSError):
            # Of a link-local address, this has the number of the interface.
            family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            opened = socket.create_server(place, family=family)
            return int(stack.enter_context(opened).getsockname()[1])
    return 0


def why_unreached(address: str, port: int) -> str:
    """Why this end cannot reach a TCP port of the other end; empty if it can."""
    try:
        socket.create_connection((address, port), timeout=BACK_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@dataclass(frozen=True, slots=True)
class End:
    """The ports of this end that answer probes, by device (None: it has none), and its hello."""

    ports: tuple[ProbePort | None, ...]
    also: tuple[tuple[ProbePort | None, ...], ...]
    hello: Hello

    def ports_of(self, device: int) -> list[ProbePort | None]:
        """The ports for probes of a device, one for each of its NICs."""
        return [self.ports[device], *self.also[device]]


def engines_and_paths(endpoint: Endpoint) -> tuple[int, int]:
    """The number of engines, and of paths of each."""
    datapath = endpoint.summary().partition(", devices ")[0]
    engines, paths = re.findall(r"(\d+) (?:engines?|paths?)", datapath)
    return int(engines), int(paths)


def down_nics(endpoint: Endpoint, family: str) -> list[str]:
    """NICs with an address that weft leaves out as they are down, unless a setting names NICs."""
    if setting_of(os.environ).variable or not endpoint.summary().startswith("udp"):
        return []
    nics: Sequence[Nic] = native.interfaces(family)
    down = (one for one in nics if one.why_left_out == "down" and one.addresses)
    return [one.name for one in down if one.what != "bridge"]


def _mtu_bytes(device: Device, mtus: Mapping[str, int]) -> int:
    """The MTU of a device's first NIC now; that of the whole device if it is no interface."""
    return mtus.get(device.name.split("+")[0], device.mtu_bytes)


def _interface_of(name: str) -> str:
    """The interface of an RDMA port, as in mlx5_0 or mlx5_0:2; "" if it is none, or has none."""
    gids = (gid for one in rdma.ports() if one.name in (name, f"{name}:1") for gid in one.gids)
    return next((gid.interface for gid in gids if gid.interface), "")


def _further(
    stack: ExitStack, device: Device, family: str, token: bytes
) -> dict[NicFact, ProbePort | None]:
    """The NICs of a joined device after the first, each with a port for probes."""
    found: dict[NicFact, ProbePort | None] = {}
    nics = {one.name: one for one in native.interfaces(family)}
    for name in device.name.split("+")[1:]:
        nic = nics.get(name) or nics.get(_interface_of(name))
        if nic is None:
            return {}
        alike = [one for one in nic.addresses if (":" in one) == (":" in device.address)]
        if not alike:
            return {}
        with suppress(OSError):
            port = stack.enter_context(ProbePort(alike[0], port_range("port_base"), token))
            found[NicFact(name, alike[0], nic.mtu_bytes, port.port)] = port
            continue
        found[NicFact(name, alike[0], nic.mtu_bytes, 0)] = None
    return found


def open_end(stack: ExitStack, endpoint: Endpoint, listeners: Sequence[Listener]) -> End:
    """Opens a probe port for each device; `stack` closes them. listeners: none if it dials."""
    engines, paths = engines_and_paths(endpoint)
    token, settings = secrets.token_bytes(TOKEN_BYTES), knobs.in_force()
    ports: list[ProbePort | None] = []
    devices = endpoint.devices[:DEVICES_MAX]
    for device in devices:
        ports.append(None)
        with suppress(OSError):
            port = ProbePort(device.address, port_range("port_base"), token)
            ports[-1] = stack.enter_context(port)
    nics = native.interfaces(settings["family"])
    kinds = {one.name: one.what for one in nics}
    mtus = {one.name: one.mtu_bytes for one in nics}
    also = [_further(stack, device, settings["family"], token) for device in devices]
    facts = tuple(
        DeviceFact(
            name=device.name,
            address=device.address,
            mtu_bytes=_mtu_bytes(device, mtus),  # it may have changed since the endpoint was opened
            speed_mbps=device.speed_mbps,
            kind="+".join(sorted({kinds.get(one, "") for one in device.name.split("+")})),
            handle=listeners[number].handle.hex() if listeners else "",
            udp_port=port.port if port is not None else 0,
            also=tuple(also[number]),
        )
        for number, (device, port) in enumerate(zip(devices, ports, strict=True))
    )
    return End(
        ports=tuple(ports),
        also=tuple(tuple(further.values()) for further in also),
        hello=Hello(
            version=transport.__version__,
            host=socket.gethostname()[:64],
            has_secret=bool(settings["secret_file"]),
            datapath=endpoint.summary().partition(",")[0],
            token=token.hex(),
            back_port=0,
            back="",
            control_port=settings["control_port"],
            port_base=settings["port_base"],
            free_ports=free_ports(),
            sockets=engines * paths,
            paths=paths,
            down=", ".join(down_nics(endpoint, settings["family"]))[:CHARACTERS_MAX],
            devices=facts,
        ),
    )


def open_listeners(stack: ExitStack, endpoint: Endpoint) -> list[Listener]:
    """A listener for each device, for dials by handle as a job makes them."""
    devices = range(len(endpoint.devices[:DEVICES_MAX]))
    return [stack.enter_context(endpoint.listen(device=one)) for one in devices]
