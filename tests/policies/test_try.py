"""Decides that policies run in the simulated network as asked, the same each time, and are shown.

Never judges a policy: the conformance suite does.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("numba")
from click.testing import CliRunner

from transport.arena import Network, Traffic, run
from transport.cli.policy import policy_group
from transport.errors import InvalidArgumentError
from transport.recording import parse
from transport.replay import named, replay

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
    assert outcome.resent() >= sum(path.forward.lost for path in outcome.report.paths) * 0.9


def test_run__a_dead_path_and_a_burst_of_loss_are_survived() -> None:
    network = Network(
        paths=2,
        dead_path=(1, 10_000_000, 20_000_000),
        loss_burst=(25_000_000, 30_000_000, 0.3),
    )
    outcome = run({"window": "aimd"}, network, Traffic(flows=1))
    assert outcome.report.violation == ""
    assert outcome.report.paths[1].forward.swallowed > 0
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
        track = replay(named(name, family), recording.of(family))
        assert len(track.answers) > 100
        assert (family, track.differs, track.failures) == (family, 0, 0)


def test_run__what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no policy family"):
        run({"speed": "swift"})
    with pytest.raises(InvalidArgumentError, match="no window policy"):
        run({"window": "teleport"})
    with pytest.raises(InvalidArgumentError, match="the plan needs"):
        run(traffic=Traffic(flows=0))


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
        (["teleport"], "no policy 'teleport'"),
        (["fixed"], "write window=fixed or"),
        (["swift", "cubic"], "two window policies"),
        (["swift:speed=3"], "no parameter 'speed'"),
        (["absent.py"], "no such file"),
        (["swift", "--flows", "0"], "--flows"),
    ],
)
def test_try__wrong_usage_is_one_line(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(policy_group, ["try", *arguments])
    assert done.exit_code == 2
    assert says in done.output
