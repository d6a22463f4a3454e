"""What weft will use on this host, and why: the first lines of `weft doctor`."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from transport.ground.units import bit_rate_text
from transport.host import probes
from transport.host.finding import LIMITED, OK, Finding
from transport.host.rdma import Port, pci_distance

FAR = 1_000  # pci_distance between devices of different root complexes


class Nic(Protocol):
    """A network interface, as `native.interfaces()` describes it."""

    @property
    def name(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def why_left_out(self) -> str: ...
    @property
    def pci_path(self) -> str: ...
    @property
    def mtu_bytes(self) -> int: ...
    @property
    def speed_mbps(self) -> int: ...
    @property
    def below(self) -> list[str]: ...
    @property
    def addresses(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Use:
    """What an endpoint of this process has opened."""

    datapath: str  # as in "udp, 2 engines, 32 paths"
    devices: Sequence[tuple[str, str]]  # name and address; joined NICs as in "eth0+eth1"
    policies: Mapping[str, str]  # family -> name
    control_port: str
    port_base: str
    sockets: int  # data sockets at each address: one for each path of each engine
    reverse_path: str = ""  # why the kernel may drop what arrives, with the remedy

    @property
    def over_udp(self) -> bool:
        return self.datapath.startswith("udp")

    @property
    def nics(self) -> list[str]:
        """Names of the interfaces (or, over RDMA, of the ports) of all devices."""
        return [part for name, _ in self.devices for part in name.split("+")]


@dataclass(frozen=True, slots=True)
class Setting:
    """The list of interfaces that is in force."""

    variable: str = ""  # "": none
    text: str = ""

    @property
    def excludes(self) -> bool:
        return self.text.lstrip("=").startswith("^")

    def __str__(self) -> str:
        return f"{self.variable}={self.text}"


def setting_of(environment: Mapping[str, str]) -> Setting:
    for variable in ("WEFT_INTERFACES", "NCCL_SOCKET_IFNAME"):
        if text := environment.get(variable, ""):
            return Setting(variable, text)
    return Setting()


def why_used(nic: Nic, setting: Setting) -> str:
    """Which rule or setting chose an interface."""
    if setting.variable and not setting.excludes:
        return f"named by {setting}"
    if nic.why_left_out:
        return f"{nic.why_left_out}, but no better one is {'left' if setting.variable else 'there'}"
    return "its address is routable"


def why_not_used(nic: Nic, setting: Setting) -> str:
    if nic.why_left_out:
        return nic.why_left_out
    return f"left out by {setting}" if setting.excludes else f"not named by {setting}"


def nic_text(nic: Nic) -> str:
    speed = f", {bit_rate_text(nic.speed_mbps * 1e6 / 8)}" if nic.speed_mbps else ""
    return f"{nic.what}, mtu {nic.mtu_bytes}{speed}"


def mtu_remedy(small: Sequence[Nic]) -> str:
    """How to raise the MTU of interfaces; a VLAN cannot have more than the interface below it."""
    above = [(nic.below if nic.what.startswith("VLAN") else [], nic.name) for nic in small]
    names = [name for below, own in above for name in (*below, own)]
    commands = [f"ip link set {name} mtu 9000" for name in dict.fromkeys(names)]
    return f"if the network carries 9,000-byte frames: {'; '.join(commands)}"


def takes_long_frames(nic: Nic) -> bool:
    """Whether frames of 9,000 bytes are worth a try: not where they stay on this host, or IPoIB."""
    kinds = ("NIC", "virtual function", "bond", "team", "VLAN")
    return nic.what.startswith(kinds) and not nic.name.startswith("ib")


def devices_finding(use: Use, nics: Sequence[Nic], setting: Setting) -> Finding:
    by_name = {nic.name: nic for nic in nics}
    lines: list[str] = []
    small: list[Nic] = []
    for name, address in use.devices:
        parts = [by_name[part] for part in name.split("+") if part in by_name]
        about = "; ".join(nic_text(nic) for nic in parts)
        why = f" ({why_used(parts[0], setting)})" if parts else ""
        lines.append(f"{name} {address}" + (f": {about}{why}" if about and use.over_udp else ""))
        small += [nic for nic in parts if nic.mtu_bytes < 9_000 and takes_long_frames(nic)]
    if use.devices and not any(map(is_reachable, (address for _, address in use.devices))):
        return Finding(
            "devices",
            LIMITED,
            "; ".join(lines),
            "other hosts cannot reach these addresses: give a NIC an address that is routed",
        )
    if use.over_udp and use.reverse_path:
        return Finding("devices", LIMITED, "; ".join(lines), use.reverse_path)
    if small and use.over_udp:
        return Finding("devices", LIMITED, "; ".join(lines), mtu_remedy(small))
    return Finding("devices", OK, "; ".join(lines))


def is_reachable(address: str) -> bool:
    """Whether other hosts may reach an address: it is no loopback, and more than link-local."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True  # of an RDMA device
    return not (found.is_loopback or found.is_link_local)


def is_loopback(address: str) -> bool:
    """Whether an address is one of loopback; an RDMA device's is not."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def port_left_out(port: Port) -> str:
    """Why an RDMA port is not used."""
    if not port.active:
        return "not active"
    if port.link_layer not in ("Ethernet", "InfiniBand"):
        return "neither RoCE nor InfiniBand"
    return "not named, or not usable"


def left_out_finding(
    use: Use, nics: Sequence[Nic], ports: Sequence[Port], setting: Setting
) -> Finding:
    """The interfaces, or over RDMA the ports, that are not used, with the reason for each."""
    used = set(use.nics)
    if use.over_udp:
        reasons = [(nic.name, why_not_used(nic, setting)) for nic in nics if nic.name not in used]
    else:
        reasons = [(p.name, port_left_out(p)) for p in ports if not {p.device, p.name} & used]
    return Finding("left out", OK, ", ".join(f"{n} ({why})" for n, why in reasons) or "nothing")


def ports_finding(use: Use) -> Finding:
    control = use.control_port if use.control_port != "0" else "any free port"
    data = use.port_base if use.port_base != "0" else "any free ports"
    if data.isdigit():
        data = f"{data}-{int(data) + use.sockets - 1}"
    if use.over_udp:
        text = f"control (TCP): {control}; data (UDP): {data}"
        taken = ports_taken(use, data)
        if taken:
            remedy = "end the program that has them (ss -tulpn), or give a larger range"
            return Finding("ports", LIMITED, f"{text}; {taken}", remedy)
        return Finding("ports", OK, text)
    return Finding("ports", OK, f"control (TCP): {control}; data: UDP port 4791 if it is RoCE v2")


def ports_taken(use: Use, data: str) -> str:
    """Which of the ports that are set cannot be bound now, in words; "": none that is needed.

    data: the range of the data ports.
    """
    address = use.devices[0][1] if use.devices else ""
    needs = (
        ("control", use.control_port, socket.SOCK_STREAM, 1),
        ("data", data, socket.SOCK_DGRAM, use.sockets),
    )
    said = []
    for what, text, kind, wanted in needs:
        first, _, last = text.partition("-")
        if not address or not first.isdigit() or first == "0":
            continue
        free = probes.free_ports(address, kind, range(int(first), int(last or first) + 1), wanted)
        if free < wanted:
            said.append(f"of the {what} ports {free} of {wanted} that a process needs can be bound")
    return "; ".join(said)


def places(nic: Nic, nics: Sequence[Nic], depth: int = 4) -> list[str]:
    """PCI paths of the NICs that an interface is, joins or lies on."""
    if nic.pci_path:
        return [nic.pci_path]
    below = [other for other in nics if other.name in nic.below] if depth else []
    return [path for other in below for path in places(other, nics, depth - 1)]


def near(gpus: Mapping[str, str], nics: Sequence[Nic]) -> dict[str, list[str]]:
    """PCI address of each GPU -> the usable interfaces nearest to it; [] if none shares its root.

    `gpus`: PCI address -> real sysfs path.
    """
    usable = {
        nic.name: found for nic in nics if not nic.why_left_out and (found := places(nic, nics))
    }
    result: dict[str, list[str]] = {}
    for gpu, path in gpus.items():
        hops = {n: min(pci_distance(path, place) for place in found) for n, found in usable.items()}
        least = min(hops.values(), default=FAR)
        result[gpu] = [name for name, each in hops.items() if each == least < FAR]
    return result


def near_finding(use: Use, nics: Sequence[Nic], gpus: Mapping[str, str]) -> Finding | None:
    """Which NIC is near which GPU; None over RDMA, without a GPU, or without a choice of NICs."""
    found = near(gpus, nics)
    usable = [nic for nic in nics if not nic.why_left_out and places(nic, nics)]
    if not use.over_udp or not any(found.values()) or len(usable) < 2:
        return None
    text = "; ".join(f"{gpu}: {', '.join(names) or 'none'}" for gpu, names in found.items())
    wanted = sorted({name for names in found.values() for name in names})
    if all(name in use.nics for name in wanted):
        return Finding("NICs near GPUs", OK, text)
    remedy = f"to use the NICs near the GPUs: WEFT_INTERFACES={','.join(wanted)}"
    return Finding("NICs near GPUs", LIMITED, text, remedy)


def findings(
    use: Use,
    nics: Sequence[Nic],
    environment: Mapping[str, str],
    gpus: Mapping[str, str],
    ports: Sequence[Port] = (),
) -> list[Finding]:
    """The first lines of the report: what a process with this environment will use.

    `ports`: the RDMA ports of this host.
    """
    setting = setting_of(environment)
    found = [
        Finding("uses", OK, use.datapath),
        devices_finding(use, nics, setting),
        left_out_finding(use, nics, ports, setting),
        ports_finding(use),
        Finding("uses policies", OK, ", ".join(f"{f} {name}" for f, name in use.policies.items())),
    ]
    nearness = near_finding(use, nics, gpus)
    return found if nearness is None else [*found, nearness]
