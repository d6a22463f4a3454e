"""Tests how a process that does not run enough is told from its NIC."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.diagnose.support import as_real, traced
from tests.diagnose.test_faults import judged as diagnosed
from transport.diagnose.diagnosis import judged
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.often_stopped import SHORT_OF_CPU, often_stopped
from transport.diagnose.settings import Settings
from transport.plan import routes
from transport.trace import open_store

RANK, TIMES = 13, 5
SLOW = {"kind": "slow_nic", "rank": RANK, "at_ns": 2_500_000, "rate_factor": 0.3}


def stopped(facts: Facts, share: dict[int, float]) -> Facts:
    """The facts with TIMES records of each rank that it did not run for a share of its time."""
    rows = []
    for one, part in share.items():
        process = facts.processes[one]
        lasted_ns = process.last_ns - process.first_ns
        each_ns = int(part * lasted_ns / TIMES)
        rows += [(one, process.first_ns + at * lasted_ns // TIMES, each_ns) for at in range(TIMES)]
    made = {name: column[: len(rows)].copy() for name, column in facts.downs.items()}
    if len(made["source"]) < len(rows):
        made = {name: np.resize(column, len(rows)) for name, column in made.items()}
    made["source"], made["time_ns"], made["value"] = (
        np.array(each) for each in zip(*rows, strict=True)
    )
    made["what"] = np.full(len(rows), "process_stalled", object)
    made["target"] = np.full(len(rows), -1)
    names = facts.downs
    return replace(facts, downs={name: np.concatenate([names[name], made[name]]) for name in names})


@pytest.fixture(name="slow")
def _slow(tmp_path: Path) -> tuple[Facts, Settings]:
    """A real job with a slow NIC, and its routes."""
    known = routes.read(traced(tmp_path, SLOW) / routes.FILE)
    with open_store(tmp_path) as store:
        return as_real(facts_of(store)), Settings(routes=known)


def test_often_stopped__is_the_process_and_not_its_nic(slow: tuple[Facts, Settings]) -> None:
    facts = stopped(slow[0], {RANK: 0.2})
    found = judged(facts, [], slow[1], []).findings
    assert (found[0].kind, found[0].place.name) == ("non_communication_slow", f"rank {RANK}")
    assert "did not run 5 times" in found[0].evidence
    assert "20.0 % of its time" in found[0].evidence
    assert not any(one.certain for one in found if one.place.name == f"NIC of rank {RANK}")


@pytest.mark.parametrize(
    "share",
    [{RANK: 0.2, 14: 0.1}, {RANK: 0.02}, {}],
    ids=["another process of a busy host does so, too", "too little", "never"],
)
def test_often_stopped__is_none_if_the_host_is_busy(
    slow: tuple[Facts, Settings], share: dict[int, float]
) -> None:
    assert often_stopped(stopped(slow[0], share) if share else slow[0]) is None


def test_nic__of_a_real_job_may_be_a_process_short_of_cpu(slow: tuple[Facts, Settings]) -> None:
    nics = [
        one
        for one in judged(slow[0], [], slow[1], []).findings
        if (one.kind, one.place.name) == ("communication_slow", f"NIC of rank {RANK}")
    ]
    assert nics
    assert all(SHORT_OF_CPU in one.place.candidates for one in nics)
    assert all(one.confidence <= 0.5 for one in nics)
    assert all("whether its process has a core" in one.advice for one in nics)


def test_crash__does_not_hide_the_pause_before_it(tmp_path: Path) -> None:
    stop = {"kind": "stopped_process", "rank": 21, "at_ns": 3_900_000, "until_ns": 6_900_000}
    crash = {"kind": "crash", "rank": 21, "at_ns": 9_500_000}
    found = diagnosed(traced(tmp_path, stop, crash)).findings
    said = [(one.kind, one.place.name) for one in found if one.certain]
    assert said[:2] == [("crash", "rank 21"), ("non_communication_hang", "rank 21")]
