"""What weft will use on this host, and why: the first lines of `weft doctor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from transport.ground.units import bit_rate_text
from transport.host.finding import LIMITED, OK, Finding
from transport.host.rdma import pci_distance

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
    def addresses(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Use:
    """What an endpoint of this process has opened."""

    datapath: str  # as in "udp, 2 engines, 32 paths"
    devices: Mapping[str, str]  # name -> address; joined NICs as in "eth0+eth1"
    policies: Mapping[str, str]  # family -> name
    control_port: str
    port_base: str

    @property
    def over_udp(self) -> bool:
        return self.datapath.startswith("udp")

    @property
    def nics(self) -> list[str]:
        """Names of the interfaces (or, over RDMA, of the ports) of all devices."""
        return [part for name in self.devices for part in name.split("+")]


def why_used(nic: Nic, environment: Mapping[str, str]) -> str:
    """Which rule or setting chose an interface."""
    ours = environment.get("WEFT_INTERFACES", "")
    nccl = environment.get("NCCL_SOCKET_IFNAME", "")
    if ours and not ours.lstrip("=").startswith("^"):
        return f"named by WEFT_INTERFACES={ours}"
    if not ours and nccl and not nccl.lstrip("=").startswith("^"):
        return f"named by NCCL_SOCKET_IFNAME={nccl}"
    if nic.why_left_out:
        return f"{nic.why_left_out}, but no better one is there"
    return "its address is routable"


def nic_text(nic: Nic) -> str:
    speed = f", {bit_rate_text(nic.speed_mbps * 1e6 / 8)}" if nic.speed_mbps else ""
    return f"{nic.what}, mtu {nic.mtu_bytes}{speed}"


def devices_finding(use: Use, nics: Sequence[Nic], environment: Mapping[str, str]) -> Finding:
    by_name = {nic.name: nic for nic in nics}
    lines, small = [], []
    for name, address in use.devices.items():
        parts = [by_name[part] for part in name.split("+") if part in by_name]
        about = "; ".join(nic_text(nic) for nic in parts)
        why = f" ({why_used(parts[0], environment)})" if parts and use.over_udp else ""
        lines.append(f"{name} {address}" + (f": {about}{why}" if about else ""))
        small += [nic.name for nic in parts if nic.mtu_bytes < 9_000 and nic.what != "loopback"]
    if small and use.over_udp:
        remedy = f"if the network carries 9,000-byte frames: ip link set {small[0]} mtu 9000"
        return Finding("devices", LIMITED, "; ".join(lines), remedy)
    return Finding("devices", OK, "; ".join(lines))


def left_out_finding(use: Use, nics: Sequence[Nic], environment: Mapping[str, str]) -> Finding:
    """The interfaces that are not used, with the reason for each."""
    used = set(use.nics)
    setting = next((n for n in ("WEFT_INTERFACES", "NCCL_SOCKET_IFNAME") if environment.get(n)), "")
    otherwise = f"not named by {setting}" if setting else "not needed"
    reasons = [
        f"{nic.name} ({nic.why_left_out or otherwise})" for nic in nics if nic.name not in used
    ]
    return Finding("left out", OK, ", ".join(reasons) or "no interface")


def near(gpus: Mapping[str, str], nics: Sequence[Nic]) -> dict[str, list[str]]:
    """PCI address of each GPU -> the interfaces nearest to it; [] if none shares its root complex.

    `gpus`: PCI address -> real sysfs path.
    """
    found: dict[str, list[str]] = {}
    usable = [nic for nic in nics if nic.pci_path and nic.addresses]
    for gpu, path in gpus.items():
        hops = {nic.name: pci_distance(path, nic.pci_path) for nic in usable}
        least = min(hops.values(), default=FAR)
        found[gpu] = [name for name, each in hops.items() if each == least < FAR]
    return found


def near_finding(use: Use, nics: Sequence[Nic], gpus: Mapping[str, str]) -> Finding | None:
    """Which NIC is near which GPU; None if the host has no GPU, or one NIC at most."""
    places = near(gpus, nics)
    if not any(places.values()) or len({nic.pci_path for nic in nics if nic.pci_path}) < 2:
        return None
    text = "; ".join(f"{gpu}: {', '.join(names) or 'none'}" for gpu, names in places.items())
    wanted = sorted({name for names in places.values() for name in names})
    missing = [name for name in wanted if name not in use.nics]
    if missing and use.over_udp:
        remedy = f"to use the NICs near the GPUs: WEFT_INTERFACES={','.join(wanted)}"
        return Finding("NICs near GPUs", LIMITED, text, remedy)
    return Finding("NICs near GPUs", OK, text)


def findings(
    use: Use, nics: Sequence[Nic], environment: Mapping[str, str], gpus: Mapping[str, str]
) -> list[Finding]:
    """The first lines of the report: what a process with this environment will use."""
    policies = ", ".join(f"{family} {name}" for family, name in use.policies.items())
    control = use.control_port if use.control_port != "0" else "any free port"
    data = use.port_base if use.port_base != "0" else "any free ports"
    found = [
        Finding("uses", OK, use.datapath),
        devices_finding(use, nics, environment),
        left_out_finding(use, nics, environment),
        Finding("ports", OK, f"control (TCP): {control}; data (UDP): {data}"),
        Finding("uses policies", OK, policies),
    ]
    nearness = near_finding(use, nics, gpus)
    return found if nearness is None else [*found, nearness]
