"""Lists the RDMA devices, ports and GIDs of this host, and their distance to its GPUs.

It reads sysfs, and pyverbs if that is installed. It is for reports only: engines choose their
devices themselves, in native code.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace
from pathlib import Path

from transport.errors import InvalidArgumentError
from transport.host.probes import number, read_text

DEVICES = Path("/sys/class/infiniband")
NET = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table; `address` is IPv4 if the GID is IPv4-mapped."""

    index: int
    address: str
    kind: str  # type in sysfs: "RoCE v2" or "IB/RoCE v1"
    interface: str  # empty on InfiniBand


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an RDMA device."""

    device: str
    number: int
    active: bool
    link_layer: str
    rate_gbit_per_s: float
    gids: tuple[Gid, ...]
    firmware: str = ""
    vendor: str = ""
    numa_node: int = -1  # -1: unknown
    pci_path: str = ""  # real sysfs path; empty for a virtual device
    limits: dict[str, int] = field(default_factory=dict)  # such as "queue_pairs" -> largest number

    @property
    def name(self) -> str:
        """The port as "device:port", like in WEFT_RDMA_DEVICES."""
        return f"{self.device}:{self.number}"


def _address(text: str) -> str:
    raw = bytes.fromhex(text.replace(":", ""))
    if raw[:12] == bytes(10) + b"\xff\xff":
        return socket.inet_ntoa(raw[12:])
    return socket.inet_ntop(socket.AF_INET6, raw)


def _gids(port: Path) -> tuple[Gid, ...]:
    found = []
    for entry in sorted(port.glob("gids/*"), key=lambda path: number(path.name)):
        text = read_text(entry)
        if len(text) != 39 or set(text) <= set("0:"):
            continue  # the entry of the GID table is empty
        kind = read_text(port / "gid_attrs/types" / entry.name)
        interface = read_text(port / "gid_attrs/ndevs" / entry.name)
        found.append(Gid(number(entry.name), _address(text), kind, interface))
    return tuple(found)


def _port(device: Path, path: Path) -> Port:
    rate, _, _ = read_text(path / "rate").partition(" ")
    try:
        pci_path = str((device / "device").resolve(strict=True))
    except OSError:
        pci_path = ""
    node = read_text(device / "device/numa_node")
    return Port(
        device=device.name,
        number=number(path.name),
        active="ACTIVE" in read_text(path / "state"),
        link_layer=read_text(path / "link_layer"),
        rate_gbit_per_s=float(rate) if rate.replace(".", "", 1).isdigit() else 0.0,
        gids=_gids(path),
        firmware=read_text(device / "fw_ver"),
        vendor=read_text(device / "hca_type") or read_text(device / "node_desc"),
        numa_node=int(node) if node.lstrip("-").isdigit() else -1,
        pci_path=pci_path,
    )


def _with_pyverbs(port: Port) -> Port:
    """Adds firmware version and limits from the device; unchanged without pyverbs."""
    try:
        from pyverbs.device import Context
    except ImportError:
        return port
    try:
        with Context(name=port.device) as context:
            told = context.query_device()
            limits = {"queue_pairs": told.max_qp, "work_requests": told.max_qp_wr}
            limits |= {"shared_receives": told.max_srq_wr, "completions": told.max_cqe}
            return replace(port, firmware=told.fw_ver or port.firmware, limits=limits)
    except Exception:  # pyverbs has its own exceptions; the port keeps the values from sysfs
        return port


def ports() -> list[Port]:
    """Every port of every RDMA device, sorted by name."""
    if not DEVICES.is_dir():
        return []
    found = [
        _port(device, path)
        for device in sorted(DEVICES.iterdir())
        for path in sorted((device / "ports").iterdir(), key=lambda path: number(path.name))
    ]
    return [_with_pyverbs(port) for port in found]


def pci_distance(one: str, other: str) -> int:
    """Hops between two PCI devices in the sysfs tree, given their real paths; 0: the same device.

    1,000 if they are below different root complexes, or if one is not a PCI device.
    """
    parts = [Path(path).parts for path in (one, other)]
    roots = [next((p for p in path if p.startswith("pci")), "") for path in parts]
    if not roots[0] or roots[0] != roots[1]:
        return 1_000
    shared = sum(1 for _ in _common_prefix(*parts))
    return len(parts[0]) + len(parts[1]) - 2 * shared


def _common_prefix(one: tuple[str, ...], other: tuple[str, ...]) -> list[str]:
    shared = []
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        shared.append(a)
    return shared


def gpu_paths() -> dict[str, str]:
    """PCI address of each NVIDIA GPU -> its real sysfs path."""
    found = {}
    for device in sorted(Path("/sys/bus/pci/drivers/nvidia").glob("*:*:*.*")):
        found[device.name] = str(device.resolve())
    return found


def parse_map(text: str) -> dict[str, str]:
    """Parses "0000:17:00.0=mlx5_0,..." to GPU -> RDMA device; InvalidArgumentError if malformed."""
    chosen = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        gpu, equals, device = part.partition("=")
        if not equals or not gpu or not device:
            text = f"{part!r} is not of the form GPU=device, as in 0000:17:00.0=mlx5_0"
            raise InvalidArgumentError(text)
        chosen[gpu] = device
    return chosen


def pairing(gpus: dict[str, str], found: list[Port], manual: str = "") -> dict[str, str]:
    """GPU -> the nearest active RDMA device by PCI distance, unless the text `manual` names one.

    At equal distance the device with the fewest GPUs is chosen.
    """
    devices = {port.device: port.pci_path for port in found if port.active}
    chosen = parse_map(manual)
    unknown = [device for device in chosen.values() if device not in devices]
    if unknown:
        there = ", ".join(devices) or "none"
        text = f"RDMA device {unknown[0]!r} does not exist or is not active; active: {there}"
        raise InvalidArgumentError(text)
    used = dict.fromkeys(devices, 0)
    for gpu, path in gpus.items():
        if gpu not in chosen and devices:
            nearest = min(devices, key=lambda d: (pci_distance(path, devices[d]), used[d], d))
            chosen[gpu] = nearest
        if gpu in chosen:
            used[chosen[gpu]] += 1
    return chosen
