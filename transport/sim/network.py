"""The simulated network as arrays: ports, groups of hosts, sets of ports, routes, and names.

shapes.py and graph.py build it. Hosts are nodes 0 to hosts - 1; switches follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Same fields as PortPlan in native/sim/fabric/fabric_plan.h; they are copied one by one.
PORT = np.dtype(
    [
        *((("from"), np.uint32), ("to", np.uint32), ("bytes_per_s", np.int64)),
        *(("delay_ns", np.int64), ("queue_bytes_max", np.int64), ("mark_from_bytes", np.int64)),
        *(("mark_full_bytes", np.int64), ("loss", np.float64), ("bit_error_rate", np.float64)),
        *(("reorder", np.float64), ("reorder_ns_max", np.int64), ("burst_bytes", np.int64)),
    ]
)
QUEUE_NS = 10_000  # a queue of the default size drains in this time at its link's rate


def shared_queue_bytes(keys: Mapping[str, Any]) -> int:
    """What one queue may hold of a shared buffer that no other queue uses.

    keys: of [network]. With alpha, that is alpha / (1 + alpha) of the buffer: the queue ends at
    alpha times what it leaves free.
    """
    alpha = keys["buffer_alpha"]
    return int(keys["buffer_bytes"] * alpha / (1 + alpha))


@dataclass(frozen=True, kw_only=True)
class LinkKind:
    """The properties of a link in each direction; a value of None is derived from the rate."""

    bytes_per_s: int
    delay_ns: int = 1_000
    queue_bytes: int | None = None
    mark_from_bytes: int | None = None
    mark_full_bytes: int | None = None
    loss: float = 0.0
    bit_error_rate: float = 0.0
    reorder: float = 0.0  # share of packets that arrive late by up to reorder_ns_max
    reorder_ns_max: int = 0
    burst_bytes: int = 0  # size of a token bucket: bytes that an idle link may send at once

    def values(self) -> tuple[int | float, ...]:
        """The values of the fields of PORT that follow `from` and `to`."""
        queue = self.queue_bytes
        if queue is None:
            queue = max(self.bytes_per_s * QUEUE_NS // 10**9, 16_384)
        full = 4 * queue // 5 if self.mark_full_bytes is None else self.mark_full_bytes
        start = min(queue // 5, full) if self.mark_from_bytes is None else self.mark_from_bytes
        if start > full:
            raise ValueError(f"mark_from_bytes {start:,} is more than mark_full_bytes {full:,}")
        return (
            *(self.bytes_per_s, self.delay_ns, queue, start, full),
            *(self.loss, self.bit_error_rate, self.reorder, self.reorder_ns_max),
            self.burst_bytes,
        )


@dataclass(frozen=True, eq=False)
class Network:
    """The arrays for FabricPlan.set_network, and the names of nodes and links for reports."""

    hosts: int
    node_names: list[str]
    node_kinds: list[str]  # kind of each node: "host", "leaf", "spine", "core" or "switch"
    ports: Array  # records of the type PORT, sorted by `from`
    group_of: Array  # group of each host; hosts of a group are linked to the same switches
    route: Array  # route[switch, group]: number of the set of ports to use, or -1: no route
    set_begin: Array
    set_ports: Array
    notes: list[str] = field(default_factory=list)  # properties that are not simulated

    @property
    def switches(self) -> int:
        return len(self.node_names) - self.hosts

    @property
    def groups(self) -> int:
        return int(self.route.shape[1])

    @cached_property
    def first_port(self) -> Array:
        """Offsets into `ports`; the ports of node n are first_port[n] to first_port[n + 1] - 1."""
        counts = np.bincount(self.ports["from"], minlength=len(self.node_names))
        return np.concatenate([[0], np.cumsum(counts)])

    def set_of(self, index: int) -> Array:
        """The ports of the set of ports with this number."""
        return self.set_ports[self.set_begin[index] : self.set_begin[index + 1]]

    def port_name(self, port: int) -> str:
        """The name of a port, such as leaf0>spine2."""
        one = self.ports[port]
        return f"{self.node_names[one['from']]}>{self.node_names[one['to']]}"

    @cached_property
    def tiers(self) -> list[str]:
        """The tier of each port, such as leaf>spine."""
        kinds = self.node_kinds
        pairs = zip(self.ports["from"].tolist(), self.ports["to"].tolist(), strict=True)
        return [f"{kinds[a]}>{kinds[b]}" for a, b in pairs]

    @cached_property
    def tier_ports(self) -> dict[str, Array]:
        """The ports of each tier, in the order in which a packet meets the tiers."""
        names = np.array(self.tiers)
        order = {"host": 0, "leaf": 1, "switch": 2, "spine": 3, "core": 4}

        def place(tier: str) -> tuple[int, ...]:
            one, other = (order[part] for part in tier.split(">"))
            return (0, one) if one <= other else (1, -one)

        return {t: np.flatnonzero(names == t) for t in sorted(set(names.tolist()), key=place)}

    def find_ports(self, pattern: str) -> Array:
        """The ports that a link name matches: a-b both directions, a>b one; * matches any text."""
        if not any(one in pattern for one in "*?["):
            return self._exact(pattern)
        oneway = ">" in pattern
        found = []
        for port in range(len(self.ports)):
            name = self.port_name(port)
            if oneway:
                names = [name]
            else:
                one, other = name.split(">")
                names = [f"{one}-{other}", f"{other}-{one}"]
            if any(fnmatchcase(one, pattern) for one in names):
                found.append(port)
        return np.array(found, np.int64)

    def _exact(self, name: str) -> Array:
        for mark in (">", "-"):
            for at in [at for at, letter in enumerate(name) if letter == mark]:
                one, other = self._numbers.get(name[:at]), self._numbers.get(name[at + 1 :])
                if one is None or other is None:
                    continue
                ends = [(one, other)] if mark == ">" else [(one, other), (other, one)]
                ports = [self._between(*pair) for pair in ends]
                return np.sort(np.concatenate(ports))
        return np.zeros(0, np.int64)

    def _between(self, one: int, other: int) -> Array:
        first, end = self.first_port[one], self.first_port[one + 1]
        return np.asarray(first + np.flatnonzero(self.ports["to"][first:end] == other))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.node_names)}

    def link_examples(self) -> list[str]:
        """The name of one link of each tier, for error messages."""
        return [
            self.port_name(int(ports[0])).replace(">", "-") for ports in self.tier_ports.values()
        ]


class PortList:
    """Collects links of two ports each; `build` sorts the ports and returns their new indices."""

    def __init__(self) -> None:
        self._ends: list[Array] = []
        self._values: list[tuple[tuple[int | float, ...], int]] = []
        self.count = 0

    def add(self, one: Array, other: Array, kind: LinkKind) -> int:
        """Adds links between the nodes of two arrays; returns the number of the first link."""
        first = self.count
        self._ends.append(np.stack([one, other], axis=1).astype(np.int64))
        self._values.append((kind.values(), len(one)))
        self.count += len(one)
        return first

    def build(self, hosts: int) -> tuple[Array, Array, Array]:
        """The ports sorted by `from`, and the indices of each link's two ports."""
        ends = np.concatenate(self._ends) if self._ends else np.zeros((0, 2), np.int64)
        ports = np.zeros(2 * self.count, PORT)
        ports["from"] = np.concatenate([ends[:, 0], ends[:, 1]])
        ports["to"] = np.concatenate([ends[:, 1], ends[:, 0]])
        at = 0
        names = (PORT.names or ())[2:]
        for values, count in self._values:
            for name, value in zip(names, values, strict=True):
                ports[name][at : at + count] = value
                ports[name][self.count + at : self.count + at + count] = value
            at += count
        # Only switches set ECN marks.
        for name in ("mark_from_bytes", "mark_full_bytes"):
            ports[name][ports["from"] < hosts] = 0
        order = np.argsort(ports["from"], kind="stable")
        place = np.empty(2 * self.count, np.int64)
        place[order] = np.arange(2 * self.count)
        return ports[order], place[: self.count], place[self.count :]


class SetList:
    """Collects distinct sets of ports."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._sets: list[Array] = []

    def add(self, ports: Array | Sequence[int]) -> int:
        """Adds a set if it is new; returns its number."""
        made = np.asarray(ports, np.uint32)
        known = self._known.setdefault(made.tobytes(), len(self._sets))
        if known == len(self._sets):
            self._sets.append(made)
        return known

    def append(self, ports: Array) -> None:
        """Adds a set, also if there is an equal one."""
        made = np.asarray(ports, np.uint32)
        self._known.setdefault(made.tobytes(), len(self._sets))
        self._sets.append(made)

    def add_each(self, ports: Array) -> Array:
        """Adds one set per port, which contains only this port; returns the numbers of the sets."""
        first = len(self._sets)
        self._sets.extend(np.asarray(ports, np.uint32).reshape(-1, 1))
        return np.arange(first, len(self._sets))

    def build(self) -> tuple[Array, Array]:
        counts = [len(one) for one in self._sets]
        begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
        ports = np.concatenate(self._sets) if self._sets else np.zeros(0, np.uint32)
        return begin, ports
