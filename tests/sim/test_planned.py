"""Tests [[plans]]: wrong plans are refused in one line, and packets cross the planned links."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.sim.support import needs_fabric, scenario
from transport.plan import planfile
from transport.plan.assign import assign
from transport.sim import Scenario, ScenarioError, Simulation, planned, run
from transport.sim.result import Result

pytestmark = needs_fabric
NETWORK = "hosts = 16\nhosts_per_leaf = 4\nspines = 4"
WORK = """
[hosts]
paths = 4
[policies]
path = "round_robin"
[[workload]]
pattern = "all_reduce_ring"
size_bytes = "1 MB"
hosts = [0, 4, 8, 12, 1, 5, 9, 13]
"""


def made(folder: Path, rest: str = WORK, paths: int = 4) -> tuple[Scenario, Path]:
    """A scenario without a plan, and the file of a plan for it."""
    own = scenario(NETWORK, rest, folder)
    routes = planned.routes_of(own.network, own.work, Simulation(own).plan)
    found = assign(routes, planned.demand_of(own.network, own.work), paths=paths)
    file = folder / "plan.json"
    planfile.write(planfile.Plan(routes.fingerprint(), {"job": found.pairs}), file)
    return own, file


def with_plan(own: Scenario, **keys: Any) -> Scenario:
    return own.changed({"plans": [{"file": "plan.json", **keys}]})


def edited(file: Path, change: Any) -> None:
    found = json.loads(file.read_text())
    change(found)
    file.write_text(json.dumps(found))


def crossed(result: Result) -> dict[str, int]:
    """The data packets over each link."""
    network = result.scenario.network
    names = [network.port_name(port) for port in range(len(network.ports))]
    return dict(zip(names, result.ports["data_packets"].tolist(), strict=True))


def test_plans__packets_cross_the_links_of_the_plan_and_no_others(tmp_path: Path) -> None:
    own, file = made(tmp_path)
    result = run(with_plan(own), trace_ns=1_000_000)
    assert result.good
    assert result.traced is not None
    rows = result.traced.transfers
    wanted: dict[str, int] = dict.fromkeys(crossed(result), 0)
    names = own.network.node_names
    pairs = {(one.source, one.target): one for one in planfile.read(file).jobs["job"]}
    for transfer, sent in zip(own.work.transfers, rows["by_path"], strict=True):
        pair = pairs[names[transfer["from"]], names[transfer["to"]]]
        for path, links in enumerate(pair.links):
            for link in links:
                wanted[link] += int(sent[path])
    assert crossed(result) == wanted


def test_plans__make_uplinks_even(tmp_path: Path) -> None:
    own, _ = made(tmp_path)

    def uneven(one: Scenario) -> float:
        up = [count for name, count in crossed(run(one)).items() if name.startswith("leaf")]
        used = [count for count in up if count]
        return max(used) / (sum(used) / len(used))

    assert uneven(with_plan(own)) < uneven(own)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 40), which=st.randoms(use_true_random=False))
def test_plans__any_choice_of_links_is_followed_with_any_seed(
    tmp_path: Path, seed: int, which: Any
) -> None:
    own, file = made(tmp_path)

    def shuffle(found: dict[str, Any]) -> None:
        for row in found["jobs"]["job"]:
            order = [which.randrange(4) for _ in row["paths"]]
            row["links"] = [row["links"][at] for at in order]

    edited(file, shuffle)
    other = with_plan(own).changed({"seed": seed})
    simulation = Simulation(other)
    taken = simulation.plan.routes(other.plans[0].ends.astype(np.uint32))
    names = [own.network.port_name(port) for port in range(len(own.network.ports))]
    pairs = {(one.source, one.target): one for one in planfile.read(file).jobs["job"]}
    nodes = own.network.node_names
    for (source, target, path), ports in zip(other.plans[0].ends.tolist(), taken, strict=True):
        links = tuple(names[port] for port in ports.tolist() if port >= 0)
        assert links == pairs[nodes[source], nodes[target]].links[path]


def test_plans__a_later_plan_moves_the_traffic(tmp_path: Path) -> None:
    own, _ = made(tmp_path)
    routes = planned.routes_of(own.network, own.work, Simulation(own).plan)
    demand = planned.demand_of(own.network, own.work)
    avoiding = assign(routes, demand, paths=4, avoid=["leaf0-spine1"])
    later = planfile.Plan(routes.fingerprint(), {"job": avoiding.pairs})
    planfile.write(later, tmp_path / "later.json")
    rows = [{"file": "plan.json"}, {"file": "later.json", "at_ns": "20 us"}]
    before, both = run(with_plan(own)), run(own.changed({"plans": rows}))
    only = run(own.changed({"plans": [{"file": "later.json"}]}))
    counts = [crossed(one)["leaf0>spine1"] for one in (before, both, only)]
    assert counts[0] > counts[1] > counts[2] == 0
    assert both.good


def test_plans__threads_change_nothing_and_plans_change_the_fingerprint(tmp_path: Path) -> None:
    own, file = made(tmp_path)
    one = run(with_plan(own))
    assert run(with_plan(own), threads=2).fingerprint == one.fingerprint
    assert run(own).fingerprint != one.fingerprint
    content = with_plan(own).content()
    file.write_text(file.read_text() + "\n")
    assert with_plan(own).content() != content
    assert '"plans"' not in own.content()


def drop_pair(found: dict[str, Any]) -> None:
    found["jobs"]["job"] = [
        row for row in found["jobs"]["job"] if (row["from"], row["to"]) != ("host0", "host4")
    ]


def rename_link(found: dict[str, Any]) -> None:
    found["links"] = ["leaf0>spine9" if one == "leaf0>spine1" else one for one in found["links"]]


def turn_back(found: dict[str, Any]) -> None:
    found["jobs"]["job"][0]["links"][0].reverse()


def lengthen(found: dict[str, Any]) -> None:
    links = found["jobs"]["job"][0]["links"][0]
    links += [links[-1]] * (9 - len(links))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda found: found.update(fabric="elsewhere"),
            r"plans.0.file: plan.json is a plan for the fabric elsewhere, and this network is ",
        ),
        (drop_pair, r"plans.0.file: plan.json has no paths from host0 to host4, which a workload"),
        (
            rename_link,
            r"plans.0.file: plan.json names the link leaf0>spine9 from host0 to host\d+, which t",
        ),
        (
            lengthen,
            r"plans.0.file: plan.json names 9 links from host0 to host\d+, and a path has 8 at",
        ),
        (turn_back, r"plans.0.file: no hash takes the links of path 0 from host0 to host"),
        (lambda found: found.update(weft_plan=9), r"plans.0.file: .*plan.json is plan version 9"),
        (
            lambda found: found["jobs"].update(other=found["jobs"]["job"]),
            r"plans.0.job: two jobs of the plan send from host0 to host\d+: name one of them",
        ),
    ],
)
def test_plans__that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, change: Any, said: str
) -> None:
    own, file = made(tmp_path)
    edited(file, change)
    with pytest.raises(ScenarioError, match=said) as caught:
        Simulation(with_plan(own))
    assert "\n" not in str(caught.value)


def test_plans__wrong_keys_are_refused(tmp_path: Path) -> None:
    own, _ = made(tmp_path)
    with pytest.raises(ScenarioError, match=r"plans.0.job: 'x': the plan has no such job; it has"):
        with_plan(own, job="x").check()
    with pytest.raises(ScenarioError, match=r"plans.0.file: missing: name a plan"):
        own.changed({"plans": [{}]}).check()
    with pytest.raises(ScenarioError, match=r"plans.0.file: .*No such file"):
        own.changed({"plans": [{"file": "none.json"}]}).check()
    with pytest.raises(ScenarioError, match=r"has 4 paths from host0 to host\d+, and hosts.paths"):
        with_plan(own).changed({"hosts.paths": 8}).check()
