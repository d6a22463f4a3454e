"""Tests that the diagnosis of each shipped scenario agrees with what its simulation knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transport.diagnose import Answer, Settings, diagnose
from transport.plan import routes
from transport.sim.run import run
from transport.sim.scenario import load, shipped
from transport.sim.trace import write_trace
from transport.trace import open_store

# Scenarios with a fault, and its class and place.
FAULTS = {
    "flapping_link": ("network_loss", "leaf0-spine0"),
    "slow_nic": ("communication_slow", "NIC of rank 21"),
}
BIG = {"uccl_table", "incast_1023"}  # half a minute or more


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.long if one in BIG else ()) for one in sorted(shipped())],
)
def test_shipped__diagnosis_agrees_with_the_simulator(tmp_path: Path, name: str) -> None:
    write_trace(run(load(shipped()[name]), trace_ns=200_000), tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text())
    damaged = sum(tier["lost"] for tier in truth["tiers"])
    overflowed = sum(tier["dropped"] for tier in truth["tiers"])
    with open_store(tmp_path) as store:
        found = diagnose(store, Settings(routes=routes.read(tmp_path / routes.FILE)))
    certain = [one for one in found.findings if one.certain]
    if name in FAULTS:
        assert [(one.kind, one.place.name) for one in certain] == [FAULTS[name]]
        return
    # The others have no fault. They are too short to be called healthy.
    assert certain == []
    assert found.answer is Answer.NOT_JUDGED
    said = {one.kind for one in found.findings}
    assert damaged == 0
    assert "network_loss" not in said
    assert "congestion" not in said or overflowed > 0
