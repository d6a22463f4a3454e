"""Computes the tables that switches use once they know which links are down.

A routing protocol leaves out a link some time after it went down, and every route that needs it.
Each table holds from a time on. It keeps the shortest routes that are left; a switch that has none
to a group of hosts is left out by the switches before it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from transport.sim.key import NS_MAX
from transport.sim.network import Array, Network, SetList

TABLES_MAX = 1_024


@dataclass(frozen=True, eq=False)
class Tables:
    """Route tables of a run: those of `Network.route`, then one for each time in `at_ns`."""

    at_ns: Array  # ascending; when each of the later tables begins
    route: Array  # [table, switch, group]: number of a set of ports, or -1
    set_begin: Array
    set_ports: Array


def tables(network: Network, changes: Array, delay_ns: int | None) -> Tables:
    """The tables of a run whose links change as `changes` say (rows of CHANGE, sorted by time).

    delay_ns: how long after a change a switch knows of it; None: it never does. ValueError if there
    are too many changes.
    """
    delay = delay_ns or 0
    at_ns, downs = _downs(network, changes) if delay_ns is not None else ([], [])
    if len(at_ns) > TABLES_MAX:
        text = f"links between switches go down or up at {len(at_ns):,} times"
        raise ValueError(f"{text}: at most {TABLES_MAX:,}")
    # No run is that long, and what the switches learn later does not matter.
    downs = [down for when, down in zip(at_ns, downs, strict=True) if when + delay <= NS_MAX]
    at_ns = at_ns[: len(downs)]
    route = np.empty((1 + len(at_ns), *network.route.shape), np.int32)
    route[0] = network.route
    if not at_ns:
        return Tables(np.zeros(0, np.int64), route, network.set_begin, network.set_ports)
    sets = SetList()
    for number in range(len(network.set_begin) - 1):
        sets.append(network.set_of(number))
    for table, down in zip(route[1:], downs, strict=True):
        table[:] = _left(network, sets, down)
    times = np.array(at_ns, np.int64) + delay
    return Tables(times, route, *sets.build())


def _downs(network: Network, changes: Array) -> tuple[list[int], list[frozenset[int]]]:
    """The times at which links between switches change, and the ports down from each of them on."""
    ports = network.ports
    inner = (ports["from"] >= network.hosts) & (ports["to"] >= network.hosts)
    down: set[int] = set()
    at_ns: list[int] = []
    downs: list[frozenset[int]] = []
    for when, port, up in changes[["at_ns", "port", "up"]][changes["up"] >= 0].tolist():
        if not inner[port] or (port in down) == (up == 0):
            continue
        down ^= {port}
        if at_ns and at_ns[-1] == when:
            downs[-1] = frozenset(down)
        else:
            at_ns.append(when)
            downs.append(frozenset(down))
    return at_ns, downs


def _left(network: Network, sets: SetList, down: frozenset[int]) -> Array:
    """The table without the ports that are down, and without those that lead to no route."""
    ports, hosts, route = network.ports, network.hosts, network.route
    into: dict[int, list[int]] = defaultdict(list)  # ports between switches, by where they lead
    for port in np.flatnonzero((ports["from"] >= hosts) & (ports["to"] >= hosts)).tolist():
        into[int(ports["to"][port])].append(port)
    gone: dict[tuple[int, int], set[int]] = defaultdict(set)  # by switch and group
    waiting = [(port, group) for port in sorted(down) for group in range(network.groups)]
    while waiting:
        port, group = waiting.pop()
        switch = int(ports["from"][port])
        number = int(route[switch - hosts, group])
        if number < 0 or port not in (own := network.set_of(number).tolist()):
            continue
        removed = gone[switch, group]
        if port in removed:
            continue
        removed.add(port)
        if len(removed) == len(own):  # no route is left here, so none leads here
            waiting += [(before, group) for before in into[switch]]
    made = route.copy()
    for (switch, group), removed in gone.items():
        kept = [p for p in network.set_of(int(route[switch - hosts, group])) if p not in removed]
        made[switch - hosts, group] = sets.add(kept) if kept else -1
    return made
