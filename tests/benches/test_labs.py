"""Runs the benchmarks that need labs, tiny, and checks that labs are removed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from bench import failover
from bench.__main__ import bench
from bench.lib import labs, stats, timeline, traffic
from tests.benches.support import children
from tests.lab.support import ROOT, left_behind, reason_to_skip
from tests.waiting import PATIENCE_S, until
from transport.lab import Lab, LabModel, Link, namespace, state

MS = 1_000_000
SLOW = ("--path-rate", "50 Mb/s")  # a rate that a busy machine with two cores can carry


def call(*words: str) -> Result:
    return CliRunner().invoke(bench, list(words))


@pytest.fixture
def lab_rights() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)


def tiny(name: str, *words: str) -> list[dict[str, Any]]:
    done = call(name, "--tiny", *words, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert all(row["wrong"] in (0, None) for row in found["rows"])
    assert found["settings"]["lab"]["spines"] == 4
    mine = f"-{os.getpid()}"
    assert not [one for one in state.names() if one.endswith(mine)]
    assert not list(namespace.DIRECTORY.glob(f"weft-*{mine}-*"))
    rows: list[dict[str, Any]] = found["rows"]
    return rows


@pytest.mark.namespaces
def test_collision__one_tcp_flow_takes_one_path(lab_rights: None) -> None:
    words = ("--flows", "1", "--path-rate", "20 Mb/s", "-D", "2")
    weft, tcp = tiny("collision", *words)
    assert (weft["contender"], tcp["contender"]) == ("weft", "tcp-cubic")
    # tests/lab/test_traffic.py checks that a TCP flow stays on its path, test_weft.py that weft
    # uses all of them.
    assert all(row["capacity_share"] is not None for row in (weft, tcp))
    assert weft["paths"] == "equal"


@pytest.mark.namespaces
def test_loss__counts_what_the_paths_lost(lab_rights: None) -> None:
    words = ("--only", "weft", "--exponent", "-4", "-D", "1")
    lossless, lossy = tiny("loss", *SLOW, *words)
    assert [row["loss_rate"] for row in (lossless, lossy)] == [0, 2**-4]
    assert lossless["kept_share"] == 1
    # One datagram in sixteen is lost and resent.
    assert lossy["retransmitted_segments"] > 0
    assert lossy["kept_share"] is not None


@pytest.mark.namespaces
def test_failover__a_cut_is_survived_and_all_cuts_end_in_an_error(
    lab_rights: None, tmp_path: Path
) -> None:
    cuts = ("--cut", "one path", "--cut", "all for good", "--only", "weft")
    one, good = tiny("failover", *SLOW, *cuts, "-D", "4")
    assert (one["cut"], good["cut"]) == ("one path", "all for good")
    # Whether the traffic moved within the cut, and how fast, depends on the load of this machine.
    assert {"moved_ns", "cut_rate_bytes_per_s"} <= set(one)
    assert "PeerDeadError" in good["error"]
    assert good["error_ns"] > 0


@pytest.mark.namespaces
def test_benches__any_of_them_runs_in_a_lab(lab_rights: None) -> None:
    file = ROOT / "examples" / "labs" / "four_paths.toml"
    (row,) = tiny("bidirectional", "--lab", str(file), "--only", "tcp-cubic")[:1]
    assert row["rate_bytes_per_s"] is not None


@pytest.mark.namespaces
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_benches__interrupted_they_keep_what_they_have_and_leave_no_lab(
    lab_rights: None, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "cut.json"
    words = ["collision", "--tiny", "--repeats", "1000", "--only", "tcp-cubic", *SLOW]
    with subprocess.Popen(
        [sys.executable, "-m", "bench", *words, "--json", str(out)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        # Restore SIGINT, which a shell makes background processes ignore.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        try:
            name = f"paths-{running.pid}"
            until(lambda: name in state.names() and state.load(name).built, "no lab is built")
            until(lambda: len(children(running.pid)) >= 3, "the benchmark starts no processes")
            time.sleep(2.0)  # so that it has some rows, mostly; without a row it ends alike
            running.send_signal(number)
            _, errors = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
            if name in state.names():
                Lab(state.load(name).model, name=name).down()
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert left_behind(name) == []
    assert json.loads(out.read_text())["partial"] is True


def test_benches__a_lab_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text("hosts = 2\nhosts_per_leaf = 2\n")
    done = call("collision", "--lab", str(file))
    assert (done.exit_code, "needs two leaves with hosts" in done.output) == (2, True)
    file.write_text("spine = 2\n")
    done = call("incast", "--lab", str(file))
    assert (done.exit_code, "did you mean spines?" in done.output) == (2, True)
    done = call("loss", "--path-rate", "fast")
    assert (done.exit_code, "expected a rate" in done.output) == (2, True)
    place = tmp_path / "place.json"
    place.write_text("[]")
    done = call("failover", "--place", str(place))
    assert (done.exit_code, "--place cannot be combined with a lab" in done.output) == (2, True)


def test_benches__knobs_of_a_contender_are_checked() -> None:
    done = call("incast", "--only", "weft/window_polcy=nscc")
    assert (done.exit_code, "did you mean window_policy?" in done.output) == (2, True)
    assert call("incast", "--only", "weft/x").exit_code == 2


@pytest.mark.namespaces
def test_labs__capacity_is_of_what_is_left(lab_rights: None) -> None:
    model = LabModel(hosts=4, hosts_per_leaf=2, spines=2, host_links=Link(10_000_000))
    with Lab(replace(model, uplinks=Link(1_000_000)), name=f"left-{os.getpid()}") as lab:
        assert labs.uplinks(lab) == ["leaf0-spine0", "leaf0-spine1"]
        assert [place.name for place in labs.across(lab)] == ["host0", "host2"]
        assert labs.capacity_bytes_per_s(lab) == 2_000_000
        lab.set("leaf1-spine0", rate_bytes_per_s=250_000)
        assert labs.capacity_bytes_per_s(lab) == 1_250_000
        lab.set("host2-leaf1", rate_bytes_per_s=100_000)
        assert labs.capacity_bytes_per_s(lab) == 100_000


RATES = [100, 100, 100, 0, 0, 40, 75, 80, 75, 75, 75, 100, 100, 100, 100]


def test_timeline__when_a_rate_was_back() -> None:
    assert timeline.usual(RATES, 10 * MS, 30 * MS) == 100
    # The first of three intervals whose mean is 70 or more begins at 60 ms.
    assert timeline.recovered_ns(RATES, 10 * MS, 30 * MS, 70) == 40 * MS
    assert timeline.recovered_ns(RATES, 10 * MS, 108 * MS, 95) == 12 * MS
    assert timeline.recovered_ns(RATES, 10 * MS, 30 * MS, 101) is None
    assert timeline.silence_ns(RATES, 10 * MS) == 20 * MS
    assert timeline.silence_ns([], 10 * MS) == 0


def test_timeline__a_dip_begins_when_the_queue_behind_a_cut_is_empty() -> None:
    # Cut at 10 ms; queued data arrives until 30 ms; the interval up to 70 ms has the old rate.
    assert timeline.dipped_ns(RATES, 10 * MS, 10 * MS, 150 * MS, 70) == 60 * MS
    assert timeline.dipped_ns(RATES, 10 * MS, 10 * MS, 60 * MS, 70) is None  # the dip ends too late
    assert timeline.dipped_ns(RATES, 10 * MS, 10 * MS, 150 * MS, 101) is None
    assert timeline.dipped_ns([100] * 9, 10 * MS, 10 * MS, 90 * MS, 70) == 0
    # A busy host may cut after the last interval, or heal after it.
    assert timeline.dipped_ns([100] * 9, 10 * MS, 95 * MS, 120 * MS, 70) is None
    assert timeline.dipped_ns([100] * 9, 10 * MS, 10 * MS, 120 * MS, 70) == 0


def test_study__a_run_that_never_got_there_is_the_worst() -> None:
    runs = [{"contender": "x", "moved_ns": value, "wrong": 0} for value in (12, None, 15)]
    (row,) = stats.summarised(runs, ["contender"], {"moved_ns": "lower"})
    assert (row["worst"], row["moved_ns_never"], row["runs"]) == ("never", 1, 3)


def test_failover__another_error_than_silence_is_no_result(
    lab_rights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*words: Any) -> None:
        words[-1](traffic.Times(0, time.perf_counter_ns(), 0))
        raise click.ClickException("the endpoint did not report its measurement within 62 s")

    def cut(hand: failover.Hand, times: traffic.Times) -> None:
        hand.moments_ns.append(times.window_ns)

    monkeypatch.setattr(traffic, "run", hangs)
    monkeypatch.setattr(failover.Hand, "act", cut)
    done = call("failover", *SLOW, "--only", "weft", "--repeats", "1", "--cut", "all for good")
    assert done.exit_code == 1
    assert "the endpoint did not report its measurement within 62 s" in done.output
