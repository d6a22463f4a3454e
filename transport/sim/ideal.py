"""Computes the ideal time of a transfer: alone in an empty network, over all equal-cost links.

With n = ceil(bytes / payload of a packet) packets, at least one,
  ideal = wire bytes / bottleneck rate + delays + host delay + one packet at every other hop.
Wire bytes are those of the message and n headers. The rate of a hop is the sum of its equal-cost
links that the connection's paths can use together; the bottleneck is the hop with the lowest rate.
Delays are those of the links on the route. The last packet crosses every other hop by store and
forward, so no transfer can be faster. Links have their properties at the start of the run;
acknowledgments, probes and receive advertisements are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transport.sim.network import Array, Network

HEADER_BYTES = 64  # weft's header in a data packet


def packets(sizes: Array, hosts: Mapping[str, Any]) -> Array:
    """The number of data packets that each message needs at least."""
    payload = hosts["segment_bytes"] - HEADER_BYTES
    return np.asarray(np.maximum(-(-sizes.astype(np.int64) // payload), 1))


def wire_bytes(sizes: Array, hosts: Mapping[str, Any]) -> Array:
    """The bytes of each message on the wire, with headers and without retransmissions."""
    headers = HEADER_BYTES + hosts["wire_overhead_bytes"]
    return np.asarray(sizes.astype(np.int64) + packets(sizes, hosts) * headers)


# A hop: total rate of its links, rate of the fastest link (bytes per second), least delay (ns).
Hop = tuple[float, float, int]


class Ways:
    """The equal-cost links between two groups of hosts, hop by hop."""

    def __init__(self, network: Network, paths: int) -> None:
        self._network = network
        self._paths = paths
        # Cache: sets of ports -> the hop over these ports and the switches that it leads to.
        self._behind: dict[bytes, tuple[Hop, Array] | None] = {}
        self._up: dict[int, tuple[Hop, Array]] = {}
        self._down: dict[int, tuple[Hop, set[int]]] = {}

    def hops(self, one: int, other: int) -> list[Hop]:
        """The hops from one host to another."""
        net = self._network
        if one not in self._up:
            first = np.arange(net.first_port[one], net.first_port[one + 1])
            self._up[one] = self._hop(first), np.unique(net.ports["to"][first]).astype(np.int64)
        if other not in self._down:
            self._down[other] = self._last(other)
        hop, now = self._up[one]
        last, ends = self._down[other]
        target = int(net.group_of[other])
        rows = [hop]
        for _ in range(net.switches):
            for end in ends:
                now = now[now != end]
            found = self._next(net.route[now - net.hosts, target])
            if found is None:
                break
            hop, now = found
            rows.append(hop)
        return [*rows, last]

    def _hop(self, ports: Array) -> Hop:
        rates = np.sort(self._network.ports["bytes_per_s"][ports])[::-1]
        delay = int(self._network.ports["delay_ns"][ports].min())
        return float(rates[: self._paths].sum()), float(rates[0]), delay

    def _next(self, sets: Array) -> tuple[Hop, Array] | None:
        """The hop over the given sets of ports, and the switches at its far end."""
        net = self._network
        key = sets.tobytes()
        if key not in self._behind:
            ports = [net.set_of(one) for one in np.unique(sets).tolist() if one >= 0]
            chosen = np.concatenate(ports) if ports else None
            self._behind[key] = (
                None
                if chosen is None
                else (self._hop(chosen), np.unique(net.ports["to"][chosen]).astype(np.int64))
            )
        return self._behind[key]

    def _last(self, host: int) -> tuple[Hop, set[int]]:
        """The last hop to a host, and the switches where it starts."""
        net = self._network
        own = net.ports["to"][net.first_port[host] : net.first_port[host + 1]]
        found = []
        for switch in np.unique(own).tolist():
            first = net.first_port[switch]
            to = net.ports["to"][first : net.first_port[switch + 1]]
            found.append(first + np.flatnonzero(to == host))
        return self._hop(np.concatenate(found)), set(own.tolist())


def ideal_ns(network: Network, transfers: Array, hosts: Mapping[str, Any]) -> Array:
    """The ideal time of each transfer, in nanoseconds."""
    ways = Ways(network, hosts["paths"])
    wire = wire_bytes(transfers["bytes"], hosts).astype(np.float64)
    count = packets(transfers["bytes"], hosts)
    headers = HEADER_BYTES + hosts["wire_overhead_bytes"]
    payload = hosts["segment_bytes"] - HEADER_BYTES
    last = transfers["bytes"].astype(np.int64) - (count - 1) * payload + headers
    pairs, which = np.unique(
        np.stack([transfers["from"], transfers["to"]], axis=1), axis=0, return_inverse=True
    )
    # Columns: ns per byte of the slowest hop, of all other hops together, and the sum of delays.
    least = np.zeros((len(pairs), 3))
    for number, (one, other) in enumerate(pairs.tolist()):
        hops = np.array(ways.hops(one, other), np.float64)
        narrow = int(np.argmin(hops[:, 0]))
        others = np.delete(hops[:, 1], narrow)
        least[number] = (1e9 / hops[narrow, 0], (1e9 / others).sum(), hops[:, 2].sum())
    mine = least[which.ravel()]
    spent = wire * mine[:, 0] + last * mine[:, 1] + mine[:, 2] + hosts["delay_ns"]
    return np.asarray(spent, np.float64)


def base_rtt_ns(network: Network, transfers: Array, hosts: Mapping[str, Any]) -> int:
    """The round trip of one full segment and its acknowledgment in an empty network.

    This is the largest over all transfers, or over a sample of 256 if there are more.
    """
    if len(transfers) == 0:
        return 0
    some = np.unique(np.linspace(0, len(transfers) - 1, min(len(transfers), 256)).astype(int))
    there = transfers[some].copy()
    there["bytes"] = hosts["segment_bytes"] - HEADER_BYTES
    back = there.copy()
    back["from"], back["to"], back["bytes"] = there["to"], there["from"], 0
    both = ideal_ns(network, there, hosts) + ideal_ns(network, back, hosts)
    return int(both.max())
