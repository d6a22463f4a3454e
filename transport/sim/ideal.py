"""Decides what the least time of a transfer is: alone, in an empty network, over all its ways.

Never looks at a run. With n = ceil(bytes / payload of a packet) packets, at least one,
  ideal = wire bytes / bottleneck rate + delays + host delay + one packet at every other hop,
where wire bytes are the message's and n headers; a hop's rate is the sum of its equal-cost links
that the connection's paths can take together, the bottleneck is the least of them; delays are those
of the links on the way; and the packet that crosses every other hop by store and forward is the
last one, so that nothing can be faster. Links are as they are at the beginning; acknowledgments,
probes and receives that are advertised take no time in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transport.sim.network import Array, Network

HEADER_BYTES = 64  # weft's, of a data packet


def packets(sizes: Array, hosts: Mapping[str, Any]) -> Array:
    """How many data packets each message is, at least."""
    payload = hosts["segment_bytes"] - HEADER_BYTES
    return np.asarray(np.maximum(-(-sizes.astype(np.int64) // payload), 1))


def wire_bytes(sizes: Array, hosts: Mapping[str, Any]) -> Array:
    """Of each message, headers included, nothing sent twice."""
    headers = HEADER_BYTES + hosts["wire_overhead_bytes"]
    return np.asarray(sizes.astype(np.int64) + packets(sizes, hosts) * headers)


class Ways:
    """The equal-cost links between two groups of hosts, hop by hop."""

    def __init__(self, network: Network, paths: int) -> None:
        self._network = network
        self._paths = paths
        self._known: dict[tuple[int, int], Array] = {}

    def _hop(self, ports: Array) -> tuple[float, float, int]:
        """Rate of a hop in all and of its fastest link, and its least delay."""
        rates = np.sort(self._network.ports["bytes_per_s"][ports])[::-1]
        delay = int(self._network.ports["delay_ns"][ports].min())
        return float(rates[: self._paths].sum()), float(rates[0]), delay

    def hops(self, one: int, other: int) -> Array:
        """Rows of (rate in all, fastest link, delay), from a host to another."""
        net = self._network
        key = (int(net.group_of[one]), int(net.group_of[other]))
        if key not in self._known:
            self._known[key] = np.array(self._between(one, other), np.float64).reshape(-1, 3)
        first = np.arange(net.first_port[one], net.first_port[one + 1])
        last = self._last(other)
        rows = [self._hop(first), *self._known[key], self._hop(last)]
        return np.array(rows, np.float64)

    def _last(self, host: int) -> Array:
        """The ports of switches that lead to a host."""
        net = self._network
        mine = net.ports["to"][net.first_port[host] : net.first_port[host + 1]].astype(np.int64)
        found = [
            np.arange(net.first_port[s], net.first_port[s + 1])[
                net.ports["to"][net.first_port[s] : net.first_port[s + 1]] == host
            ]
            for s in np.unique(mine)
        ]
        return np.concatenate(found)

    def _between(self, one: int, other: int) -> list[tuple[float, float, int]]:
        """The hops between switches."""
        net = self._network
        target = int(net.group_of[other])
        ends = set(net.ports["to"][net.first_port[other] : net.first_port[other + 1]].tolist())
        now = np.unique(net.ports["to"][net.first_port[one] : net.first_port[one + 1]])
        rows = []
        for _ in range(len(net.node_names)):
            now = np.array([n for n in now.tolist() if n not in ends], np.int64)
            sets = np.unique(net.route[now - net.hosts, target]) if now.size else now
            ports = [net.set_of(int(one)) for one in sets if one >= 0]
            if not ports:
                break
            chosen = np.concatenate(ports)
            rows.append(self._hop(chosen))
            now = np.unique(net.ports["to"][chosen])
        return rows


def ideal_ns(network: Network, transfers: Array, hosts: Mapping[str, Any]) -> Array:
    """The least time of each transfer, in nanoseconds."""
    ways = Ways(network, hosts["paths"])
    wire = wire_bytes(transfers["bytes"], hosts).astype(np.float64)
    count = packets(transfers["bytes"], hosts)
    headers = HEADER_BYTES + hosts["wire_overhead_bytes"]
    payload = hosts["segment_bytes"] - HEADER_BYTES
    last = transfers["bytes"].astype(np.int64) - (count - 1) * payload + headers
    pairs, which = np.unique(
        np.stack([transfers["from"], transfers["to"]], axis=1), axis=0, return_inverse=True
    )
    least = np.zeros((len(pairs), 3))  # 1 / bottleneck rate, sum of the others' 1 / rate, delays
    for number, (one, other) in enumerate(pairs.tolist()):
        hops = ways.hops(one, other)
        narrow = int(np.argmin(hops[:, 0]))
        others = np.delete(hops[:, 1], narrow)
        least[number] = (1e9 / hops[narrow, 0], (1e9 / others).sum(), hops[:, 2].sum())
    mine = least[which.ravel()]
    spent = wire * mine[:, 0] + last * mine[:, 1] + mine[:, 2] + hosts["delay_ns"]
    return np.asarray(spent, np.float64)
