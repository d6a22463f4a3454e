"""One end of a test: its endpoint, its listeners, and what it tells the other end of itself."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import transport
from transport import Endpoint, Listener
from transport.endpoint import knobs
from transport.host.two_hosts.datagrams import ProbePort
from transport.host.two_hosts.facts import DEVICES_MAX, TOKEN_BYTES, DeviceFact, Hello

DOCTOR_PORT = 7_117
BACK_S = 4.0  # some tries of TCP


def usual_ports() -> list[int]:
    """The control ports that a test may take: those of WEFT_CONTROL_PORT, else DOCTOR_PORT."""
    first, _, last = knobs.in_force()["control_port"].partition("-")
    return list(range(int(first), int(last or first) + 1)) if int(first) else [DOCTOR_PORT]


def usual_port() -> int:
    """The control port of a test: the first of WEFT_CONTROL_PORT, else DOCTOR_PORT."""
    return usual_ports()[0]


def port_range(knob: str) -> range:
    """The range that a knob of ports gives; empty if it gives none."""
    first, dash, last = knobs.in_force()[knob].partition("-")
    return range(int(first), int(last) + 1) if dash else range(0)


def control_ports() -> str:
    """The control ports of the listeners of a test, in words, from this end's settings."""
    given = knobs.in_force()["control_port"]
    if given == "0":
        return "all TCP ports, or those of a range that WEFT_CONTROL_PORT gives on both hosts,"
    return f"TCP ports {given} (WEFT_CONTROL_PORT; the other host may have another range)"


def data_ports(summary: str) -> str:
    """The ports of this end's data paths, in words. summary: Endpoint.summary()."""
    if not summary.startswith("udp"):
        return "UDP port 4791 (RoCE)"
    base = knobs.in_force()["port_base"]
    if "-" in base:
        return f"UDP ports {base} (WEFT_PORT_BASE)"
    if base != "0":
        return f"UDP ports from {base} on (WEFT_PORT_BASE)"
    return "all UDP ports, or those of a range that WEFT_PORT_BASE gives,"


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
    hello: Hello


def open_end(stack: ExitStack, endpoint: Endpoint, listeners: Sequence[Listener]) -> End:
    """Opens a probe port for each device; `stack` closes them. listeners: none if it dials."""
    token = secrets.token_bytes(TOKEN_BYTES)
    ports: list[ProbePort | None] = []
    devices = endpoint.devices[:DEVICES_MAX]
    for device in devices:
        ports.append(None)
        with suppress(OSError):
            port = ProbePort(device.address, port_range("port_base"), token)
            ports[-1] = stack.enter_context(port)
    facts = tuple(
        DeviceFact(
            name=device.name,
            address=device.address,
            mtu_bytes=device.mtu_bytes,
            speed_mbps=device.speed_mbps,
            handle=listeners[number].handle.hex() if listeners else "",
            udp_port=port.port if port is not None else 0,
        )
        for number, (device, port) in enumerate(zip(devices, ports, strict=True))
    )
    return End(
        ports=tuple(ports),
        hello=Hello(
            version=transport.__version__,
            host=socket.gethostname()[:64],
            has_secret=bool(knobs.in_force()["secret_file"]),
            datapath=endpoint.summary().partition(",")[0],
            token=token.hex(),
            back_port=0,
            back="",
            data_ports=data_ports(endpoint.summary()),
            devices=facts,
        ),
    )


def open_listeners(stack: ExitStack, endpoint: Endpoint) -> list[Listener]:
    """A listener for each device, for dials by handle as a job makes them."""
    devices = range(len(endpoint.devices[:DEVICES_MAX]))
    return [stack.enter_context(endpoint.listen(device=one)) for one in devices]
