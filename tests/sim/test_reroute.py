"""Routes that switches use after links have died: which are left, and when they are used."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from transport.sim import ScenarioError, run
from transport.sim.events import CHANGE
from transport.sim.network import Array, Network
from transport.sim.reroute import Tables, tables

from .support import needs_fabric, scenario

LEAVES = "hosts = 4\nhosts_per_leaf = 1\nspines = 2\n"
TIERS = "hosts = 16\ntiers = 3\nradix = 4\n"
TRAFFIC = '[[workload]]\npattern = "permutation"\nsize_bytes = 2_000_000\n'
ONE_PATH = '[hosts]\npaths = 1\npeer_silence_ns = "1 s"\n'
DOWN = '[[events]]\nat_ns = 20_000\nlink = "leaf0-spine0"\n'


def network(shape: str) -> Network:
    return scenario(shape, TRAFFIC).network


def change(network: Network, link: str, at_ns: int, up: int) -> Array:
    ports = network.find_ports(link)
    made = np.zeros(len(ports), CHANGE)
    made["at_ns"], made["port"], made["up"] = at_ns, ports, up
    made["bytes_per_s"], made["loss"] = -1, -1.0
    return made


def names(network: Network, found: Tables, table: int, switch: str, host: int) -> set[str]:
    """The ports through which a switch reaches a host."""
    at = network.node_names.index(switch) - network.hosts
    number = found.route[table, at, network.group_of[host]]
    if number < 0:
        return set()
    ports = found.set_ports[found.set_begin[number] : found.set_begin[number + 1]]
    return {network.port_name(int(port)) for port in ports}


def test_tables__leave_out_the_link_and_what_leads_to_it_until_it_is_back() -> None:
    own = network(LEAVES)
    changes = np.concatenate(
        [change(own, "leaf0-spine0", 1_000, 0), change(own, "leaf0-spine0", 5_000, 1)]
    )
    found = tables(own, changes, 300)
    assert found.at_ns.tolist() == [1_300, 5_300]
    both = {"leaf0>spine0", "leaf0>spine1"}
    for table, left in ((0, both), (1, {"leaf0>spine1"}), (2, both)):
        assert names(own, found, table, "leaf0", 3) == left
    assert names(own, found, 1, "leaf2", 0) == {"leaf2>spine1"}  # spine0 has no way down to leaf0
    assert names(own, found, 1, "leaf2", 1) == {"leaf2>spine0", "leaf2>spine1"}
    assert names(own, found, 1, "spine0", 0) == set()


def test_tables__one_direction_of_a_link_may_die() -> None:
    own = network(LEAVES)
    found = tables(own, change(own, "spine0>leaf0", 0, 0), 0)
    assert names(own, found, 1, "leaf0", 3) == {"leaf0>spine0", "leaf0>spine1"}
    assert names(own, found, 1, "leaf2", 0) == {"leaf2>spine1"}


def test_tables__links_of_hosts_and_other_changes_make_none() -> None:
    own = network(LEAVES)
    slow = change(own, "leaf0-spine0", 10, -1)
    slow["bytes_per_s"] = 1_000_000
    both = np.concatenate([slow, change(own, "host0-leaf0", 20, 0)])
    found = tables(own, both, 100)
    assert found.at_ns.size == 0
    assert (found.route == own.route).all()
    assert tables(own, change(own, "leaf0-spine0", 10, 0), None).at_ns.size == 0


def test_tables__what_is_learned_after_the_longest_run_makes_none() -> None:
    own = network(LEAVES)
    both = [change(own, "leaf0-spine0", at_ns, up) for at_ns, up in ((0, 0), (10**15, 1))]
    assert tables(own, np.concatenate(both), 10**15).at_ns.tolist() == [10**15]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_tables__have_a_route_exactly_where_one_is_left(data: st.DataObject) -> None:
    """Each port of each table leads, by ports that are up, to a leaf of the hosts it is for."""
    own = network(data.draw(st.sampled_from((LEAVES, TIERS))))
    inner = (own.ports["from"] >= own.hosts) & (own.ports["to"] >= own.hosts)
    down = data.draw(st.sets(st.sampled_from(np.flatnonzero(inner).tolist()), max_size=12))
    changes = np.zeros(len(down), CHANGE)
    changes["port"], changes["up"] = sorted(down), 0
    changes["bytes_per_s"], changes["loss"] = -1, -1.0
    found = tables(own, changes, 7)
    table = len(found.at_ns)
    leaves = {
        group: {
            int(own.ports["to"][port])
            for host in np.flatnonzero(own.group_of == group)
            for port in range(own.first_port[host], own.first_port[host + 1])
        }
        for group in range(own.groups)
    }

    def reaches(node: int, group: int) -> bool:
        """Whether a route of the first table is left, by trying all."""
        if node in leaves[group]:
            return True
        number = int(own.route[node - own.hosts, group])
        return number >= 0 and any(
            int(port) not in down and reaches(int(own.ports["to"][port]), group)
            for port in own.set_of(number)
        )

    for switch in range(own.hosts, own.hosts + own.switches):
        for group in range(own.groups):
            number = int(found.route[table, switch - own.hosts, group])
            if switch in leaves[group]:
                continue
            assert (number >= 0) == reaches(switch, group)
            if number < 0:
                continue
            ports = found.set_ports[found.set_begin[number] : found.set_begin[number + 1]]
            before = int(own.route[switch - own.hosts, group])
            want = {
                int(port)
                for port in own.set_of(before)
                if int(port) not in down and reaches(int(own.ports["to"][port]), group)
            }
            assert set(ports.tolist()) == want


@needs_fabric
@pytest.mark.parametrize("threads", [1, 2])
def test_run__a_flow_of_one_path_goes_on_when_switches_know_and_not_before(threads: int) -> None:
    """Each link of leaf0 carries a flow; the one of the dead link waits for the routes."""
    made = scenario(LEAVES, ONE_PATH + DOWN + "up = false\n" + TRAFFIC)
    dead = run(made, threads=threads)
    assert not dead.finished
    for reroute_ns in (100_000, 3_000_000):
        found = run(made, changes={"network.reroute_ns": reroute_ns}, threads=threads)
        assert found.finished
        assert found.summary()["completion_ns"] > 20_000 + reroute_ns


@needs_fabric
def test_run__routes_do_not_depend_on_threads_and_runs_without_changes_stay_as_they_were() -> None:
    made = scenario(LEAVES, DOWN + "up = false\n" + TRAFFIC)
    changes = {"network.reroute_ns": 50_000}
    one, two = (run(made, changes=changes, threads=threads) for threads in (1, 2))
    assert one.fingerprint == two.fingerprint
    calm = scenario(LEAVES, TRAFFIC)
    assert run(calm).totals["fingerprint"] == run(calm, changes=changes).totals["fingerprint"]
    assert calm.content() != calm.changed(changes).content()


def test_scenario__links_that_change_too_often_are_refused() -> None:
    flapping = DOWN.replace("20_000", "0") + "until_ns = 10_000_000\nflap_ns = 5_000\n"
    made = scenario(LEAVES, flapping + TRAFFIC)
    with pytest.raises(ScenarioError, match=r"reroute_ns.*4,000 times: at most 1,024"):
        made.changed({"network.reroute_ns": 1_000}).check()
