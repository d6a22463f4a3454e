"""The ports that the ends of a test take, and in words those that a firewall must let pass."""

from __future__ import annotations

from transport.endpoint import knobs
from transport.host.probes import read_text
from transport.host.two_hosts.facts import Hello
from transport.host.two_hosts.view import OTHER, THIS

DOCTOR_PORT = 7_117
FREE_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"  # of IPv6, too


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


def free_ports() -> str:
    """The range of which the kernel takes a port for whoever names none; "" if it is unknown."""
    words = read_text(FREE_PORTS).split()
    return "-".join(words) if len(words) == 2 and all(map(str.isdigit, words)) else ""


def control_ports(hello: Hello) -> str:
    """The TCP ports of an end's listeners, in words."""
    if "-" in hello.control_port:
        return f"TCP ports {hello.control_port} (WEFT_CONTROL_PORT)"
    return _any_free("TCP", hello, "WEFT_CONTROL_PORT")


def data_ports(hello: Hello) -> str:
    """The UDP ports of an end's data paths, in words."""
    if not hello.is_udp:
        return "UDP port 4791 (RoCE)"
    if "-" in hello.port_base:
        return f"UDP ports {hello.port_base} (WEFT_PORT_BASE)"
    if hello.port_base != "0":
        first = int(hello.port_base)
        return f"UDP ports {first}-{first + hello.sockets - 1} (WEFT_PORT_BASE={first})"
    return _any_free("UDP", hello, "WEFT_PORT_BASE")


def of_both(near: str, far: str) -> str:
    """The ports of both hosts, in words."""
    return near if near == far else f"{near} of {THIS} and {far} of {OTHER}"


def _any_free(protocol: str, hello: Hello, knob: str) -> str:
    free = f"all {protocol} ports"
    if hello.free_ports:
        free = f"{protocol} ports {hello.free_ports} (net.ipv4.ip_local_port_range)"
    return f"{free}, or a range that {knob} gives on both hosts,"
