"""Computes the shortest routes through the switches of a network of any shape.

shapes.py computes the routes of fat trees directly from their shape.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from transport.ground.text import nearest
from transport.sim.errors import BadKeyError
from transport.sim.network import Array, LinkKind, Network, PortList, SetList


def network(
    names: Sequence[str],
    kinds: Sequence[str],
    hosts: int,
    links: Sequence[tuple[int, int, LinkKind]],
    notes: Sequence[str] = (),
) -> Network:
    """The network of nodes (hosts first) and links; ValueError if a host is linked to no switch."""
    laid = PortList()
    for one, other, kind in links:
        laid.add(np.array([one]), np.array([other]), kind)
    ports, _, _ = laid.build(hosts)
    group_of, attached = _groups(names, hosts, ports)
    begin = np.searchsorted(ports["from"], np.arange(len(names) + 1))
    sets = SetList()
    route = np.full((len(names) - hosts, len(attached)), -1, np.int32)
    for group, switches in enumerate(attached):
        hops = _distances(switches, hosts, len(names), ports)
        for switch in np.flatnonzero(hops[hosts:] > 0) + hosts:
            there = np.arange(begin[switch], begin[switch + 1])
            to = ports["to"][there]
            nearer = there[(to >= hosts) & (hops[to] == hops[switch] - 1)]
            route[switch - hosts, group] = sets.add(nearer)
    set_begin, set_ports = sets.build()
    return Network(
        *(hosts, list(names), list(kinds), ports, group_of, route, set_begin, set_ports),
        notes=list(notes),
    )


def _groups(names: Sequence[str], hosts: int, ports: Array) -> tuple[Array, list[Array]]:
    """The group of each host, and the switches that the hosts of each group are linked to."""
    numbers: dict[tuple[int, ...], int] = {}
    group_of = np.zeros(hosts, np.uint32)
    begin = np.searchsorted(ports["from"], np.arange(hosts + 1))
    for host in range(hosts):
        to = ports["to"][begin[host] : begin[host + 1]]
        if (to < hosts).any():
            other = names[int(to[to < hosts][0])]
            raise ValueError(
                f"host {names[host]} is linked to host {other}: put a switch between them"
            )
        if len(to) == 0:
            raise ValueError(f"host {names[host]} has no link: add one")
        key = tuple(sorted(set(to.tolist())))
        group_of[host] = numbers.setdefault(key, len(numbers))
    return group_of, [np.array(key) for key in numbers]


def _distances(start: Array, hosts: int, nodes: int, ports: Array) -> Array:
    """Hops from each switch to the nearest node of `start`; -1: no route, or the node is a host."""
    hops = np.full(nodes, -1, np.int64)
    hops[start] = 0
    fresh = np.zeros(nodes, bool)
    fresh[start] = True
    between = (ports["from"] >= hosts) & (ports["to"] >= hosts)
    one, other = ports["from"][between], ports["to"][between]
    for depth in range(1, nodes + 1):
        reached = one[fresh[other] & (hops[one] < 0)]
        if reached.size == 0:
            break
        hops[reached] = depth
        fresh[:] = False
        fresh[reached] = True
    return hops


def from_tables(nodes: Sequence[dict[str, Any]], links: Sequence[dict[str, Any]]) -> Network:
    """The network that a scenario's [[nodes]] and [[links]] describe."""
    named: dict[str, str] = {}
    for index, node in enumerate(nodes):
        if node["name"] is None:
            raise BadKeyError(("nodes", index, "name"), 'missing: give one, as name = "a"')
        count = node["count"]
        for number in range(count):
            name = node["name"] if count == 1 else f"{node['name']}{number}"
            if re.fullmatch(r"[A-Za-z0-9_.:]+(-[A-Za-z0-9_.:]+)*", name) is None:
                text = f"{name!r}: use letters, digits, _, . and -"
                raise BadKeyError(("nodes", index, "name"), text)
            if name in named:
                raise BadKeyError(
                    ("nodes", index, "name"), f"{name}: two nodes have this name: rename one"
                )
            named[name] = node["kind"]
    if not named:
        raise BadKeyError(("nodes",), 'topology "file" needs [[nodes]] and [[links]]: give some')
    # Hosts come first, then switches, both in the order of the file.
    names = sorted(named, key=lambda name: named[name] != "host")
    numbers = {name: number for number, name in enumerate(names)}
    laid = [_link(index, link, numbers) for index, link in enumerate(links)]
    hosts = sum(kind == "host" for kind in named.values())
    if hosts < 2:
        raise BadKeyError(("nodes",), f'{hosts} of kind "host": a network needs at least 2')
    try:
        return network(names, [named[name] for name in names], hosts, laid)
    except ValueError as error:
        raise BadKeyError(("links",), str(error)) from None


def _link(index: int, link: dict[str, Any], numbers: dict[str, int]) -> tuple[int, int, LinkKind]:
    ends = []
    for end in ("from", "to"):
        name = link[end]
        if name not in numbers:
            said = "missing" if name is None else f"no node is named {name!r}"
            raise BadKeyError(("links", index, end), said + nearest(name or "", list(numbers)))
        ends.append(numbers[name])
    if ends[0] == ends[1]:
        raise BadKeyError(("links", index, "to"), f"{link['to']} is linked to itself")
    fields = (
        "delay_ns",
        "queue_bytes",
        "mark_from_bytes",
        "mark_full_bytes",
        "loss",
        "bit_error_rate",
    )
    kind = LinkKind(bytes_per_s=link["rate"], **{name: link[name] for name in fields})
    try:
        kind.values()
    except ValueError as error:
        raise BadKeyError(("links", index, "mark_from_bytes"), f"{error}: lower it") from None
    return ends[0], ends[1], kind
