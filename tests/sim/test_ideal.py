"""Tests ideal times against the plain recurrence, and against runs of an empty network."""

from __future__ import annotations

import heapq
import random
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.sim.support import needs_fabric, scenario
from transport.sim import Scenario, ideal, run
from transport.sim.narrowest import narrowest
from transport.sim.scenario import from_tables
from transport.sim.ways import Finder, Hop, Link, Route, Ways
from transport.sim.work import TRANSFER

LINKS = st.builds(
    Link,
    st.integers(1_000_000, 100_000_000_000) | st.sampled_from([12_500_000_000, 50_000_000_000]),
    st.integers(1, 50_000),
    st.just(0) | st.integers(0, 50_000),
)
SIZES = st.tuples(st.integers(0, 60), st.integers(64, 9_000), st.integers(64, 9_000)).map(
    lambda one: (one[0], max(one[1:]), min(one[1:]))
)
RUNS = 1_000


def crossed_ps(routes: list[Route], taken: list[int], wire_bytes: list[int]) -> int:
    """When the last packet arrives: packet i takes routes[taken[i]], in order of its index.

    Equal numbers of hops and equal links are the same link in two routes. This is the simulator's
    rule: a link serves packets as they arrive, and its bucket fills while it is idle.
    """
    free: dict[tuple[int, Link], int] = {}
    latest = 0
    waiting = [(0, number, 0) for number in range(len(taken))]
    heapq.heapify(waiting)
    while waiting:
        at, number, hop = heapq.heappop(waiting)
        route = routes[taken[number]]
        if hop == len(route):
            latest = max(latest, at)
            continue
        link = route[hop]
        saved = int(link.burst_bytes / link.bytes_per_s * 10**12)
        begun = max(free.get((hop, link), -saved), at - saved)
        free[hop, link] = begun + wire_bytes[number] * 10**12 // link.bytes_per_s
        heapq.heappush(waiting, (max(free[hop, link], at) + link.delay_ns * 1000, number, hop + 1))
    return latest


@given(st.lists(LINKS, min_size=1, max_size=7), SIZES)
def test_ideal__of_one_route_is_the_recurrence_over_all_packets(
    route: list[Link], sizes: tuple[int, int, int]
) -> None:
    before, full, last = sizes
    at = [0] * (before + 1)
    for link in route:
        saved = int(link.burst_bytes / link.bytes_per_s * 10**12)
        free = -saved
        for number, size in enumerate([full] * before + [last]):
            takes = size * 10**12 // link.bytes_per_s
            free = max(free, at[number] - saved) + takes
            at[number] = max(free, at[number]) + link.delay_ns * 1000
    (found,) = ideal.one_route(tuple(route), np.array([before]), full, np.array([last]))
    assert found == at[-1]


@st.composite
def networks(draw: st.DrawFn) -> Ways:
    """All routes through layers of one to three nodes, each joined to all of the next layer."""
    layers = [1, *draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)), 1]
    routes: dict[int, list[Route]] = {0: [()]}
    hops: list[Hop] = []
    ends: list[tuple[int, int, int]] = []
    for hop, (here, there) in enumerate(pairwise(layers)):
        many = here * there
        if draw(st.booleans()):
            links = draw(st.lists(LINKS, min_size=many, max_size=many, unique=True))
        else:  # links that differ by a nanosecond, so that the test can tell them apart
            link = draw(LINKS)
            links = [link._replace(delay_ns=link.delay_ns + number) for number in range(many)]
        found: dict[int, list[Route]] = {to: [] for to in range(there)}
        for number, link in enumerate(links):
            one, other = divmod(number, there)
            found[other] += [(*route, link) for route in routes[one]]
            ends.append((3 * hop + one, 3 * hop + 3 + other, link.bytes_per_s))
        routes = found
        hops.append(tuple((link, 1) for link in links))
    every = [link for hop in hops for link, _ in hop]
    cut = narrowest(ends, 0, 3 * len(hops))
    return Ways(tuple(routes[0]), tuple(hops), tuple((every[number], 1) for number in cut))


@given(networks(), SIZES, st.randoms(use_true_random=False))
def test_ideal__no_way_to_spread_packets_is_faster(
    ways: Ways, sizes: tuple[int, int, int], chance: random.Random
) -> None:
    before, full, last = sizes
    given_sizes = np.array([before]), full, np.array([last])
    (found,) = ideal.several_routes(ways, 64, *given_sizes)
    best = min(float(ideal.one_route(route, *given_sizes)[0]) for route in ways.routes)
    assert found <= best
    numbers = range(len(ways.routes))
    turns = [[number % len(numbers) for number in range(before + 1)]]
    turns += [[chance.choice(numbers) for _ in range(before + 1)] for _ in range(5)]
    for taken in turns:
        assert found <= crossed_ps(list(ways.routes), taken, [full] * before + [last])


def near(chance: random.Random, low: int, high: int) -> int:
    """A log-uniform integer."""
    return int(low * (high / low) ** chance.random())


def shape(chance: random.Random, folder: Path) -> dict[str, Any]:
    """The tables of a random network, whose hops have equal links each."""
    kind = chance.choice(
        ["fat_tree", "three_tiers", "rail", "multi_plane", "dumbbell", "chain", "lab"]
    )
    rate, queue = near(chance, 100_000_000, 50_000_000_000), 1 << 24
    spines = chance.randint(1, 4)
    own = {"topology": kind, "ecmp": "even", "hosts": chance.randint(3, 16)}
    link = {"rate": rate, "delay_ns": near(chance, 1, 20_000), "queue_bytes": queue}
    if kind == "chain":
        names = ["h0", *(f"s{number}" for number in range(chance.randint(1, 6))), "h1"]
        links = [
            {"from": one, "to": other, "delay_ns": near(chance, 1, 20_000), "queue_bytes": queue}
            | {"rate": int(rate * chance.uniform(0.1, 10))}
            for one, other in pairwise(names)
        ]
        nodes = [{"name": one, "kind": "host" if one[0] == "h" else "switch"} for one in names]
        return {"network": {"topology": "file"}, "nodes": nodes, "links": links}
    if kind == "lab":
        parts = [f"hosts = {own.pop('hosts')}", "hosts_per_leaf = 2", f"spines = {spines}"]
        for part in ("host_links", "uplinks"):
            parts += [f"[{part}]", f'rate = "{near(chance, 10, 10_000)} Mb/s"']
            parts += [f"delay_ns = {near(chance, 1, 2_000_000)}", f"queue_bytes = {queue}"]
        (folder / "lab.toml").write_text("\n".join(parts))
        return {"network": {**own, "lab": "lab.toml", "host_queues": chance.random() < 0.5}}
    own |= link
    if kind == "dumbbell" or chance.random() < 0.7:
        own["uplink_rate"] = int(
            rate * chance.choice([0.25, 0.3, 0.5, 1, 2, chance.uniform(0.1, 4)])
        )
        own["uplink_delay_ns"] = near(chance, 1, 20_000)
    if kind == "dumbbell":
        return {"network": own}
    own |= {"hosts_per_leaf": chance.randint(1, 4), "spines": spines}
    if kind == "three_tiers":
        own |= {"topology": "fat_tree", "tiers": 3, "pods": chance.randint(2, 3)}
        own["cores"] = spines * chance.randint(1, 3)
    if kind == "rail":
        own |= {"hosts": 12, "rails": chance.randint(1, 3)}
    if kind == "multi_plane":
        # Path p leaves by port p % planes and takes spine p % spines: all pairs only if coprime.
        own["planes"] = chance.choice([one for one in range(1, 5) if gcd(one, spines) == 1])
    return {"network": own}


def alone(seed: int, folder: Path) -> Scenario:
    """A random network and one transfer, which neither window nor pacing delays."""
    chance = random.Random(seed)
    tables = shape(chance, folder)
    segment = chance.choice([576, 1_024, 1_500, 4_160, 4_160, 8_972, 16_384])
    payload = (segment - 64) // 8 * 8
    whole = near(chance, 1, 200) * payload
    size = chance.choice([0, 1, payload, payload + 1, whole, whole - 1, chance.randint(0, whole)])
    hosts = from_tables({**tables, "workload": [{}]}, file="drawn", folder=folder).network.hosts
    tables["workload"] = [
        {"pattern": "incast", "hosts": chance.sample(range(hosts), 2), "size_bytes": size}
    ]
    tables["hosts"] = {
        "segment_bytes": segment,
        "wire_overhead_bytes": chance.choice([0, 0, 42, 100]),
        "paths": chance.choice([1, 64, 240]),
        "delay_ns": chance.choice([0, 0, 777]),
        "rtt_ns": 10**7,
        "window_bytes_max": 1 << 26,
        "rto_ns_min": 10**11,
        "rto_ns_max": 10**12,
        "peer_silence_ns": 10**13,
    }
    tables["policies"] = {
        "window": f"fixed:window_bytes={1 << 26}",
        "path": f"fixed:burst_bytes={segment}",  # packets take all paths by turns
        "loss": "fixed",
    }
    return from_tables({**tables, "limit_ns": 10**13}, file=f"seed {seed}", folder=folder)


@needs_fabric
def test_ideal__an_empty_network_needs_it_and_at_most_a_packet_more(tmp_path: Path) -> None:
    """On one route it needs exactly the ideal."""
    exact = 0
    for seed in range(RUNS):
        own = alone(seed, tmp_path)
        found = run(own)
        assert found.good, seed
        (one,) = own.work.transfers
        (fct_ns,), (ideal_ns,) = found.fct_ns, found.ideal_ns
        ways = Finder(own.network).ways(int(one["from"]), int(one["to"]))
        hosts = own.keys["hosts"]
        full = ideal.payload_bytes(hosts) + 64 + hosts["wire_overhead_bytes"]
        slowest = max(ideal.takes_ps(link, full) for route in ways.routes for link in route)
        if hosts["paths"] == 1 or all(count == 1 for hop in ways.hops for _, count in hop):
            assert fct_ns == ideal_ns, seed
            exact += 1
        assert ideal_ns <= fct_ns <= ideal_ns + slowest / 1_000 + 1, seed
    assert RUNS / 3 < exact < RUNS


@needs_fabric
def test_ideal__two_packets_between_leaves() -> None:
    """The second packet, of 65 bytes, follows the first at once on the same route."""
    text = (
        "[hosts]\npaths = 1\n[[workload]]\npattern = 'incast'\nhosts = '0,2'\nsize_bytes = 4_097\n"
    )
    found = run(scenario("hosts = 4\nhosts_per_leaf = 2\nspines = 2", text))
    # Four hops of 4,160 bytes at 12.5 GB/s and 1 us, then 65 bytes.
    assert found.ideal_ns.tolist() == [int(4 * (332.8 + 1_000) + 5.2)]
    assert found.slowdown.tolist() == [1.0]


def test_ideal__one_packet_takes_every_hop_after_the_other() -> None:
    text = 'hosts = 4\nhosts_per_leaf = 2\nspines = 2\nrate = "8 Gb/s"\ndelay_ns = 500'
    own = scenario(text, '[[workload]]\npattern = "incast"\nsize_bytes = 936\n')
    near_ns, *far_ns = ideal.ideal_ns(own.network, own.work.transfers, own.keys["hosts"])
    # 1,000 bytes take 1,000 ns per hop at 1 GB/s. There are two hops below one leaf, four over a
    # spine. One packet cannot use both uplinks.
    assert near_ns == 2 * 1_000 + 2 * 500
    assert far_ns == [4 * 1_000 + 4 * 500] * 2


def test_ideal__links_of_a_hop_send_together_as_many_as_there_are_paths() -> None:
    lines = ["[[nodes]]\nname = 'h'\nkind = 'host'\ncount = 2", "[[nodes]]\nname = 'a'"]
    lines += ["[[nodes]]\nname = 'b'", "[[links]]\nfrom = 'h0'\nto = 'a'\nrate = '80 Gb/s'"]
    lines += ["[[links]]\nfrom = 'h1'\nto = 'b'\nrate = '80 Gb/s'"]
    lines += ["[[links]]\nfrom = 'a'\nto = 'b'\nrate = '8 Gb/s'"] * 4
    rest = "\n".join(lines) + "\n[[workload]]\nsize_bytes = 409_600\n"
    own = scenario("topology = 'file'", rest)
    for paths, at_once in ((64, 4), (2, 2), (1, 1)):
        changed = own.changed({"hosts.paths": paths})
        hosts = changed.keys["hosts"]
        (one, _) = ideal.ideal_ns(changed.network, changed.work.transfers, hosts)
        # 100 packets, of which each link sends its part, and two hops at 10 GB/s.
        assert one == 100 / at_once * 4_160 + 2 * 416 + 3 * 1_000


def test_ideal__the_best_route_counts() -> None:
    """Here the faster first link leads to the slower second one."""
    lines = ["[[nodes]]\nname = 'h'\nkind = 'host'\ncount = 2", "[[nodes]]\nname = 's'\ncount = 4"]
    for one, other, delay_ns in (
        *(("h0", "s0", 1), ("s0", "s1", 10), ("s1", "s3", 1_000)),
        *(("s0", "s2", 300), ("s2", "s3", 300), ("s3", "h1", 1)),
    ):
        lines.append(f"[[links]]\nfrom = '{one}'\nto = '{other}'\ndelay_ns = {delay_ns}")
    rest = "\n".join(lines) + "\n[[workload]]\nsize_bytes = 4_096\n"
    own = scenario("topology = 'file'", rest)
    for paths in (1, 64):
        hosts = own.keys["hosts"] | {"paths": paths}
        (one, _) = ideal.ideal_ns(own.network, own.work.transfers, hosts)
        assert one == int(4 * 332.8 + 602)


def test_ideal__slow_links_of_different_hops_limit_it_together() -> None:
    """One route begins with a slow link, the other ends with one."""
    lines = ["[[nodes]]\nname = 'h'\nkind = 'host'\ncount = 2", "[[nodes]]\nname = 's'\ncount = 4"]
    for one, other, rate in (
        *(("h0", "s0", 80), ("s0", "s1", 8), ("s1", "s3", 80)),
        *(("s0", "s2", 80), ("s2", "s3", 8), ("s3", "h1", 80)),
    ):
        lines.append(f"[[links]]\nfrom = '{one}'\nto = '{other}'\nrate = '{rate} Gb/s'")
    rest = "\n".join(lines) + "\n[[workload]]\nsize_bytes = 409_600\n"
    own = scenario("topology = 'file'", rest)
    (one_way, _) = ideal.ideal_ns(own.network, own.work.transfers, own.keys["hosts"])
    # 50 packets on each, of 4,160 ns, and at least two hops of 416 ns and four delays.
    assert 50 * 4_160 + 2 * 416 + 4_000 <= one_way <= 51 * 4_160 + 3 * 416 + 4_000


def test_ideal__equal_links_that_are_unevenly_joined_limit_it_together() -> None:
    """Each hop has four slow links, but of each half of them only one leads on."""
    lines = ["[[nodes]]\nname = 'h'\nkind = 'host'\ncount = 2", "[[nodes]]\nname = 's'\ncount = 4"]
    for one, other, rate, many in (
        *(("h0", "s0", 80, 1), ("s0", "s1", 8, 3), ("s1", "s3", 8, 1)),
        *(("s0", "s2", 8, 1), ("s2", "s3", 8, 3), ("s3", "h1", 80, 1)),
    ):
        link = f"[[links]]\nfrom = '{one}'\nto = '{other}'\nrate = '{rate} Gb/s'"
        lines += [link] * many
    rest = "\n".join(lines) + "\n[[workload]]\nsize_bytes = 409_600\n"
    own = scenario("topology = 'file'", rest)
    (one_way, _) = ideal.ideal_ns(own.network, own.work.transfers, own.keys["hosts"])
    assert 50 * 4_160 + 4_000 <= one_way <= 52 * 4_160 + 4_000


def test_ideal__counts_the_highest_rate_of_a_link() -> None:
    event = "[[events]]\nlink = 'host0-leaf0'\nat_ns = 10\nrate = '{}'\n"
    shape_of = "hosts = 2\nhosts_per_leaf = 2\nspines = 1\nrate = '8 Gb/s'"
    fct_ns = []
    for rate in ("4 Gb/s", "16 Gb/s"):
        own = scenario(shape_of, event.format(rate) + "[[workload]]\nsize_bytes = 936\n")
        hosts = own.keys["hosts"]
        fct_ns.append(ideal.ideal_ns(own.network, own.work.transfers, hosts, own.changes).tolist())
    assert fct_ns == [[4_000, 4_000], [3_500, 3_500]]


def test_ideal__of_many_transfers_is_that_of_each() -> None:
    own = scenario("tiers = 3\nhosts = 64\nradix = 8\nspines = 2\nuplink_rate = '30 Gb/s'")
    chance = np.random.default_rng(1)
    rows = np.zeros(500, TRANSFER)
    rows["from"] = chance.integers(0, 64, 500)
    rows["to"] = (rows["from"] + chance.integers(1, 64, 500)) % 64
    rows["bytes"] = chance.integers(0, 100_000, 500)
    hosts = own.keys["hosts"]
    together = ideal.ideal_ns(own.network, rows, hosts)
    each = [ideal.ideal_ns(own.network, rows[at : at + 1], hosts)[0] for at in range(500)]
    assert together.tolist() == each
    assert ideal.ideal_ns(own.network, rows[:0], hosts).tolist() == []


@pytest.mark.parametrize("hosts", [(0, 3), (3, 0)])
def test_ways__a_host_with_a_near_and_a_far_switch(hosts: tuple[int, int]) -> None:
    """Routes of two lengths: every hop counts the shorter ones with their last link."""
    lines = ["[[nodes]]\nname = 'h'\nkind = 'host'\ncount = 4", "[[nodes]]\nname = 's'\ncount = 3"]
    pairs = [("h0", "s0"), ("h0", "s2"), ("s0", "s1"), ("s1", "s2"), ("h3", "s2"), ("h1", "s1")]
    lines += [f"[[links]]\nfrom = '{one}'\nto = '{other}'" for one, other in [*pairs, ("h2", "s0")]]
    own = scenario("topology = 'file'", "\n".join(lines) + "\n[[workload]]\n")
    ways = Finder(own.network).ways(*hosts)
    if hosts == (0, 3):
        assert sorted(len(route) for route in ways.routes) == [2, 4]
        assert [sum(count for _, count in hop) for hop in ways.hops] == [2, 2, 2, 1]
    else:
        assert [len(route) for route in ways.routes] == [2]
