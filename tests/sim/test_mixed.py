"""Tests scenarios whose workloads use different policies, and how their groups share a network."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from congestion.registry import find
from tests.sim.support import needs_fabric, scenario
from transport import native
from transport.cli import sim
from transport.errors import InvalidArgumentError
from transport.policies import fairness
from transport.policies.recording import Recording, parse
from transport.sim import Scenario, ScenarioError, Simulation, coexist, run, with_alone
from transport.sim.work import TRANSFER

pytestmark = needs_fabric

DUMBBELL = 'topology = "dumbbell"\nhosts = 8\nrate = "100 Gb/s"\nuplink_rate = "100 Gb/s"'
POOL = '[[workload]]\npattern = "permutation"\nsize_bytes = "400 kB"\nrepeats = 4\n'
TWO = f'{POOL}name = "a"\npolicies = {{ window = "dctcp" }}\n{POOL}name = "b"\n'
HALVES = POOL + 'mix = [{ share = 0.5, policies = { window = "dctcp" } }]\n'


def recorded(own: Scenario) -> tuple[Recording, Simulation]:
    simulation = Simulation(own, check=True)
    simulation.plan.recording_bytes_max = 1 << 27
    while simulation.step():
        pass
    fabric = simulation._fabric
    assert fabric is not None
    assert simulation.result().good, fabric.violation
    return parse(fabric.recording), simulation


def owners_of(
    simulation: Simulation,
) -> tuple[dict[int, str], dict[int, str], dict[int, str]]:
    """By owner in a recording: the window policy, path policy and credit policy it must have.

    Flows, and peers of each host, are numbered as connections are opened.
    """
    work, groups = simulation.scenario.work.transfers, simulation.groups
    flows: Counter[int] = Counter()
    peers: Counter[int] = Counter()
    known: set[tuple[int, int, str]] = set()
    window, path, credit = {}, {}, {}
    ends, first = np.unique(work[["from", "to", "stream"]], return_index=True)
    for (one, other, _), at in zip(ends.tolist(), first.tolist(), strict=True):
        mine = groups[simulation.group_of[at]].policies
        for host in (one, other):
            owner = host << 24 | flows[host]
            flows[host] += 1
            if host == one:
                window[owner] = mine["window"].partition(":")[0]
            else:
                credit[owner] = mine.get("credit", "none")
        pair = min(one, other), max(one, other), mine["path"]
        if pair in known:
            continue
        known.add(pair)
        for host in (one, other):
            path[host << 24 | peers[host]] = mine["path"]
            peers[host] += 1
    return window, path, credit


@pytest.mark.parametrize(
    "rest",
    [
        TWO,
        HALVES,
        POOL + 'mix = [{ hosts = "0-2", policies = { window = "dctcp", path = "reps" } }]\n',
        f'{POOL}policies = {{ path = "reps" }}\n{POOL}policies = {{ path = "oblivious" }}\n',
        f'{POOL}policies = {{ window = "cubic", loss = "selective", credit = "eqds" }}\n{TWO}',
    ],
)
def test_mixed__every_transfer_uses_its_policies(rest: str) -> None:
    recording, simulation = recorded(scenario(DUMBBELL, rest))
    assert len(simulation.groups) > 1
    window, path, credit = owners_of(simulation)
    seen = {step.owner: step.policy.name for step in recording.of("window")}
    for owner, name in window.items():
        assert seen.pop(owner) == name
    for step in recording.of("path"):
        assert path[step.owner] == step.policy.name
    assert {credit[step.owner] for step in recording.of("credit")} <= {"eqds"}
    wanted = {one for one, name in credit.items() if name != "none"}
    assert {step.owner for step in recording.of("credit")} == wanted
    policies = recording.policies()
    for family in ("window", "path", "loss"):
        texts = {group.policies[family] for group in simulation.groups}
        assert set(policies[family]) == texts


def test_mixed__parameters_are_those_of_the_group() -> None:
    texts = ("swift:decrease_max=0.3", "swift:decrease_max=0.4", "swift")
    rest = "".join(f'{POOL}policies = {{ window = "{one}" }}\n' for one in texts)
    recording, simulation = recorded(scenario(DUMBBELL, rest))
    assert [one.label for one in simulation.groups] == list(texts)
    fields = find("window", "swift").params
    seen = {
        round(float(np.frombuffer(step.policy.params, fields.dtype)["decrease_max"][0]), 6)
        for step in recording.of("window")
    }
    assert {0.3, 0.4} < seen
    assert len(seen) == 3


def test_mixed__a_run_is_a_function_of_the_scenario_and_the_seed() -> None:
    own = scenario(DUMBBELL, HALVES)
    prints = [run(own, threads=threads).fingerprint for threads in (1, 2, 1)]
    assert len(set(prints)) == 1
    assert run(own, seed=2).fingerprint != prints[0]
    other = own.changed({"workload.mix.policies.window": "cubic"})
    assert run(other).fingerprint != prints[0]


def test_mixed__shares_are_drawn_by_the_seed_and_add_up() -> None:
    rest = (
        '[[workload]]\npattern = "poisson"\nload = 0.3\nduration_ns = "300 us"\n'
        '[[workload.mix]]\nshare = 0.25\npolicies = { window = "dctcp" }\n'
        '[[workload.mix]]\nshare = 0.5\npolicies = { window = "cubic" }\n'
        '[[workload.mix]]\nhosts = "0-1"\npolicies = { window = "bbr" }\n'
    )
    own = scenario(DUMBBELL, rest)
    assert own.mix is not None
    windows = np.array([one.get("window", "") for one in own.mix.sets])[own.mix.of_transfer]
    begins = own.work.transfers["from"]
    assert set(windows[begins < 2]) == {"bbr"}
    left = windows[begins >= 2]
    count = len(left)
    assert abs((left == "dctcp").sum() - 0.25 * count) <= 1
    assert abs((left == "cubic").sum() - 0.5 * count) <= 1
    again = scenario(DUMBBELL, rest).mix
    assert again is not None
    assert (again.of_transfer == own.mix.of_transfer).all()


def test_mixed__one_policy_named_everywhere_is_the_scenarios() -> None:
    above, mine = '[policies]\nwindow = "dctcp"\n', 'policies = { window = "dctcp" }\n'
    once = scenario(DUMBBELL, above + POOL * 2)
    each = scenario(DUMBBELL, (POOL + mine) * 2)
    both = scenario(DUMBBELL, above + POOL + POOL + mine)
    prints = [run(one).fingerprint for one in (once, each, both)]
    assert len(set(prints)) == 1
    assert not run(each).is_mixed
    assert run(each).policies["window"] == "dctcp"
    assert run(each).coexistence == {}
    bare = scenario(DUMBBELL, POOL * 2)
    assert '"mix"' not in bare.content()
    assert '"policies":{}' in bare.content()


def test_mixed__options_replace_the_scenarios_policies_only() -> None:
    own = scenario(DUMBBELL, TWO)
    found = run(own, {"window": "cubic"})
    assert [one.label for one in found.groups] == ["dctcp", "cubic"]
    assert found.policies["window"] == "dctcp + cubic"
    each = scenario(DUMBBELL, (POOL + 'policies = { window = "dctcp" }\n') * 2)
    with pytest.raises(InvalidArgumentError, match="would be used by no transfer"):
        run(each, {"window": "cubic"})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('policies = { windo = "dctcp" }', "workload.0.policies.windo: no such policy family"),
        ("policies = { window = 3 }", "workload.0.policies.window: 3: expected text"),
        ('policies = "dctcp"', "workload.0.policies: 'dctcp': expected a table"),
        ("mix = [{ share = 0.5 }]", "workload.0.mix.0.policies: missing"),
        ('mix = [{ policies = { window = "dctcp" } }]', "give share or hosts; here are neither"),
        (
            'mix = [{ share = 0.5, hosts = "0-1", policies = { window = "dctcp" } }]',
            "give share or hosts; here are both",
        ),
        (
            'mix = [{ share = 1.5, policies = { window = "dctcp" } }]',
            "workload.0.mix.0.share: 1.5: expected a number from 0 to 1",
        ),
        (
            'mix = [{ share = 0.7, policies = { window = "dctcp" } }, '
            '{ share = 0.7, policies = { window = "cubic" } }]',
            "workload.0.mix.1.share: the shares of this mix add up to 1.4",
        ),
        (
            'mix = [{ hosts = "0-9", policies = { window = "dctcp" } }]',
            "workload.0.mix.0.hosts: 0-9: hosts are 0 to 7",
        ),
        (
            'hosts = "0-3"\nmix = [{ hosts = "6", policies = { window = "dctcp" } }]',
            "no connection of this workload is left that begins there",
        ),
        ("mix = [{ part = 0.5 }]", "a \\[\\[workload.mix\\]\\] has no such key"),
    ],
)
def test_mixed__a_wrong_key_is_named(line: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        scenario(DUMBBELL, f"{POOL}{line}\n").check()


def test_mixed__an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no window policy 'teleport'"):
        Simulation(scenario(DUMBBELL, f'{POOL}policies = {{ window = "teleport" }}\n'))


def test_mixed__credit_with_two_parameters_at_one_host_is_refused() -> None:
    name, value = next(iter(find("credit", "eqds").params.defaults.items()))

    def both(hosts: tuple[str, str]) -> Scenario:
        texts = "eqds", f"eqds:{name}={value}"
        rest = [
            f'{POOL}hosts = "{mine}"\npolicies = {{ credit = "{text}" }}\n'
            for mine, text in zip(hosts, texts, strict=True)
        ]
        return scenario(DUMBBELL, "".join(rest))

    with pytest.raises(ScenarioError, match=r"meet at h.*4, where flows of one credit policy"):
        Simulation(both(("0-4", "4-7")))
    assert run(both(("0-3", "4-7")), check=True).good


def test_mixed__groups_share_all_bytes() -> None:
    found = run(scenario(DUMBBELL, TWO), check=True)
    assert found.good, found.violation
    report = found.coexistence
    rows = report["groups"]
    assert sum(one["share"] for one in rows) == pytest.approx(1)
    assert sum(one["fair_share"] for one in rows) == pytest.approx(1)
    assert sum(one["transfers"] for one in rows) == len(found.transfers)
    assert sum(one["bytes"] for one in rows) == found.scenario.work.transfers["bytes"].sum()
    assert 0 < report["contended_ns"] <= found.totals["ended_ns"]
    assert all(0 < one["jain"] <= 1 for one in rows)
    assert set(found.columns()["group"]) == {"dctcp", "swift"}
    assert "harm_goodput" not in rows[0]


def test_mixed__harm_compares_with_each_group_alone() -> None:
    found = with_alone(run(scenario(DUMBBELL, TWO)))
    for number, row in enumerate(found.coexistence["groups"]):
        alone = Simulation(found.scenario, alone=number)
        while alone.step():
            pass
        result = alone.result()
        mine = found.group_of == number
        assert (result.done == mine).all()
        assert ((result.transfers["posted_ns"] >= 0) == mine).all()
        p50 = float(np.percentile(result.fct_ns, 50))
        assert found.alone[number]["fct_ns_p50"] == p50
        assert row["harm_fct_p50"] == pytest.approx((row["fct_ns_p50"] - p50) / row["fct_ns_p50"])
        rate = found.alone[number]["goodput_bytes_per_s"]
        assert row["harm_goodput"] == pytest.approx((rate - row["goodput_bytes_per_s"]) / rate)


def test_mixed__a_split_collective_has_no_run_of_one_group() -> None:
    rest = '[[workload]]\npattern = "all_reduce_ring"\nsize_bytes = "1 MB"\n'
    rest += 'mix = [{ share = 0.5, policies = { window = "dctcp" } }]\n'
    found = run(scenario(DUMBBELL, rest), check=True)
    assert found.good
    assert found.is_mixed
    assert with_alone(found) is found


def test_served__bytes_are_spread_over_a_messages_own_time() -> None:
    """Two connections: one has two messages posted at once, the other one that never ends."""
    transfers = np.zeros(3, TRANSFER)
    transfers["from"], transfers["to"] = [0, 0, 1], 2
    transfers["bytes"] = [100, 300, 1_000]
    times = np.zeros(3, [("posted_ns", np.int64), ("received_ns", np.int64)])
    times["posted_ns"], times["received_ns"] = [0, 0, 50], [100, 200, -1]
    found = coexist.served(transfers, times, np.array([0, 0, 1]), np.array([400, 150]), 200)
    assert found.begin_ns.tolist() == [0, 100, 50]
    assert found.end_ns.tolist() == [100, 200, 200]
    assert found.bytes.tolist() == [100, 300, 150]
    during = coexist.contention(found, 2)
    assert during.contended_ns == 150
    assert during.share.tolist() == pytest.approx([350 / 500, 150 / 500])
    assert during.fair_share.tolist() == pytest.approx([0.5, 0.5])


def test_contention__counts_connections_at_each_time() -> None:
    """Group 0 has two connections for half of the time, then one; group 1 has one."""
    found = coexist.Served(
        np.array([0, 0, 0]),
        np.array([100, 50, 100]),
        np.array([100.0, 50.0, 200.0]),
        np.array([0, 1, 2]),
        np.array([0, 0, 1]),
    )
    during = coexist.contention(found, 2)
    assert during.contended_ns == 100
    assert during.fair_share.tolist() == pytest.approx([7 / 12, 5 / 12])
    assert during.share.tolist() == pytest.approx([150 / 350, 200 / 350])
    assert during.rates.tolist() == pytest.approx([1e9, 1e9, 2e9])


def test_contention__groups_that_never_meet_have_no_share() -> None:
    ends = np.array([0, 100]), np.array([50, 200])
    found = coexist.Served(*ends, np.ones(2), np.arange(2), np.arange(2))
    assert coexist.contention(found, 2).contended_ns == 0
    labels, times = ["a", "b"], np.array([50, 100])
    rows = coexist.report(found, labels, times, np.arange(2), np.arange(2))["groups"]
    assert [one["share"] for one in rows] == [None, None]


def test_harm__is_a_share_of_the_better_value() -> None:
    assert fairness.harm_of_rate(10.0, 4.0) == pytest.approx(0.6)
    assert fairness.harm_of_time(10.0, 40.0) == pytest.approx(0.75)
    assert fairness.harm_of_rate(10.0, 12.0) < 0


def test_command__shows_groups_and_their_harm(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(f"[network]\n{DUMBBELL}\n{TWO}")
    rows, trace = tmp_path / "rows.csv", tmp_path / "trace"
    given = [str(file), "--csv", str(rows), "--trace", str(trace)]
    shown = CliRunner().invoke(sim.command, given)
    assert shown.exit_code == 0, shown.output
    assert "policies of group" in shown.output
    assert "groups of policies contended for" in shown.output
    with rows.open() as lines:
        found = list(csv.DictReader(lines))
    assert Counter(one["group"] for one in found) == {"dctcp": 32, "swift": 32}
    told = json.loads(CliRunner().invoke(sim.command, [str(file), "--json", "-"]).stdout)
    assert all(0 < one["harm_goodput"] < 1 for one in told["coexistence"]["groups"])
    bare = CliRunner().invoke(sim.command, [str(file), "--json", "-", "--no-harm"])
    assert "harm_goodput" not in json.loads(bare.stdout)["coexistence"]["groups"][0]


def test_command__beside_the_scenarios_own_policies(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    page = tmp_path / "two.html"
    given = ["two_policies", "--window", "swift", "--compare", "--no-harm", "--html", str(page)]
    shown = CliRunner().invoke(sim.command, given)
    assert shown.exit_code == 0, shown.output
    assert "dctcp + swift" in shown.output or "swift + dctcp" in shown.output
    assert "default (nscc + dctcp)" in shown.output or "default (dctcp + nscc)" in shown.output
    assert "policies of group" in page.read_text()


def test_command__a_sweep_has_the_shares_of_groups(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(f"[network]\n{DUMBBELL}\n{HALVES}")
    key = "workload.0.mix.0.share=0.25,0.5"
    given = [str(file), "--seeds", "1-2", "--set", key, "--json", "-", "-j", "2"]
    shown = CliRunner().invoke(sim.command, given)
    assert shown.exit_code == 0, shown.output
    for row in json.loads(shown.stdout)["rows"]:
        assert row["group0_share"] + row["group1_share"] == pytest.approx(1)
        assert {row["group0_policies"], row["group1_policies"]} == {"dctcp", "swift"}
    refused = CliRunner().invoke(sim.command, [*given, "--harm"])
    assert refused.exit_code == 2
    assert "--harm is for one run" in refused.output


def test_setting__commas_of_a_workloads_policy_are_parameters() -> None:
    key, values = sim.setting("workload.0.policies.window=swift:a=1,b=2,dctcp")
    assert key == "workload.0.policies.window"
    assert values == ["swift:a=1,b=2", "dctcp"]


def test_plan__refuses_wrong_policy_sets() -> None:
    simulation = Simulation(scenario(DUMBBELL, TWO))
    of_transfer = np.zeros(64, np.uint16)
    of_transfer[0] = 2
    simulation.plan.set_policy_sets(of_transfer)
    assert "a policy set that exists" in simulation.plan.complaint()
    of_transfer[0] = 1
    simulation.plan.set_policy_sets(of_transfer)
    assert "the other transfers of its connection" in simulation.plan.complaint()
    simulation.plan.set_policy_sets(of_transfer[:3])
    assert "for every transfer" in simulation.plan.complaint()
    with pytest.raises(ValueError, match="policy set"):
        native.Fabric(simulation.plan)
