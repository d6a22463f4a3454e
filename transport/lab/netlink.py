"""Configures network devices through netlink: veth, addresses, routes, queues, filters.

Every function works in the network namespace of its thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import AF_INET
from typing import Any

from transport.ground.extras import install
from transport.ground.units import bit_rate_text
from transport.lab.model import ETHERNET_HEADER_BYTES, LabError, LabModelError, Link
from transport.lab.plan import Direction, End, Plan, Route

TBF_HANDLE, TBF_CLASS, NETEM_HANDLE = 0x10000, 0x10001, 0x20000
INGRESS, EGRESS = "ffff:fff2", "ffff:fff3"
NEIGHBOUR_PERMANENT = 0x80
LOWER_UP = 0x10000
RATE_MAX = 4_250_000_000  # bytes/s; tbf's rate attribute has 32 bits
# Segmentation offloads to turn off. With them, one packet at a router can hold many datagrams,
# which would be lost or marked together.
SEGMENTATION = (
    *("tx-udp-segmentation", "tx-tcp-segmentation", "tx-tcp-ecn-segmentation"),
    *("tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"),
)
CHECKSUM = "tx-checksum-ip-generic"

SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    # Hash the address, protocol and ports of the packet. Policy 1 would use the hash that a veth
    # passes on from the sending socket, which may change while the ports stay the same.
    "net/ipv4/fib_multipath_hash_policy": "3",
    "net/ipv4/fib_multipath_hash_fields": "0x37",
    # Send ICMP time exceeded for every expired packet; by default Linux sends a host one a second.
    "net/ipv4/icmp_ratelimit": "0",
}
# Settings that some kernels lack: a fixed hash seed, so that paths are reproducible, and no IPv6.
SYSCTLS_IF_THERE = {
    "net/ipv4/fib_multipath_hash_seed": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}


@dataclass(frozen=True)
class Device:
    """The kernel's counters of a device: packets sent, and packets dropped by its queue."""

    packets: int
    bytes: int
    queue_drops: int
    queued_bytes: int
    carrier: bool


@contextmanager
def speaking() -> Iterator[Any]:
    """A netlink socket in the namespace of this thread."""
    try:
        from pyroute2 import IPRoute
    except ImportError:
        raise LabError(f"weft lab needs pyroute2: {install('lab')}") from None
    with IPRoute() as opened:
        yield opened


@contextmanager
def refusals_at(node: str) -> Iterator[None]:
    """Turns the kernel's errors into a LabError that names the node."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except (NetlinkError, OSError) as error:
        raise LabError(f"{node}: the kernel refused a network change: {error}") from error


def index_of(link: Any, interface: str) -> int:
    found = link.link_lookup(ifname=interface)
    if not found:
        raise LabError(f"the device {interface} is gone: weft lab down, then up again")
    return int(found[0])


def write_sysctls(congestion: bool) -> None:
    root = Path("/proc/sys")
    for name, value in SYSCTLS.items():
        (root / name).write_text(value)
    for name, value in SYSCTLS_IF_THERE.items():
        if (root / name).exists():
            (root / name).write_text(value)
    if congestion:
        control = root / "net/ipv4/tcp_congestion_control"
        try:
            control.write_text("cubic")
        except OSError:
            control.write_text("reno")  # built into every kernel


def add_veth(link: Any, near: End, far: End, far_namespace: int) -> None:
    """Creates a veth pair: one device in this namespace, the other in another namespace."""
    peer = {"ifname": far.interface, "address": far.mac, "net_ns_fd": far_namespace}
    link.link("add", ifname=near.interface, kind="veth", address=near.mac, peer=peer)


def set_up_loopback(link: Any) -> None:
    link.link("set", index=index_of(link, "lo"), state="up")


def set_up_end(link: Any, end: End, far: End, mtu_bytes: int) -> None:
    """Brings a device up with its address, and adds its neighbour's hardware address."""
    index = index_of(link, end.interface)
    link.addr("replace", index=index, address=end.address, prefixlen=end.prefix)
    link.link("set", index=index, mtu=mtu_bytes, state="up")
    # A permanent entry, because on a cut link ARP would fail, which the kernel reports to senders.
    link.neigh("replace", dst=far.address, lladdr=far.mac, ifindex=index, state=NEIGHBOUR_PERMANENT)


def add_route(link: Any, route: Route) -> None:
    where: dict[str, Any] = {"gateway": route.gateways[0]}
    if len(route.gateways) > 1:
        where = {"multipath": [{"gateway": one, "hops": 0} for one in route.gateways]}
    link.route("replace", dst=route.network, **where)


def add_black_hole(link: Any) -> None:
    """Adds a default blackhole route: packets without another route are dropped silently."""
    link.route("replace", dst="0.0.0.0/0", type="blackhole", family=AF_INET)


def bring_down(link: Any, interface: str) -> None:
    link.link("set", index=index_of(link, interface), state="down")


def check_rate(name: str, spec: Link) -> None:
    """Raises LabError if a link is faster than tbf supports."""
    if spec.rate_bytes_per_s > RATE_MAX:
        raise LabModelError(
            f"{name}: the rate of a link is limited to {bit_rate_text(RATE_MAX)}: give a lower rate"
        )


def shape(link: Any, interface: str, spec: Link, command: str) -> None:
    """Adds a token bucket to a device (`add`), or changes its parameters (`change`)."""
    index = index_of(link, interface)
    frame_bytes = spec.mtu_bytes + ETHERNET_HEADER_BYTES
    link.tc(
        command,
        "tbf",
        index,
        TBF_HANDLE,
        rate=spec.rate_bytes_per_s,
        burst=spec.burst_bytes,
        limit=spec.queue_bytes,
    )
    if spec.delay_ns:
        in_flight = spec.rate_bytes_per_s * spec.delay_ns // 10**9
        link.tc(
            "replace",
            "netem",
            index,
            NETEM_HANDLE,
            parent=TBF_CLASS,
            delay=max(spec.delay_ns // 1000, 1),
            limit=(spec.queue_bytes + in_flight) // frame_bytes + 1,
        )


def add_hook(link: Any, interface: str) -> None:
    link.tc("add", "clsact", index_of(link, interface))


def attach(link: Any, interface: str, program: int, hook: str) -> None:
    link.tc(
        "add-filter",
        "bpf",
        index_of(link, interface),
        ":1",
        fd=program,
        name="weft",
        parent=hook,
        classid=1,
        direct_action=True,
    )


def turn_off(interface: str, features: tuple[str, ...]) -> None:
    """Turns off offloads of a device, as `ethtool -K` does."""
    from pyroute2.ethtool.ioctl import IoctlEthtool

    device = IoctlEthtool(interface)
    try:
        have = device.get_features()
        for name in features:
            if name in have:
                have[name] = False
        device.set_features(have)
    finally:
        device.close()


def devices(link: Any) -> dict[str, Device]:
    """The counters of each device in this namespace."""
    drops: dict[int, tuple[int, int]] = {}
    for qdisc in link.get_qdiscs():
        if qdisc.get_attr("TCA_KIND") == "tbf":
            stats = qdisc.get_attr("TCA_STATS")
            drops[qdisc["index"]] = (stats["drop"], stats["backlog"])
    found = {}
    for one in link.get_links():
        stats = one.get_attr("IFLA_STATS64")
        dropped, queued = drops.get(one["index"], (0, 0))
        found[one.get_attr("IFLA_IFNAME")] = Device(
            packets=stats["tx_packets"],
            bytes=stats["tx_bytes"],
            queue_drops=dropped,
            queued_bytes=queued,
            carrier=bool(one["flags"] & LOWER_UP),
        )
    return found


def build_node(
    link: Any, plan: Plan, node: str, programs: dict[int, int], links: Callable[[str], Link]
) -> None:
    """Configures a node whose devices exist; `programs`: index of a link's direction -> descriptor
    of the BPF program that impairs it."""
    is_host = node.startswith("host")
    set_up_loopback(link)
    write_sysctls(congestion=is_host)
    for wire in plan.wires_of(node):
        near, far, spec = wire.end_at(node), wire.other_end(node), links(wire.name)
        set_up_end(link, near, far, spec.mtu_bytes)
        shape(link, near.interface, spec, "add")
        if is_host and not plan.model.segmentation_offload:
            turn_off(near.interface, SEGMENTATION)
        if not is_host:
            add_hook(link, near.interface)
        for direction in plan.directions_of(wire):
            hook = hook_of(direction, node)
            if hook:
                attach(link, near.interface, programs[direction.index], hook)
    for route in plan.routes_of(node):
        add_route(link, route)
    if not is_host:
        add_black_hole(link)


def hook_of(direction: Direction, node: str) -> str:
    """The tc hook at a node for the BPF program of a link's direction; "": it is at the other end.

    A router's program is attached at its egress, before the queue. A host's packets are split into
    datagrams only when they leave it, so their program is attached where they arrive.
    """
    if direction.from_host:
        return INGRESS if direction.target.node == node else ""
    return EGRESS if direction.source.node == node else ""


def close_all(descriptors: list[int]) -> None:
    for one in descriptors:
        os.close(one)
