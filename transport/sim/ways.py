"""Finds the ways between two hosts: their equal-cost routes, and the links of each hop."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from transport.sim.narrowest import narrowest
from transport.sim.network import Array, Network

ROUTES_MAX = 256  # different routes to one node that are told apart
CUT_LINKS_MAX = 256


class Link(NamedTuple):
    """The properties of a link that the time of a packet depends on."""

    bytes_per_s: int
    delay_ns: int
    burst_bytes: int  # size of its token bucket; 0: none


Route = tuple[Link, ...]
Hop = tuple[tuple[Link, int], ...]


@dataclass(frozen=True, eq=False)
class Ways:
    """The ways between two hosts, without the names of links. Pairs of hosts may share an object.

    routes: the different routes, each as its links in order. Routes may differ in length.
    hops: of each hop, its links and how many of each there are. A route that ends before this hop
    is counted with its last link. narrowest: where the links of a hop differ, or nodes have more of
    them than others, the links with the least total rate that all routes cross, at any hops.
    """

    routes: tuple[Route, ...]
    hops: tuple[Hop, ...]
    narrowest: Hop = ()


class Finder:
    """Finds ways in a network, and keeps what pairs of hosts have in common."""

    def __init__(self, network: Network) -> None:
        self._network = network
        # Sets of ports by number: the ports, their links, and whether all nodes have as many.
        self._sets: list[Array] = []
        self._hops: list[Hop] = []
        self._even: list[bool] = []
        self._numbers: dict[bytes, int] = {}
        self._first: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._last: dict[int, tuple[int, frozenset[int]]] = {}
        # Sets of ports of a route table -> the number of all their ports, and the switches behind.
        self._joined: dict[tuple[int, ...], tuple[int, tuple[int, ...]] | None] = {}
        # Number of a set of ports, group of hosts -> what _onward() gives behind these ports.
        self._behind: dict[tuple[int, int], tuple[tuple[int, ...], bool]] = {}
        self._known: dict[tuple[tuple[Route, ...], tuple[Hop, ...], Hop], Ways] = {}
        self._kinds: dict[tuple[int, bool], bytes] = {}

    def stages(self, one: int, other: int) -> list[Array]:
        """The ports of each hop from one host to another. The last item has all ports to it."""
        return [self._sets[number] for number in self._stages(one, other)[0]]

    def _stages(self, one: int, other: int) -> tuple[tuple[int, ...], bool]:
        """The numbers of the sets of ports, and whether some routes end before others."""
        own, nodes = self._own(one)
        last, ends = self._to(other)
        middle, early = self._onward(nodes, int(self._network.group_of[other]), ends)
        return (own, *middle, last), early

    def _onward(
        self, nodes: tuple[int, ...], group: int, ends: frozenset[int]
    ) -> tuple[tuple[int, ...], bool]:
        """The sets of ports from switches to those (`ends`) that a group of hosts is linked to."""
        net = self._network
        rest = [node for node in nodes if node not in ends]
        joined = self._join(tuple(int(net.route[node - net.hosts, group]) for node in rest))
        if joined is None:
            return (), False
        number, reached = joined
        if (number, group) not in self._behind:
            self._behind[number, group] = self._onward(reached, group, ends)
        later, early = self._behind[number, group]
        return (number, *later), early or len(rest) < len(nodes)

    def _join(self, sets: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
        if sets not in self._joined:
            ports = [self._network.set_of(one) for one in sorted(set(sets)) if one >= 0]
            self._joined[sets] = self._set(np.concatenate(ports)) if ports else None
        return self._joined[sets]

    def _set(self, ports: Array) -> tuple[int, tuple[int, ...]]:
        """The number of a set of ports, and the nodes that they lead to."""
        ports = ports.astype(np.int64)
        number = self._numbers.setdefault(ports.tobytes(), len(self._sets))
        if number == len(self._sets):
            self._sets.append(ports)
            self._hops.append(self._counted(ports))
            ends = [self._network.ports[name][ports] for name in ("from", "to")]
            counts = [np.unique(nodes, return_counts=True)[1] for nodes in ends]
            self._even.append(all(one.min() == one.max() for one in counts))
        return number, tuple(np.unique(self._network.ports["to"][ports]).tolist())

    def _counted(self, ports: Array) -> Hop:
        """The different links of some ports, and how many of each there are."""
        values = np.stack([self._network.ports[name][ports] for name in Link._fields], axis=1)
        rows, counts = np.unique(values, axis=0, return_counts=True)
        return tuple((Link(*row), n) for row, n in zip(rows.tolist(), counts.tolist(), strict=True))

    def _own(self, host: int) -> tuple[int, tuple[int, ...]]:
        """The ports of a host, and the switches that they lead to."""
        if host not in self._first:
            first = self._network.first_port
            self._first[host] = self._set(np.arange(first[host], first[host + 1]))
        return self._first[host]

    def _to(self, host: int) -> tuple[int, frozenset[int]]:
        """The ports that lead to a host, and the switches that have them."""
        if host not in self._last:
            net, nodes = self._network, self._own(host)[1]
            found = [np.arange(net.first_port[node], net.first_port[node + 1]) for node in nodes]
            ports = np.concatenate(found)
            number, _ = self._set(ports[net.ports["to"][ports] == host])
            self._last[host] = number, frozenset(nodes)
        return self._last[host]

    def kind(self, host: int, *, sends: bool) -> bytes:
        """Equal for hosts with equal links to (or, if not `sends`, from) the same switches."""
        if (host, sends) not in self._kinds:
            number = self._own(host)[0] if sends else self._to(host)[0]
            ports = self._network.ports[self._sets[number]]
            rows = [ports["to" if sends else "from"], *(ports[name] for name in Link._fields)]
            self._kinds[host, sends] = np.stack([row.astype(np.int64) for row in rows]).tobytes()
        return self._kinds[host, sends]

    def ways(self, one: int, other: int) -> Ways:
        """The ways from one host to another; equal ways are the same object."""
        numbers, early = self._stages(one, other)
        hops = tuple(self._hops[number] for number in numbers)
        routes: tuple[Route, ...] = (tuple(hop[0][0] for hop in hops),)
        cut: Hop = ()
        uneven = not all(self._even[number] for number in numbers)
        if early or uneven or any(len(hop) > 1 for hop in hops):
            stages = [self._sets[number] for number in numbers]
            routes, cut = self._routes(one, stages), self._narrowest(one, other, stages)
            hops = self._with_ended(stages) if early else hops
        key = routes, hops, cut
        return self._known.setdefault(key, Ways(*key))

    def _narrowest(self, one: int, other: int, stages: list[Array]) -> Hop:
        """The minimum cut; of more than CUT_LINKS_MAX links none is looked for."""
        ports = np.unique(np.concatenate(stages))
        if len(ports) > CUT_LINKS_MAX:
            return ()
        links = self._network.ports[["from", "to", "bytes_per_s"]][ports].tolist()
        return self._counted(ports[narrowest(links, one, other)])

    def _with_ended(self, stages: list[Array]) -> tuple[Hop, ...]:
        """The links of each hop, with those to the receiver of routes that ended before."""
        ports, *middle = self._network.ports, *stages[:-1]
        ended, hops = np.zeros(0, np.int64), []
        for stage in middle:
            hops.append(self._counted(np.concatenate([stage, ended])))
            at_end = np.isin(ports["from"][stages[-1]], ports["to"][stage])
            ended = np.union1d(ended, stages[-1][at_end])
        return (*hops, self._counted(stages[-1]))

    def _routes(self, one: int, stages: list[Array]) -> tuple[Route, ...]:
        """The different routes; more than ROUTES_MAX to a node become one, no slower than any."""
        ports = self._network.ports
        last: dict[int, set[Link]] = defaultdict(set)
        for node, *values in ports[["from", *Link._fields]][stages[-1]].tolist():
            last[node].add(Link(*values))
        done: set[Route] = set()
        at: dict[int, set[Route]] = {one: {()}}
        for stage in stages[:-1]:
            found: dict[int, set[Route]] = defaultdict(set)
            for node, to, *values in ports[["from", "to", *Link._fields]][stage].tolist():
                found[to] |= {(*route, Link(*values)) for route in at.get(node, ())}
            at = {node: _bounded(routes) for node, routes in found.items()}
            for node in set(last) & set(at):
                done |= {(*route, link) for route in at.pop(node) for link in last[node]}
        return tuple(sorted(done))


def _bounded(routes: set[Route]) -> set[Route]:
    """The routes, or if they are too many one route with the best properties at every hop."""
    if len(routes) <= ROUTES_MAX:
        return routes
    return {
        tuple(
            Link(
                max(link.bytes_per_s for link in links),
                min(link.delay_ns for link in links),
                max(link.burst_bytes for link in links),
            )
            for links in zip(*routes, strict=True)
        )
    }
