"""Tests `weft policy try` and its simulator: options, reproducible results, output, errors."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")
import click
from click.testing import CliRunner

from congestion.registry import find
from transport import native
from transport.cli.lookup import parameters
from transport.cli.policy import policy_group
from transport.errors import InvalidArgumentError
from transport.policies import coexist
from transport.policies.choice import split
from transport.policies.recording import parse
from transport.policies.replay import replay
from transport.policies.trial import Beside, Network, Traffic, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_policy.py"


def test_run__is_a_function_of_its_arguments() -> None:
    prints = [run({"window": "dctcp"}, seed=seed).report.fingerprint for seed in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


def test_run__reports_what_flows_and_paths_did() -> None:
    outcome = run(
        {"window": "swift", "path": "oblivious"},
        Network(paths=4, loss=0.001),
        Traffic(flows=3),
        params={"window": {"increase_segments": 2.0}},
        samples=50,
    )
    assert outcome.names == {"window": "swift", "path": "oblivious", "loss": "rack"}
    assert 0.5 < outcome.goodput_share <= 1.0
    assert outcome.report.violation == ""
    assert outcome.trace("window_bytes").shape == (outcome.at_ms.size, 3)
    assert outcome.trace("queue_bytes").shape == (outcome.at_ms.size, 4)
    assert outcome.lost() > 0
    assert outcome.resent() >= sum(path.lost for path in outcome.report.paths) * 0.9


def test_run__random_loss_leaves_bbr_its_link() -> None:
    outcome = run({"window": find("window", "bbr")}, Network(loss=0.01), Traffic(flows=1))
    assert outcome.goodput_share >= 0.9


def test_run__a_dead_path_and_a_burst_of_loss_are_survived() -> None:
    network = Network(
        paths=2,
        dead_path=(1, 10_000_000, 20_000_000),
        loss_burst=(25_000_000, 30_000_000, 0.3),
    )
    outcome = run({"window": "aimd"}, network, Traffic(flows=1))
    assert outcome.report.violation == ""
    assert outcome.report.paths[1].lost > 0
    delivered = outcome.trace("delivered_bytes")[:, 0]
    at_ms = outcome.at_ms
    during = delivered[(at_ms > 12) & (at_ms < 20)]
    assert during[-1] > during[0]
    assert delivered[-1] > delivered[at_ms > 31][0]


def test_run__its_recording_replays_bit_for_bit() -> None:
    outcome = run({"window": "cubic", "path": "reps"}, Network(paths=4, loss=0.002), record=True)
    recording = parse(outcome.report.recording)
    assert recording.policies().keys() == {"window", "path", "loss"}
    for family, name in (("window", "cubic"), ("path", "reps"), ("loss", "rack")):
        track = replay(find(family, name), recording.of(family))
        assert len(track.answers) > 100
        assert (family, track.differs, track.failures) == (family, 0, 0)


@pytest.mark.parametrize("credit", ["eqds", "grant", "rccc"])
def test_run__a_flow_that_begins_later_gets_credit(credit: str) -> None:
    outcome = run({"credit": credit}, traffic=Traffic(flows=3, stagger_ns=4_000_000))
    assert all(flow.messages > 0 for flow in outcome.report.flows)


def test_run__what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no policy family"):
        run({"speed": "swift"})
    with pytest.raises(InvalidArgumentError, match="no window policy"):
        run({"window": "teleport"})
    with pytest.raises(InvalidArgumentError, match="the plan needs"):
        run(traffic=Traffic(flows=0))


@pytest.mark.parametrize(
    ("says", "given"),
    [
        ("seed", {"seed": -1}),
        ("samples", {"samples": -1}),
        ("bytes_per_s", {"network": Network(bytes_per_s=0)}),
        ("delay_ns", {"network": Network(delay_ns=math.nan)}),  # type: ignore[arg-type]
        ("queue_bytes", {"network": Network(queue_bytes=-1)}),
        ("loss", {"network": Network(loss=math.nan)}),
        ("loss_burst", {"network": Network(loss_burst=(0, 9, math.inf))}),
        ("loss_burst", {"network": Network(loss_burst=(9, 3, 0.5))}),
        ("loss_burst", {"network": Network(loss_burst=(-1, 3, 0.5))}),
        ("dead_path", {"network": Network(dead_path=(0, 9, 3))}),
        ("dead_path", {"network": Network(dead_path=(1, 3, 9))}),
        ("stagger_ns", {"traffic": Traffic(stagger_ns=-1)}),
        ("duration_ns", {"traffic": Traffic(duration_ns=math.inf)}),  # type: ignore[arg-type]
        ("segment_bytes", {"traffic": Traffic(segment_bytes=100)}),
        ("segment_bytes", {"traffic": Traffic(segment_bytes=1 << 16)}),
        ("burst_bytes_max", {"traffic": Traffic(burst_bytes_max=0)}),
        ("burst_bytes_max", {"traffic": Traffic(burst_bytes_max=1 << 21)}),
        ("params: no speed policy", {"params": {"speed": {}}}),
        ("params: no credit policy", {"params": {"credit": {"window_bytes": 1}}}),
    ],
)
def test_run__a_wrong_figure_is_named(says: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{says}"):
        run(**given)


def test_try__takes_the_size_of_segments_and_bursts(tmp_path: Path) -> None:
    out = tmp_path / "try.json"
    found = []
    for more in (
        [],
        ["--segment-bytes", "4160", "--burst-bytes-max", "65536"],
        ["--segment-bytes", "9000"],
        ["--burst-bytes-max", "4160"],
    ):
        arguments = ["try", "dctcp", "--paths", "2", "--duration-ms", "5", *more]
        done = CliRunner().invoke(policy_group, [*arguments, "--json", str(out)])
        assert done.exit_code == 0, done.output
        found.append(json.loads(out.read_text()))
    assert found[0]["fingerprint"] == found[1]["fingerprint"], "these are the defaults"
    assert len({one["fingerprint"] for one in found}) == 3
    assert [one["traffic"]["segment_bytes"] for one in found[1:3]] == [4160, 9000]
    assert found[3]["traffic"]["burst_bytes_max"] == 4160


def test_try__table_json_and_recording(tmp_path: Path) -> None:
    recording, out = tmp_path / "try.weftrec", tmp_path / "try.json"
    arguments = ["try", f"{EXAMPLE}:factor=0.7", "path=reps", "--paths", "2", "--flows", "3"]
    shown = CliRunner().invoke(policy_group, [*arguments, "--record", str(recording)])
    assert shown.exit_code == 0, shown.output
    assert "Jain" in shown.output
    assert "path shares" in shown.output
    assert parse(recording.read_bytes()).policies()["window"] == ["mine"]
    done = CliRunner().invoke(policy_group, [*arguments, "--json", str(out)])
    assert done.exit_code == 0, done.output
    document = json.loads(out.read_text())
    assert len(document["rows"]) == 3
    assert document["violation"] == ""
    assert document["network"]["paths"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["teleport"], "no policy or file named 'teleport'"),
        (["fixed"], "write window/fixed or"),
        (["swift", "cubic"], "are both window policies"),
        (["swift:speed=3"], "no parameter 'speed'"),
        (["absent.py"], "no such file"),
        (["swift", "--flows", "0"], "--flows"),
        (["swift", "--gbytes-per-s", "nan"], "'--gbytes-per-s': nan is not in the range"),
        (["swift", "--gbytes-per-s", "0"], "'--gbytes-per-s'"),
        (["swift", "--delay-us", "inf"], "'--delay-us': inf is not in the range"),
        (["swift", "--duration-ms", "nan"], "'--duration-ms'"),
        (["swift", "--duration-ms", "0"], "'--duration-ms'"),
        (["swift", "--stagger-ms", "-1"], "'--stagger-ms'"),
        (["swift", "--queue-kb", "-1"], "'--queue-kb'"),
        (["swift", "--mark-kb", "-1"], "'--mark-kb'"),
        (["swift", "--loss", "nan"], "'--loss'"),
        (["swift", "--seed", "-1"], "'--seed'"),
        (["swift", "--plot", "/absent/x.svg"], "cannot write /absent/x.svg"),
        (["swift", "--record", "/absent/x"], "cannot write /absent/x"),
        (["swift", "--json", "/absent/x"], "cannot write /absent/x"),
        (["window=absent.py"], "no such file"),
        (["path=swift"], "no path policy 'swift'"),
        ([f"path={EXAMPLE}"], f"{EXAMPLE} is a window policy; give a path policy"),
        (["path=window/swift"], "window/swift is a window policy; a path policy is wanted"),
        (["x.so"], "window=x.so"),
    ],
)
def test_try__wrong_usage_is_one_line(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(policy_group, ["try", *arguments])
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.parametrize("family", ["", "window="])
def test_try__a_policy_that_cannot_be_loaded_has_failed(tmp_path: Path, family: str) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("1 / 0\n")
    done = CliRunner().invoke(policy_group, ["try", f"{family}{wrong}"])
    assert done.exit_code == 1
    assert f"{wrong}:1: ZeroDivisionError" in done.output
    library = tmp_path / "wrong.so"
    library.write_bytes(b"no library")
    assert CliRunner().invoke(policy_group, ["try", f"window={library}"]).exit_code == 1


def test_try__matplotlib_is_missed_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(
        "transport.cli.try_policy.run",
        lambda *a, **b: pytest.fail("the run began without matplotlib"),
    )
    done = CliRunner().invoke(policy_group, ["try", "swift", "--plot", str(tmp_path / "x.svg")])
    assert done.exit_code == 1
    assert done.output.endswith("needs the package matplotlib: pip install 'weft[plots]'\n")


def test_try__a_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "x.svg"
    done = CliRunner().invoke(policy_group, ["try", "swift", "--plot", str(out)])
    assert done.exit_code == 0, done.output
    assert b"<svg" in out.read_bytes()
    done = CliRunner().invoke(policy_group, ["try", "swift", "--plot", str(tmp_path / "x.nope")])
    assert done.exit_code == 2


def test_try__a_queue_holds_no_more_than_it_can() -> None:
    words = ["try", "credit/fixed", "swift", "--flows", "8", "--stagger-ms", "0"]
    done = CliRunner().invoke(policy_group, [*words, "--json", "-"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["policies"]["credit"] == "fixed"
    (queue_bytes,) = document["queue_bytes_p99"]
    assert 400_000 - 4_160 < queue_bytes <= 400_000


def test_try__a_policy_that_fails_in_the_run_is_a_failure(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        EXAMPLE.read_text()
        .replace("flow.window_bytes += ", "assert_acked(event)\n    flow.window_bytes += ")
        .replace(
            "def grow",
            "def assert_acked(event):\n    if event.delivered_bytes > 1_000_000:\n"
            '        raise ValueError("enough")\n\n\ndef grow',
        )
    )
    done = CliRunner().invoke(policy_group, ["try", str(wrong)])
    assert done.exit_code == 1
    assert "the window policy 'mine' failed in on_ack and was replaced by fixed" in done.output


WORDS = (
    *("1", "-1", "0", "01", "1_0", "+1", "1e3", "1.", ".5", ".", "-.5e-1", "1e400", "inf", "nan"),
    *("0x10", "\u0661", "", "--1", "9223372036854775807", "9223372036854775808"),
    "-9223372036854775808",
)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", ["fixed:window_bytes", "swift:decrease_max"])
def test_numbers__are_the_same_to_the_engine_and_to_the_command_line(name: str, word: str) -> None:
    policy, _, field = name.partition(":")
    refused = []
    try:
        parameters(find("window", policy), f"{field}={word}")
    except click.UsageError as error:
        refused.append(str(error))
    try:
        folders = [str(native.POLICY_DIRECTORY)]
        native.FabricPlan().choose_text("window", f"{name}={word}", folders)
    except ValueError as error:
        refused.append(str(error))
    assert len(refused) in (0, 2), refused


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("swift", ("swift", "", "")),
        ("window/swift: a=1/2", ("window/swift", ":", " a=1/2")),
        ("weighted:weight=1/0", ("weighted", ":", "weight=1/0")),
        ("/a b:c=d/x.so", ("/a b:c=d/x.so", "", "")),
        ("/a b:c=d/x.py :q=1", ("/a b:c=d/x.py", ":", "q=1")),
        ("/a.so.d/x.so:q=1/2", ("/a.so.d/x.so", ":", "q=1/2")),
    ],
)
def test_split__a_name_or_path_and_its_parameters(text: str, parts: tuple[str, str, str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize("place", ["8 1", "0 2", "80000 1", "8 18446744073709551615", "3 1", "0 0"])
def test_params__outside_of_their_record_do_not_exist(place: str) -> None:
    with pytest.raises(ValueError, match="no parameter 'a'"):
        native.policy_params("mine", f"a i {place}\n", bytes(8), "a=2")
    assert native.policy_params("mine", "a i 0 1\n", bytes(8), "a=2")[0] == 2


def test_choices__end_before_the_next_family() -> None:
    text = " window=dctcp  path=/tmp/a b.so:x=1 loss=rack "
    assert native.policy_choices(text) == ["window=dctcp", "path=/tmp/a b.so:x=1", "loss=rack"]
    assert native.policy_choices(" ") == []


QUICK = Traffic(flows=2, stagger_ns=1_000_000, duration_ns=20_000_000)
OTHERS = Beside(policies={"window": "dctcp"}, flows=3)


def test_beside__each_flow_has_its_policies() -> None:
    others = Beside(policies={"window": "dctcp", "path": "reps"}, flows=3)
    outcome = run({"window": "swift"}, traffic=QUICK, beside=others, record=True)
    assert outcome.report.violation == ""
    assert outcome.group_of == (0, 1, 0, 1, 1)
    recording = parse(outcome.report.recording)
    for family, wanted in (("window", ("swift", "dctcp")), ("path", ("power_of_two", "reps"))):
        steps = [step for step in recording.of(family) if step.owner >> 24 in range(0, 10, 2)]
        names = {(step.owner >> 25, step.policy.name) for step in steps}
        assert names == {(flow, wanted[group]) for flow, group in enumerate(outcome.group_of)}
    assert outcome.labels == ("window=swift path=power_of_two", "window=dctcp path=reps")


def test_beside__shares_add_up_and_harm_compares_with_each_group_alone() -> None:
    outcome, *alone = (
        run({"window": "swift"}, traffic=QUICK, beside=OTHERS, alone=group, samples=0)
        for group in (None, 0, 1)
    )
    rows = coexist.report(outcome, alone)
    assert [row["group"] for row in rows] == ["swift", "dctcp"]
    assert [row["flows"] for row in rows] == [2, 3]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["fair_share"] for row in rows] == [0.4, 0.6]
    for group, row in enumerate(rows):
        sent = [flow.counters["segments_sent"] > 0 for flow in alone[group].report.flows]
        assert sent == [one == group for one in outcome.group_of]
        rate = coexist.measures(alone[group], group)["goodput_bytes_per_s"]
        assert row["harm_goodput"] == pytest.approx((rate - row["goodput_bytes_per_s"]) / rate)


def test_beside__is_a_function_of_its_arguments() -> None:
    prints = {
        run({"window": "swift"}, traffic=QUICK, beside=OTHERS).report.fingerprint for _ in range(2)
    }
    assert len(prints) == 1
    assert run({"window": "swift"}, traffic=QUICK).report.fingerprint not in prints


def test_beside__credit_of_one_group_only() -> None:
    others = Beside(policies={"credit": "none"}, flows=2)
    traffic = replace(QUICK, stagger_ns=0)
    outcome = run({"credit": "eqds"}, traffic=traffic, beside=others, record=True)
    steps = parse(outcome.report.recording).of("credit")
    # Each flow has its own receiver, with an odd number.
    assert {step.owner >> 24 for step in steps if (step.owner >> 24) % 2} == {1, 5}
    assert outcome.labels == ("eqds", "none")


def test_beside__what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="begin flows closer together"):
        run(traffic=Traffic(flows=9, stagger_ns=5_000_000), beside=OTHERS)
    with pytest.raises(InvalidArgumentError, match="name a policy of the other flows"):
        run(beside=Beside(policies={}))
    with pytest.raises(InvalidArgumentError, match="beside: flows"):
        run(beside=Beside(policies={"window": "dctcp"}, flows=0))
    with pytest.raises(InvalidArgumentError, match="no window policy"):
        run(beside=Beside(policies={"window": "teleport"}))


def test_command__beside_shows_groups() -> None:
    given = ["try", "swift", "--beside", "dctcp", "--beside-flows", "1", "--stagger-ms", "1"]
    shown = CliRunner().invoke(policy_group, given)
    assert shown.exit_code == 0, shown.output
    assert "fair share" in shown.output
    told = json.loads(CliRunner().invoke(policy_group, [*given, "--json", "-"]).stdout)
    assert [row["group"] for row in told["coexistence"]] == ["swift", "dctcp"]
    assert [row["group"] for row in told["rows"]] == ["swift", "dctcp", "swift"]
    assert told["beside"] == {"policies": {"window": "dctcp"}, "flows": 1}
    alone = CliRunner().invoke(policy_group, ["try", "swift", "--beside-flows", "1"])
    assert alone.exit_code == 2
    assert "--beside-flows needs --beside" in alone.output
