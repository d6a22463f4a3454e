"""Computes the ideal time of a transfer: until its last packet arrives, alone in an empty network.

*One route.* Packets leave one after another from time 0, and every hop stores and forwards. If
packet i reaches a hop at A(i), a packet takes t on its link, and the link's delay is d, then

  L(i) = max(A(i), L(i - 1)) + t    and packet i reaches the next hop at L(i) + d.

The ideal is the time at which the last packet has crossed the last hop. This is the recurrence of a
permutation flow shop (M. Pinedo, Scheduling, section 6.1). All packets but the last are equal, so
at every hop L(i) is convex in i, and three packets suffice: the first, the one before the last, and
the last. Of n equal packets the last arrives (n - 1) * (t of the slowest hop) after the first.

*Several routes.* A connection may use several links of a hop: NICs of a host, or equal-cost routes.
It may then spread its packets, and packets may overtake each other. The ideal is the largest of
these bounds, so that no way to spread them is faster:

* the fastest route of one full packet, and that of the last packet after a single NIC has sent all
  others;
* for every hop: the fastest way to it, the time in which its links together send the packets, and
  the fastest way from it; for all packets, and for all but the last;
* where the routes are uneven, the same for a minimum cut of the links, of any hops.

It is never more than the time on the best single route. A connection uses at most as many links of
a hop as it has paths; with one path, the ideal is that of the best route. Where switches choose by
their queues, it may use all.

Times are those of native/sim/fabric: a packet has its headers on every link, its time is rounded
down to a picosecond, and a link with a token bucket (a lab's) sends ahead what it has saved up. Of
a link whose rate changes during the run, the highest rate counts, so that no transfer is faster
than its ideal. Acknowledgments, probes and receive advertisements are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from transport.sim.network import Array, Network
from transport.sim.ways import Finder, Hop, Link, Route, Ways

HEADER_BYTES = 64  # weft's header in a data packet
PS_PER_S = 10**12
ALL_LINKS = 1 << 30  # as many paths as a hop can have links


def payload_bytes(hosts: Mapping[str, Any]) -> int:
    """The payload of a full packet, a multiple of 8 bytes. hosts: the keys of [hosts]."""
    return int(hosts["segment_bytes"] - HEADER_BYTES) // 8 * 8


def ideal_ns(
    network: Network,
    transfers: Array,
    hosts: Mapping[str, Any],
    changes: Array | None = None,
    ecmp: str = "hashed",
) -> Array:
    """The ideal time of each transfer.

    transfers: records with from, to (host numbers) and bytes. hosts: the keys of [hosts]. changes:
    records of the type CHANGE, the events that change links. ecmp: the key of [network]. Returns
    int64 [transfer], whole ns, rounded down like the times of a run, so that no transfer takes
    less; exact up to 2.5 hours.
    The cost is that of some array operations for each kind of pair.
    """
    if changes is not None and len(changes):
        ports = network.ports.copy()
        np.maximum.at(ports["bytes_per_s"], changes["port"], changes["bytes_per_s"])
        network = replace(network, ports=ports)
    headers = HEADER_BYTES + hosts["wire_overhead_bytes"]
    payload = payload_bytes(hosts)
    sizes = transfers["bytes"].astype(np.int64)
    before = np.maximum(-(-sizes // payload) - 1, 0)
    last = sizes - before * payload + headers
    paths = ALL_LINKS if ecmp in ("adaptive", "drill") else hosts["paths"]
    spent_ps = np.zeros(len(transfers))
    for ways, mine in _by_ways(network, transfers):
        packets = (before[mine], payload + headers, last[mine])
        if all(min(paths, sum(n for _, n in hop)) == 1 for hop in ways.hops):
            spent_ps[mine] = np.min([one_route(route, *packets) for route in ways.routes], axis=0)
        else:
            spent_ps[mine] = several_routes(ways, paths, *packets)
    return np.asarray(spent_ps // 1000 + hosts["delay_ns"], np.int64)


def _by_ways(network: Network, transfers: Array) -> list[tuple[Ways, Array]]:
    """The transfers by the ways between their hosts: each with the numbers of its transfers."""
    if len(transfers) == 0:
        return []
    finder = Finder(network)
    senders = _numbers(transfers["from"], lambda host: finder.kind(host, sends=True))
    receivers = _numbers(transfers["to"], lambda host: finder.kind(host, sends=False))
    _, first, which = np.unique(senders << 32 | receivers, return_index=True, return_inverse=True)
    found = [finder.ways(*ends) for ends in transfers[["from", "to"]][first].tolist()]
    known: dict[Ways, int] = {}
    numbers = np.array([known.setdefault(ways, len(known)) for ways in found])[which.ravel()]
    mine = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    return list(zip(known, mine, strict=True))


def _numbers(hosts: Array, name_of: Callable[[int], bytes]) -> Array:
    """Numbers that are equal for hosts with equal names."""
    different, which = np.unique(hosts, return_inverse=True)
    known: dict[bytes, int] = {}
    found = [known.setdefault(name_of(host), len(known)) for host in different.tolist()]
    return np.array(found, np.int64)[which.ravel()]


def takes_ps(link: Link, wire_bytes: Any) -> Any:
    """The time of a packet on a link, in ps, without the link's delay."""
    return wire_bytes * PS_PER_S // link.bytes_per_s


def burst_ps(link: Link) -> int:
    """The time of a full token bucket at the link's rate: how far the link may send ahead."""
    return int(link.burst_bytes / link.bytes_per_s * PS_PER_S)


def one_route(route: Route, before: Array, full: int, last: Array) -> Array:
    """The ps until the last packet has crossed the route.

    before: int64 [transfer], the packets before the last one, of `full` bytes on the wire each.
    last: int64 [transfer], the bytes of the last packet. Returns float64 [transfer].
    """
    # The times at which the first packet, the one before the last, and the last reach a node.
    first_at, full_at, last_at = np.zeros((3, len(last)))
    for link in route:
        full_ps, last_ps, saved = takes_ps(link, full), takes_ps(link, last), burst_ps(link)
        # When the link has sent all packets but the last, without what its bucket gains.
        free = np.maximum(first_at + before * float(full_ps), full_at + full_ps)
        begun = np.where(before > 0, np.maximum(last_at, free), last_at)
        last_at = np.maximum(last_at, begun + last_ps - saved) + link.delay_ns * 1000
        full_at = np.maximum(full_at, free - saved) + link.delay_ns * 1000
        first_at = first_at + max(full_ps - saved, 0) + link.delay_ns * 1000
    return last_at


def several_routes(ways: Ways, paths: int, before: Array, full: int, last: Array) -> Array:
    """The ps that no way to spread the packets over the routes can beat.

    paths: how many links of a hop the connection may use at once. The rest as in one_route().
    """
    sizes, which = np.unique(last, return_inverse=True)
    which = which.ravel()
    lengths = np.array([len(route) for route in ways.routes])
    # [size, route, hop]: times on the links, of a full packet (size 0) and of the last packets.
    spent = np.zeros((1 + len(sizes), len(lengths), len(ways.hops)))
    delay = np.zeros((len(lengths), len(ways.hops)))
    wire_bytes = np.concatenate([[full], sizes])
    for row, route in enumerate(ways.routes):
        for hop, link in enumerate(route):
            spent[:, row, hop] = np.maximum(takes_ps(link, wire_bytes) - burst_ps(link), 0)
            delay[row, hop] = link.delay_ns * 1000
    total = (spent + delay).sum(axis=2)
    to_end = (spent + delay)[:, :, ::-1].cumsum(axis=2)[:, :, ::-1]
    to_hop, behind = total[:, :, None] - to_end, to_end - spent
    # The last packet leaves a single NIC after all others.
    left = np.zeros(len(last))
    if _links(ways.hops[0], paths) == 1:
        left = _work(ways.hops[0], paths, before, full, last)[0]
    found = np.maximum(total[0].min(), left + total[1:].min(axis=1)[which])
    for hop, links in enumerate(ways.hops):
        # A route that ended before this hop is counted with its last link.
        rows, at = np.arange(len(lengths)), np.minimum(hop, lengths - 1)
        to, after = to_hop[:, rows, at], behind[:, rows, at]
        fulls, both = _work(links, paths, before, full, last)
        others = (to[0] + after[0]).min() + fulls
        in_order = (to[0] + after[1:]).min(axis=1)[which] + both
        overtaken = left + (to[1:] + after[0]).min(axis=1)[which] + both
        found = np.maximum(found, others)
        found = np.maximum(found, np.minimum(in_order, np.maximum(others, overtaken)))
    if ways.narrowest:
        fulls, both = _work(ways.narrowest, paths, before, full, last)
        least = (total - spent.max(axis=2)).min(axis=1)
        found = np.maximum(found, np.maximum(least[0] + fulls, least[1:][which] + both))
    return np.asarray(np.where(before > 0, found, total[1:].min(axis=1)[which]))


def _links(hop: Hop, paths: int) -> int:
    return min(paths, sum(count for _, count in hop))


def _work(hop: Hop, paths: int, before: Array, full: int, last: Array) -> tuple[Array, Array]:
    """The least ps in which a hop's links send all packets but the last, and all packets."""
    many = _links(hop, paths)
    if len({(link.bytes_per_s, link.burst_bytes) for link, _ in hop}) == 1:
        link = hop[0][0]
        fulls = -(-before // many) * float(takes_ps(link, full))
        both = fulls + np.where(before % many == 0, takes_ps(link, last), 0)
        return np.maximum(fulls - burst_ps(link), 0), np.maximum(both - burst_ps(link), 0)
    each = [link for link, count in hop for _ in range(min(count, paths))]
    rate = sum(sorted(link.bytes_per_s for link in each)[-many:])
    saved_bytes = sum(sorted(link.burst_bytes for link in each)[-many:])
    # Each packet's time is rounded down to a ps.
    fulls, both = (
        np.maximum((sent - saved_bytes) * (PS_PER_S / rate) - before - 1, 0)
        for sent in (before * float(full), before * float(full) + last)
    )
    return fulls, both


def base_rtt_ns(network: Network, transfers: Array, hosts: Mapping[str, Any]) -> int:
    """The round trip of one full segment and its acknowledgment in an empty network, in ns.

    This is the largest over all transfers, or over a sample of 256 if there are more. The links of
    the hop with the least rate count as one link of their total rate.
    """
    if len(transfers) == 0:
        return 0
    some = np.unique(np.linspace(0, len(transfers) - 1, min(len(transfers), 256)).astype(int))
    finder = Finder(network)
    full = hosts["segment_bytes"] + hosts["wire_overhead_bytes"]
    empty = HEADER_BYTES + hosts["wire_overhead_bytes"]
    found = [
        _packet_ns(network, finder.stages(one, other), hosts["paths"], full)
        + _packet_ns(network, finder.stages(other, one), hosts["paths"], empty)
        for one, other in transfers[["from", "to"]][some].tolist()
    ]
    return int(max(found) + 2 * hosts["delay_ns"])


def _packet_ns(network: Network, stages: list[Array], paths: int, wire_bytes: int) -> float:
    rates = [np.sort(network.ports["bytes_per_s"][ports])[::-1] for ports in stages]
    totals = [float(one[:paths].sum()) for one in rates]
    narrow = int(np.argmin(totals))
    others = np.array([one[0] for number, one in enumerate(rates) if number != narrow], np.float64)
    delays = sum(int(network.ports["delay_ns"][ports].min()) for ports in stages)
    return wire_bytes * (1e9 / totals[narrow]) + wire_bytes * float((1e9 / others).sum()) + delays
