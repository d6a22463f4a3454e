"""Tests the ports, routes and names of networks of every topology."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.sim.support import needs_fabric, network, scenario, ways
from transport.sim import ScenarioError, Simulation
from transport.sim.network import Network

ROOT = Path(__file__).resolve().parents[2]


def check_whole(net: Network) -> None:
    """Checks properties that every network must have."""
    assert (np.diff(net.ports["from"].astype(np.int64)) >= 0).all()
    assert len(net.node_names) == len(set(net.node_names)) == net.hosts + net.switches
    assert net.route.shape[0] == net.switches
    assert net.group_of.max() == net.groups - 1  # the last group has a host
    assert net.route.max(initial=-1) < len(net.set_begin) - 1
    back = {(int(p["from"]), int(p["to"])) for p in net.ports}
    assert all((b, a) in back for a, b in back), "a link of one direction"
    assert (net.ports["mark_full_bytes"][net.ports["from"] < net.hosts] == 0).all()


@settings(max_examples=40, deadline=None)
@given(
    hosts=st.integers(2, 40),
    per_leaf=st.integers(1, 9),
    spines=st.integers(1, 6),
    planes=st.integers(1, 3),
)
def test_network__trees_of_two_tiers_reach_all_by_every_spine(
    hosts: int, per_leaf: int, spines: int, planes: int
) -> None:
    text = f'topology = "multi_plane"\nhosts = {hosts}\nhosts_per_leaf = {per_leaf}\n'
    net = network(text + f"spines = {spines}\nplanes = {planes}")
    check_whole(net)
    leaves = -(-hosts // per_leaf)
    assert len(net.ports) == 2 * planes * (hosts + leaves * spines)
    assert net.switches == planes * (leaves + spines)
    for one, other in {(0, hosts - 1), (hosts - 1, 0), (hosts // 2, 0)}:
        if one == other:
            continue
        near = one // per_leaf == other // per_leaf
        assert len(ways(net, one, other)) == planes * (1 if near else spines)


@settings(max_examples=30, deadline=None)
@given(
    pods=st.integers(1, 4),
    per_pod=st.integers(1, 3),
    per_leaf=st.integers(1, 4),
    spines=st.integers(1, 3),
    each=st.integers(1, 3),
)
def test_network__three_tiers(
    pods: int, per_pod: int, per_leaf: int, spines: int, each: int
) -> None:
    hosts = pods * per_pod * per_leaf
    if hosts < 2:
        return
    text = f"tiers = 3\nhosts = {hosts}\nhosts_per_leaf = {per_leaf}\npods = {pods}\n"
    net = network(text + f"spines = {spines}\ncores = {spines * each}")
    check_whole(net)
    assert net.switches == pods * (per_pod + spines) + spines * each
    for one, other in product({0, hosts // 2}, {hosts - 1, 0}):
        if one == other:
            continue
        leaf, target = one // per_leaf, other // per_leaf
        pod, wanted = leaf // per_pod, target // per_pod
        count = 1 if leaf == target else spines if pod == wanted else spines * each
        assert len(ways(net, one, other)) == count


@pytest.mark.parametrize(
    ("text", "switches", "ports"),
    [
        ("hosts = 128", 16 + 8, 2 * (128 + 128)),
        ("hosts = 1_024\ntiers = 3", 128 + 128 + 64, 2 * 3 * 1_024),
        ("hosts = 128\nradix = 8\ntiers = 3", 32 + 32 + 16, 2 * 3 * 128),
    ],
)
def test_network__the_radix_decides_where_nothing_else_does(
    text: str, switches: int, ports: int
) -> None:
    net = network(text)
    assert (net.switches, len(net.ports)) == (switches, ports)


@pytest.mark.parametrize("share", [0.5, 1, 2, 4])
def test_network__oversubscription_is_rate_in_over_rate_out(share: float) -> None:
    for more in ("", "spines = 3\n", 'uplink_rate = "200 Gb/s"\n'):
        net = network(f"hosts = 64\nhosts_per_leaf = 16\noversubscription = {share}\n{more}")
        tiers = net.tier_ports
        into = net.ports["bytes_per_s"][tiers["host>leaf"]].sum()
        out = net.ports["bytes_per_s"][tiers["leaf>spine"]].sum()
        assert into / out == pytest.approx(share)


def test_network__sixteen_thousand_hosts_take_no_time_to_lay_out() -> None:
    net = network("hosts = 16_384\ntiers = 3")
    assert net.hosts == 16_384
    assert len(ways(net, 0, 16_383)) == 32 * 32


def test_network__rails() -> None:
    net = network('topology = "rail"\nhosts = 32\nrails = 4\nhosts_per_leaf = 4\nspines = 2')
    check_whole(net)
    # 8 leaves (two groups of four servers, a leaf per rail), 2 spines.
    assert net.switches == 8 + 2
    assert net.group_of[[0, 4, 8, 12]].tolist() == [net.group_of[0]] * 4
    assert len(ways(net, 0, 4)) == 1  # same rail, same leaf
    assert len(ways(net, 0, 16)) == 2  # same rail, another leaf
    assert len(ways(net, 0, 1)) == 2  # another rail of the same server


def test_network__a_dumbbell_has_one_way() -> None:
    net = network('topology = "dumbbell"\nhosts = 7\nuplink_rate = "10 Gb/s"')
    check_whole(net)
    (way,) = ways(net, 0, 6)
    assert net.ports["bytes_per_s"][list(way)].tolist() == [
        12_500_000_000,
        1_250_000_000,
        12_500_000_000,
    ]
    assert len(way) == 3
    assert len(next(iter(ways(net, 0, 3)))) == 2


def test_network__a_lab_is_the_same_network() -> None:
    folder = ROOT / "examples" / "labs"
    net = network('topology = "lab"\nlab = "gpus_uneven.toml"', folder=folder)
    check_whole(net)
    assert len(ways(net, 0, 1)) == 4
    (port,) = net.find_ports("leaf0>spine0")
    assert net.ports["bytes_per_s"][port] == 250_000_000
    assert net.notes
    lossy = network('topology = "lab"\nlab = "gpus_lossy.toml"', folder=folder)
    assert set(lossy.ports["loss"].round(6).tolist()) == {0.0, 0.0005}


def test_network__what_a_simulator_cannot_do_is_said(tmp_path: Path) -> None:
    (tmp_path / "bursts.toml").write_text("[uplinks]\nburst_enter = 0.1\n")
    with pytest.raises(ScenarioError, match="has burst loss, which is not simulated"):
        _ = network('topology = "lab"\nlab = "bursts.toml"', folder=tmp_path)


GRAPH = """
[[nodes]]
name = "gpu"
kind = "host"
count = 4
[[nodes]]
name = "left"
[[nodes]]
name = "right"
[[nodes]]
name = "detour"
[[links]]
from = "gpu0"
to = "left"
[[links]]
from = "gpu1"
to = "left"
[[links]]
from = "gpu2"
to = "right"
[[links]]
from = "gpu3"
to = "right"
[[links]]
from = "left"
to = "right"
rate = "40 Gb/s"
[[links]]
from = "left"
to = "right"
rate = "40 Gb/s"
[[links]]
from = "left"
to = "detour"
[[links]]
from = "detour"
to = "right"
"""


def test_network__a_graph_of_any_shape_goes_the_shortest_ways() -> None:
    net = network('topology = "file"', GRAPH)
    check_whole(net)
    assert net.node_names[:4] == ["gpu0", "gpu1", "gpu2", "gpu3"]
    assert len(ways(net, 0, 3)) == 2  # over the two parallel links, not the detour
    assert len(net.find_ports("left-right")) == 4


def test_network__links_are_found_by_name() -> None:
    net = network("hosts = 8\nhosts_per_leaf = 4\nspines = 2")
    assert [net.port_name(p) for p in net.find_ports("leaf0-spine1")] == [
        *("leaf0>spine1", "spine1>leaf0"),
    ]
    assert [net.port_name(p) for p in net.find_ports("spine1>leaf0")] == ["spine1>leaf0"]
    assert len(net.find_ports("leaf*-spine*")) == 8
    assert len(net.find_ports("leaf*>spine*")) == 4
    assert net.find_ports("leaf0-host0").size == 2
    assert net.find_ports("leaf0-leaf1").size == 0


def test_network__traffic_that_has_no_way_is_named() -> None:
    cut = GRAPH.replace('from = "left"\nto = "right"', 'from = "left"\nto = "detour"').replace(
        '[[links]]\nfrom = "detour"\nto = "right"\n', ""
    )
    with pytest.raises(ScenarioError, match=r"workload\.0.*no route from .* to gpu"):
        scenario('topology = "file"', cut + '[[workload]]\npattern = "incast"\n').check()


def test_network__tiers_come_on_the_way_from_host_to_host() -> None:
    net = network("hosts = 16\ntiers = 3")
    assert list(net.tier_ports) == [
        *("host>leaf", "leaf>spine", "spine>core", "core>spine", "spine>leaf", "leaf>host"),
    ]


def test_lab__hosts_may_have_queues_that_hold_nobody_back() -> None:
    lab = f'topology = "lab"\nlab = "{ROOT / "examples" / "labs" / "slow_hosts.toml"}"\n'
    plain, real = network(lab), network(lab + "host_queues = true")
    check_whole(real)
    assert real.switches == plain.switches + plain.hosts
    (own,) = real.find_ports("device0>leaf0")
    (back,) = real.find_ports("leaf0>device0")
    assert real.ports["queue_bytes_max"][own] == 4_194_304
    assert real.ports["mark_full_bytes"][[own, back]].tolist() == [0, 65_536]
    assert len(ways(real, 0, 5)) == len(ways(plain, 0, 5)) == 3


@needs_fabric
@pytest.mark.parametrize("planes", [1, 2, 3, 4])
def test_network__pinned_paths_use_each_route_once(planes: int) -> None:
    """Path p takes the same plane and spine between any two hosts of different leaves."""
    shape = 'topology = "multi_plane"\nhosts = 6\nhosts_per_leaf = 2\nspines = 4\n'
    shape += f"planes = {planes}\n"
    made = scenario(shape + 'ecmp = "even"\n', "[[workload]]\nsize_bytes = 1\n")
    ends = [(one, other, path) for one, other in ((0, 2), (1, 5)) for path in range(4 * planes)]
    rows = Simulation(made).plan.routes(np.array(ends, np.uint32)).tolist()
    tiers, names = made.network.tiers, made.network.port_name
    spines = [
        [names(port).split(">")[1] for port in row if port >= 0 and tiers[port] == "leaf>spine"]
        for row in rows
    ]
    first, second = spines[: 4 * planes], spines[4 * planes :]
    assert first == second
    assert len({spine for (spine,) in first}) == 4 * planes
