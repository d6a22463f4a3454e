"""Tests the choice of a job's first port, when more ports were probed than it will have."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.plan.support import clos
from transport.cli import weft
from transport.plan.assign import AssignError, assign
from transport.plan.bases import assign_ports, bases_of, narrowed
from transport.plan.planfile import Plan
from transport.plan.routes import Routes

PATHS, RANGES, FIRST = 4, 16, 20_000
RING = {(f"host{at}", f"host{(at + 1) % 4}"): 10**9 for at in range(4)}


def probed(seed: int) -> Routes:
    """Four hosts over four spines; each range of four ports has its 16 pairs."""
    routes = clos(4, 1, 4, PATHS * PATHS * RANGES, seed)
    ports = {}
    for source, target, path in routes.of:
        turn, pair = divmod(path, PATHS * PATHS)
        first = FIRST + turn * PATHS
        ports[source, target, path] = first + pair // PATHS, first + pair % PATHS
    return replace(routes, ports=ports)


@pytest.mark.parametrize("seed", range(8))
def test_assign_ports__few_ports_of_many_carry_what_the_links_can(seed: int) -> None:
    routes = probed(seed)
    base, made = assign_ports(routes, RING, paths=PATHS)
    each = [
        assign(narrowed(routes, one, PATHS), RING, paths=PATHS).busiest_bytes
        for one in bases_of(routes, PATHS)
    ]
    assert made.busiest_bytes == min(each)
    assert base == FIRST + PATHS * each.index(min(each))
    assert made.busiest_bytes < 0.26e9  # a path of each connection on every uplink
    for pair in made.pairs:
        assert all(base <= port < base + PATHS for ports in pair.ports for port in ports)


def test_assign_ports__takes_them_all_if_there_are_no_more() -> None:
    routes = narrowed(probed(1), FIRST + 8, PATHS)
    base, made = assign_ports(routes, RING, paths=PATHS)
    assert base == FIRST + 8
    assert made.pairs == assign(routes, RING, paths=PATHS).pairs
    bare = replace(routes, ports={})
    assert assign_ports(bare, RING, paths=PATHS)[0] is None


def test_assign_ports__ranges_that_lack_a_pair_are_passed_over() -> None:
    routes = probed(2)
    gone = {
        key: way
        for key, way in routes.of.items()
        if key[:2] != ("host0", "host1") or key[2] >= 5 * PATHS * PATHS
    }
    ports = {key: routes.ports[key] for key in gone}
    base, _ = assign_ports(replace(routes, of=gone, ports=ports), RING, paths=PATHS)
    assert base is not None
    assert base >= FIRST + 5 * PATHS
    none = {key: way for key, way in gone.items() if key[:2] != ("host0", "host1")}
    with pytest.raises(AssignError, match="no way from host0 to host1"):
        assign_ports(replace(routes, of=none, ports=ports), RING, paths=PATHS)


def test_assign_ports__other_jobs_keep_their_ports() -> None:
    routes = probed(4)
    first, made = assign_ports(routes, RING, paths=PATHS)
    plan = Plan("fabric", {"a": made.pairs})
    other, again = assign_ports(routes, RING, paths=PATHS, taken=plan.ports())
    assert other != first
    assert not again.notes
    assert assign_ports(routes, RING, paths=PATHS, taken=plan.ports(without="a"))[0] == first
    every = {
        (address, port)
        for address in routes.addresses.values()
        for port in range(FIRST, FIRST + PATHS * RANGES)
    }
    again = assign_ports(routes, RING, paths=PATHS, taken=every)[1]
    assert "probe more --ranges" in again.notes[-1]
    alone = narrowed(probed(1), FIRST + 8, PATHS)
    first, made = assign_ports(alone, RING, paths=PATHS)
    taken = Plan("fabric", {"a": made.pairs}).ports()
    assert assign_ports(alone, RING, paths=PATHS, taken=taken)[1].notes[-1] == again.notes[-1]


def moved(routes: Routes, by: dict[str, int]) -> Routes:
    """The routes with the ports of some hosts moved."""
    ports = {
        (source, target, path): (near + by.get(source, 0), far + by.get(target, 0))
        for (source, target, path), (near, far) in routes.ports.items()
    }
    return replace(routes, ports=ports)


def test_assign_ports__hosts_may_have_ports_of_their_own() -> None:
    few = narrowed(probed(1), FIRST, PATHS)
    own = moved(few, {"host1": 1_000, "host3": 1_000})
    base, made = assign_ports(own, RING, paths=PATHS)
    assert base is None
    assert made.busiest_bytes == assign(few, RING, paths=PATHS).busiest_bytes
    with pytest.raises(AssignError, match="hosts were probed with different ports"):
        assign_ports(moved(probed(1), {"host1": 1_000}), RING, paths=PATHS)


def test_assign_ports__a_job_has_ports_next_to_each_other() -> None:
    routes = probed(1)
    apart = {
        key: (near + 996 * (near >= FIRST + PATHS), far + 996 * (far >= FIRST + PATHS))
        for key, (near, far) in routes.ports.items()
        if near < FIRST + 2 * PATHS and far < FIRST + 2 * PATHS
    }
    gap = replace(routes, of={key: routes.of[key] for key in apart}, ports=apart)
    with pytest.raises(AssignError, match="not next to each other: weft plan probe --ports 8"):
        assign_ports(gap, RING, paths=8)
    with pytest.raises(AssignError, match="no 5 ports next to each other were probed"):
        assign_ports(gap, RING, paths=5)


def test_bases__are_whole_ranges() -> None:
    def of(*every: int) -> Routes:
        return Routes((), {}, {("a", "b", at): (port, port) for at, port in enumerate(every)})

    assert bases_of(of(), 4) == []
    assert bases_of(of(1, 2, 3), 4) == []
    assert bases_of(of(1, 2, 3, 4, 6, 7, 8, 9, 10), 4) == [1, 6]


def test_command__says_how_to_run_the_job(tmp_path: Path) -> None:
    routes, plan = tmp_path / "routes.json", tmp_path / "plan.json"
    probed(3).write(routes)
    words = [
        "plan",
        "assign",
        str(routes),
        "--ring",
        "host0,host1,host2,host3",
        "--paths",
        "4",
        "--plan",
        str(plan),
    ]
    done = CliRunner().invoke(weft, words)
    assert done.exit_code == 0, done.output
    said = json.loads(CliRunner().invoke(weft, [*words, "--json", "-"]).stdout)
    assert f"WEFT_PORT_BASE={said['port_base']} WEFT_PATHS=4 WEFT_ENGINES=1" in done.output
    assert said["port_base"] in bases_of(probed(3), 4)
