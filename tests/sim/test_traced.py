"""Tests what simulated hosts record of transfers, paths and events."""

import numpy as np
import pytest

from transport import native
from transport.sim.result import Result
from transport.sim.run import run
from transport.sim.scenario import Scenario, parse

LOSSY = """
seed = 3
limit_ns = "200 ms"
[network]
hosts = 16
hosts_per_leaf = 4
spines = 4
[hosts]
paths = 8
[[workload]]
pattern = "all_reduce_ring"
size_bytes = "4 MB"
[[events]]
link = "leaf0>spine1"
at_ns = "20 us"
loss = 0.2
"""


def scenario() -> Scenario:
    return parse(LOSSY)


@pytest.fixture(scope="module")
def traced() -> Result:
    return run(scenario(), trace_ns=100_000)


def test_traced__recording_does_not_change_the_run(traced: Result) -> None:
    assert run(scenario()).fingerprint == traced.fingerprint


def test_traced__the_number_of_threads_changes_nothing(traced: Result) -> None:
    other = run(scenario(), trace_ns=100_000, threads=2).traced
    assert other is not None
    assert traced.traced is not None
    for name in ("transfers", "paths", "events"):
        assert np.array_equal(getattr(other, name), getattr(traced.traced, name))


def test_traced__segments_of_transfers_add_up_to_the_counters_of_flows(traced: Result) -> None:
    assert traced.traced is not None
    rows = traced.traced.transfers
    assert rows["segments"].sum() == traced.streams["segments_sent"].sum()
    assert rows["resent"].sum() == traced.streams["segments_resent"].sum() > 0
    assert np.array_equal(rows["by_path"].sum(axis=1), rows["segments"])
    times = traced.transfers
    assert (times["ready_ns"] <= rows["first_ns"]).all()
    assert (rows["first_ns"] <= rows["last_ns"]).all()
    assert (rows["last_ns"] < times["received_ns"]).all()


def test_traced__losses_are_on_paths_that_cross_the_lossy_link(traced: Result) -> None:
    assert traced.traced is not None
    events = traced.traced.events
    losses = [native.Fabric.event_name(int(kind)) == "loss" for kind in events["kind"]]
    assert set(events["host"][losses].tolist()) == {3}  # the ring leaves leaf 0 at its last host
    paths = traced.traced.paths
    last = {(int(one["host"]), int(one["path"])): one for one in paths}
    lost = {key for key, one in last.items() if one["segments_lost"] > 0}
    assert {host for host, _ in lost} == {3}
    assert 0 < len(lost) < 8


def test_traced__nothing_is_recorded_unless_asked() -> None:
    assert run(scenario()).traced is None
