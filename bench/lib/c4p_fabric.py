"""The fabric and the jobs of the experiments of C4P (arXiv 2406.04594), as scenarios.

A node has NICs; NIC r of each node is of rail r. A NIC has two ports of 200 Gb/s, which are bonded
to one address and lead to two leaves, left and right. The bond is a switch of its own: it chooses
the port for what the NIC sends, and spines choose the leaf, and so the port, for what it gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transport.sim.scenario import Scenario, from_tables

SIDES = ("left", "right")
PORT_RATE = "200 Gb/s"
NIC_RATE = "362 Gb/s"  # NVLink's limit of the busbw, per NIC
SEGMENT_BYTES = 8_256
NSCC = "nscc:rtt_ns_min=0,hold_ns=0"
Tables = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """The dimensions of a leaf-spine fabric. lost: pairs of leaf and spine that have no link."""

    nodes: int = 16
    rails: int = 8
    nodes_per_leaf: int = 8
    spines: int = 8
    lost: tuple[tuple[str, str], ...] = ()

    @property
    def groups(self) -> int:
        return -(-self.nodes // self.nodes_per_leaf)

    def leaf(self, group: int, rail: int, side: str) -> str:
        return f"leaf{group}.{rail}.{side}"

    def host(self, node: int, rail: int) -> int:
        return node * self.rails + rail

    def tables(self) -> Tables:
        """[[nodes]] and [[links]] of a scenario."""
        nics = [f"{node}.{rail}" for node in range(self.nodes) for rail in range(self.rails)]
        leaves = [
            (group, rail, side)
            for group in range(self.groups)
            for rail in range(self.rails)
            for side in SIDES
        ]
        nodes = [{"name": f"nic{one}", "kind": "host"} for one in nics]
        nodes += [{"name": f"bond{one}"} for one in nics]
        nodes += [{"name": self.leaf(*one)} for one in leaves]
        nodes += [{"name": f"spine{spine}"} for spine in range(self.spines)]
        links = [_link(f"nic{one}", f"bond{one}", NIC_RATE, 100) for one in nics]
        for node in range(self.nodes):
            for rail in range(self.rails):
                links += [
                    _link(f"bond{node}.{rail}", self.leaf(node // self.nodes_per_leaf, rail, side))
                    for side in SIDES
                ]
        ends = [
            (self.leaf(*one), f"spine{spine}") for one in leaves for spine in range(self.spines)
        ]
        links += [_link(*one) for one in ends if one not in self.lost]
        return {"network": {"topology": "file"}, "nodes": nodes, "links": links}


def _link(one: str, other: str, rate: str = PORT_RATE, delay_ns: int = 500) -> Tables:
    return {"from": one, "to": other, "rate": rate, "delay_ns": delay_ns}


@dataclass(frozen=True)
class Load:
    """The traffic of the jobs. size_bytes: size of an AllReduce's buffer on each rail.

    queue_pairs: connections between two NICs, each with its part of the buffer.
    """

    size_bytes: int
    queue_pairs: int
    repeats: int = 1


def one_ring(shape: Shape, load: Load) -> list[Tables]:
    """One job of all nodes: on each rail a ring of the nodes in order, for each queue pair."""
    made = []
    for rail in range(shape.rails):
        hosts = [shape.host(node, rail) for node in range(shape.nodes)]
        for pair in range(load.queue_pairs):
            size = load.size_bytes // load.queue_pairs
            made.append(_ring(f"job0.{rail}.{pair}", hosts, size, load.repeats, 1))
    return made


def pairs_of_nodes(shape: Shape) -> list[tuple[int, int]]:
    """The nodes of each job of two: at the same place of two neighbouring groups."""
    each = shape.nodes_per_leaf
    return [
        (group * each + place, (group + 1) * each + place)
        for group in range(0, shape.groups - 1, 2)
        for place in range(each)
        if (group + 1) * each + place < shape.nodes
    ]


def jobs_of_two(shape: Shape, load: Load) -> list[Tables]:
    """Jobs of two nodes each, whose traffic must cross the spines."""
    return [
        _ring(
            f"job{job}.{rail}",
            [shape.host(node, rail) for node in nodes],
            load.size_bytes,
            load.repeats,
            load.queue_pairs,
        )
        for job, nodes in enumerate(pairs_of_nodes(shape))
        for rail in range(shape.rails)
    ]


def _ring(name: str, hosts: Sequence[int], size: int, repeats: int, channels: int) -> Tables:
    return {
        "pattern": "all_reduce_ring",
        "name": name,
        "hosts": list(hosts),
        "size_bytes": size,
        "repeats": repeats,
        "channels": channels,
    }


@dataclass(frozen=True)
class Way:
    """A way to choose the paths of connections. paths: how many each pair of NICs has."""

    name: str
    path: str
    paths: int
    queue_pairs: int = 1
    planned: bool = False
    also: Tables = field(default_factory=dict)


def scenario(shape: Shape, work: Sequence[Tables], way: Way, seed: int = 1) -> Scenario:
    return from_tables(
        {
            "name": "c4p",
            "seed": seed,
            "limit_ns": 100_000_000,
            **shape.tables(),
            "hosts": {
                "paths": way.paths,
                "segment_bytes": SEGMENT_BYTES,
                "burst_bytes_max": SEGMENT_BYTES,
            },
            "policies": {"window": NSCC, "path": f"{way.path}:burst_bytes={SEGMENT_BYTES}"},
            "workload": list(work),
            **way.also,
        }
    )
