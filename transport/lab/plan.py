"""Computes the names, addresses and routes of a lab from its model and name.

The same model and name always give the same plan.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address

from transport.ground.text import nearest
from transport.lab.model import LabError, LabModel, LabModelError

# Networks: 10.<leaf>.<host at the leaf> on hosts' links, 10.<128 + spine>.<leaf> on uplinks.
LEAVES_MAX = 64
SPINES_MAX = 64
HOSTS_PER_LEAF_MAX = 200
NODES_MAX = 256
HOST_INTERFACE = "eth0"


@dataclass(frozen=True)
class End:
    """One end of a link: a device of a node."""

    node: str
    interface: str
    address: str
    prefix: int
    mac: str


@dataclass(frozen=True)
class Wire:
    """A link and its two ends; the end in the lower tier comes first."""

    name: str
    ends: tuple[End, End]

    def end_at(self, node: str) -> End:
        return self.ends[0] if self.ends[0].node == node else self.ends[1]

    def other_end(self, node: str) -> End:
        return self.ends[1] if self.ends[0].node == node else self.ends[0]


@dataclass(frozen=True)
class Direction:
    """One direction of a link: from a device, through its queue, to the other end."""

    index: int
    wire: Wire
    source: End
    target: End

    @property
    def name(self) -> str:
        return f"{self.source.node}>{self.target.node}"

    @property
    def from_host(self) -> bool:
        return self.source.node.startswith("host")


@dataclass(frozen=True)
class Route:
    """A route of a node; with several gateways, flows are spread over them."""

    node: str
    network: str  # destination: "default", or address/prefix
    gateways: tuple[str, ...]


class Plan:
    """The nodes, wires, addresses and routes from which a lab is built."""

    def __init__(self, model: LabModel, name: str) -> None:
        for what, count, most in (
            ("leaves", model.leaves, LEAVES_MAX),
            ("spines", model.spines, SPINES_MAX),
            ("hosts_per_leaf", min(model.hosts_per_leaf, model.hosts), HOSTS_PER_LEAF_MAX),
            ("nodes", model.hosts + model.leaves + model.spines, NODES_MAX),
        ):
            if count > most:
                raise LabError(f"{count} {what} are too many for a lab: give at most {most}")
        self.model = model
        self.name = name
        self.nodes = model.nodes()
        self.wires = [self._wire(link) for link in model.link_names()]
        self.directions = [
            Direction(2 * i + j, wire, wire.ends[j], wire.ends[1 - j])
            for i, wire in enumerate(self.wires)
            for j in range(2)
        ]

    def namespace(self, node: str) -> str:
        """The name of a node's network namespace."""
        return f"weft-{self.name}-{node}"

    def node(self, name: str) -> str:
        if name not in self.nodes:
            raise LabModelError(f"{name}: no such node in {self.name}{nearest(name, self.nodes)}")
        return name

    def wire(self, name: str) -> Wire:
        for wire in self.wires:
            if wire.name == name:
                return wire
        known = [wire.name for wire in self.wires]
        raise LabModelError(f"{name}: no such link in {self.name}{nearest(name, known)}")

    def wires_of(self, node: str) -> list[Wire]:
        return [wire for wire in self.wires if node in (end.node for end in wire.ends)]

    def directions_of(self, wire: Wire) -> list[Direction]:
        return [one for one in self.directions if one.wire is wire]

    def address(self, host: str) -> str:
        """The address of a host."""
        return next(e.address for w in self.wires_of(host) for e in w.ends if e.node == host)

    def routes_of(self, node: str) -> list[Route]:
        """The routes of a node, except those that its own addresses imply."""
        model, number = self.model, int(re.sub(r"\D", "", node))
        if node.startswith("host"):
            return [Route(node, "default", (self.wires_of(node)[0].other_end(node).address,))]
        if node.startswith("spine"):
            return [
                Route(node, f"10.{leaf}.0.0/16", (f"10.{128 + number}.{leaf}.1",))
                for leaf in range(model.leaves)
            ]
        gateways = tuple(f"10.{128 + spine}.{number}.2" for spine in range(model.spines))
        others = [leaf for leaf in range(model.leaves) if leaf != number]
        return [Route(node, f"10.{leaf}.0.0/16", gateways) for leaf in others]

    def _wire(self, name: str) -> Wire:
        low, high = name.split("-")
        low_number, high_number = (int(re.sub(r"\D", "", node)) for node in (low, high))
        if low.startswith("host"):
            network = f"10.{high_number}.{low_number % self.model.hosts_per_leaf}"
            addresses, interfaces = (f"{network}.2", f"{network}.1"), (HOST_INTERFACE, low)
        else:
            network = f"10.{128 + high_number}.{low_number}"
            addresses, interfaces = (f"{network}.1", f"{network}.2"), (high, low)
        ends = [
            End(node, interface, address, 24, mac_of(address))
            for node, interface, address in zip((low, high), interfaces, addresses, strict=True)
        ]
        return Wire(name, (ends[0], ends[1]))


def mac_of(address: str) -> str:
    """A locally administered hardware address derived from an IP address."""
    return ":".join(f"{byte:02x}" for byte in b"\x02\x00" + IPv4Address(address).packed)
