"""Tests how processes that wait for a CPU core are told from slow NICs, by events cpu_wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnose.support import as_real, traced
from transport.diagnose.cpu_wait import (
    STARVED,
    explains,
    recorded,
    slowed_by_cpu,
    with_short_of_cpu,
)
from transport.diagnose.diagnosis import Diagnosis, judged
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.finding import Finding
from transport.diagnose.often_stopped import SHORT_OF_CPU
from transport.diagnose.settings import Settings
from transport.diagnose.slower import NO_PLACE, Slowdown, lost_share
from transport.diagnose.windows import Windows
from transport.plan import routes
from transport.trace import open_store
from transport.trace.store import new_store

RANK, PARTS = 13, 40
SLOW = {"kind": "slow_nic", "rank": RANK, "at_ns": 2_500_000, "rate_factor": 0.3}
NIC = ("communication_slow", f"NIC of rank {RANK}")
EVERYWHERE = dict.fromkeys(range(32), 0.01)


def waiting(facts: Facts, shares: Mapping[int, float], before: float = 0.01) -> Facts:
    """The facts with readings of processes: the share of each in the last two thirds of its time,
    and what it was before."""
    rows = []
    for one, share in shares.items():
        process = facts.processes[one]
        each_ns = (facts.end_ns - process.first_ns) // PARTS
        for at in range(PARTS):
            waited_ns = int((share if at >= PARTS // 3 else before) * each_ns)
            rows.append((one, process.first_ns + (at + 1) * each_ns, waited_ns, each_ns))
    names = ("source", "time_ns", "waited_ns", "over_ns")
    columns = np.array(rows, np.int64).T
    return replace(facts, cpu_waits=dict(zip(names, columns, strict=True)))


def on_one_host(facts: Facts, ranks: range) -> Facts:
    """The facts with these ranks on one host."""
    made = [replace(one, host="h") if one.rank in ranks else one for one in facts.processes]
    return replace(facts, processes=tuple(made))


@pytest.fixture(name="slow", scope="module")
def _slow(tmp_path_factory: pytest.TempPathFactory) -> tuple[Facts, Settings]:
    """A real job with a slow NIC, and its routes."""
    return read(traced(tmp_path_factory.mktemp("slow"), SLOW))


@pytest.fixture(name="steady", scope="module")
def _steady(tmp_path_factory: pytest.TempPathFactory) -> tuple[Facts, Settings]:
    """A real job without a fault, and its routes."""
    return read(traced(tmp_path_factory.mktemp("steady")))


def read(folder: Path) -> tuple[Facts, Settings]:
    known = routes.read(folder / routes.FILE)
    with open_store(folder) as store:
        return as_real(facts_of(store)), Settings(routes=known)


def said(facts: Facts, settings: Settings) -> Diagnosis:
    return judged(facts, [], settings, [])


def places(found: Diagnosis) -> list[tuple[str, str]]:
    return [(one.kind, one.place.name) for one in found.findings]


def of_nic(found: Diagnosis) -> list[Finding]:
    return [one for one in found.findings if (one.kind, one.place.name) == NIC]


def test_slow_nic__of_a_process_without_a_core_is_the_process(slow: tuple[Facts, Settings]) -> None:
    found = said(waiting(slow[0], EVERYWHERE | {RANK: 0.6}), slow[1])
    one = found.findings[0]
    assert (one.kind, one.place.name) == ("non_communication_slow", f"rank {RANK}")
    assert one.certain
    assert NIC[1] in one.place.candidates
    assert "was ready to run and had no core" in one.evidence
    assert "cpu.stat" in one.advice
    assert not of_nic(found)


def test_slow_nic__on_a_host_without_cores_is_the_host(slow: tuple[Facts, Settings]) -> None:
    here = range(12, 15)
    facts = waiting(on_one_host(slow[0], here), EVERYWHERE | dict.fromkeys(here, 0.6))
    found = said(facts, slow[1])
    one = found.findings[0]
    assert (one.kind, one.place.name) == ("non_communication_slow", "host h")
    assert one.place.ranks == (12, 13, 14)
    assert "3 of 3 processes on h" in one.evidence
    assert not of_nic(found)
    assert any("ranks 12-14 on host h" in note for note in found.notes)


def test_slow_nic__stays_if_its_process_had_its_cores(slow: tuple[Facts, Settings]) -> None:
    found = of_nic(said(waiting(slow[0], EVERYWHERE), slow[1]))
    unknown = of_nic(said(slow[0], slow[1]))
    assert found
    assert unknown
    assert SHORT_OF_CPU not in found[0].place.candidates
    assert SHORT_OF_CPU in unknown[0].place.candidates
    assert found[0].confidence > unknown[0].confidence


def test_slow_nic__stays_if_other_processes_lack_cores(slow: tuple[Facts, Settings]) -> None:
    found = said(waiting(slow[0], EVERYWHERE | {2: 0.6, 3: 0.6}), slow[1])
    assert of_nic(found)
    assert not any(one.place.name in ("rank 2", "rank 3") for one in found.findings)


def test_slow_nic__stays_if_its_process_lacked_as_much_before(slow: tuple[Facts, Settings]) -> None:
    found = said(waiting(slow[0], EVERYWHERE | {RANK: 0.11}, before=0.11), slow[1])
    assert of_nic(found)


def test_slow_nic__of_a_running_job_is_judged_by_the_last_readings(
    slow: tuple[Facts, Settings],
) -> None:
    found = of_nic(said(*slow))
    shares = {RANK: 0.6}
    (one,) = with_short_of_cpu(slow[0], lambda at, *_: shares.get(at), found, past=False)
    assert (one.kind, one.place.name) == ("non_communication_slow", f"rank {RANK}")
    assert with_short_of_cpu(slow[0], lambda *_: None, found, past=False) == found


def test_steady_job__on_a_host_without_cores_is_healthy(steady: tuple[Facts, Settings]) -> None:
    facts = waiting(on_one_host(steady[0], range(32)), dict.fromkeys(range(32), 0.4), before=0.4)
    found = said(facts, steady[1])
    quiet = said(steady[0], steady[1])
    assert found.answer == quiet.answer
    assert not any(one.certain for one in found.findings)
    (note,) = (one for one in found.notes if one.startswith("short of CPU"))
    assert "ranks 0-31 on host h for up to 40 % of the time" in note


def test_note__is_missing_if_nothing_was_recorded(steady: tuple[Facts, Settings]) -> None:
    assert not said(steady[0], steady[1]).notes
    assert recorded(steady[0])(0, 0, steady[0].end_ns) is None


@pytest.mark.parametrize(("lost", "answer"), [(0.5, "slower but unexplained"), (0.3, "healthy")])
def test_unsteady_job__is_explained_by_as_large_a_lack_of_cores(
    steady: tuple[Facts, Settings], monkeypatch: pytest.MonkeyPatch, lost: float, answer: str
) -> None:
    """What is unsteady, and by how much, is set here; the rest is that of the rules."""
    everyone = dict.fromkeys(range(32), 0.4)
    facts = waiting(on_one_host(steady[0], range(32)), everyone, before=0.4)
    text = f"3 of 39 windows take longer. {NO_PLACE}"
    monkeypatch.setattr("transport.diagnose.slower.unsteady", lambda *_: text)
    monkeypatch.setattr("transport.diagnose.slower.lost_share", lambda _: lost)
    assert said(facts, steady[1]).answer.value == answer


def test_lost_share__of_the_longer_iterations() -> None:
    lengths = [10, *[10] * 7, 30, 10]  # the first one is not counted
    windows = Windows(np.cumsum([0, *lengths]), sum(lengths) + 10, 1)
    assert lost_share(windows) == pytest.approx(20 / 110)
    assert lost_share(Windows(np.array([0, 10]), 20, 1)) == 0.0


def slower(facts: Facts, times: float) -> Slowdown:
    since_ns = facts.end_ns - (facts.end_ns - facts.processes[0].first_ns) // 3
    nothing: Any = np.zeros(0)
    return Slowdown(5, since_ns, facts.end_ns, 1e6, times * 1e6, nothing, nothing, nothing)


def test_slowdown__is_explained_by_cores_that_lack_since_then(
    steady: tuple[Facts, Settings],
) -> None:
    here = range(8)
    facts = waiting(on_one_host(steady[0], here), EVERYWHERE | dict.fromkeys(here, 0.5))
    text = f"iterations take 1.8 times as long. {NO_PLACE}"
    one = slowed_by_cpu(facts, slower(facts, 1.8), text)
    assert one is not None
    assert (one.place.name, one.certain) == ("host h", True)
    assert one.evidence.endswith("Iterations take 1.8 times as long."), "this finding explains it"
    assert one.meaning.startswith("processes wait for CPU cores")


@pytest.mark.parametrize(
    ("share", "before", "times"),
    [(0.5, 0.5, 1.8), (0.12, 0.01, 3.0), (0.05, 0.01, 1.1)],
    ids=["as many lacked before", "too few for so much", "hardly any"],
)
def test_slowdown__is_not_explained(
    steady: tuple[Facts, Settings], share: float, before: float, times: float
) -> None:
    facts = waiting(steady[0], dict.fromkeys(range(32), share), before=before)
    assert slowed_by_cpu(facts, slower(facts, times), "") is None


@pytest.mark.parametrize(
    ("share", "before", "lost", "expected"),
    [
        (STARVED, None, None, True),
        (0.9 * STARVED, None, None, False),
        (0.2, 0.2, 0.2, True),
        (0.2, 0.2, 0.3, False),
        (0.2, 0.05, 0.3, True),
        (0.2, 0.05, 0.5, False),
    ],
)
def test_explains(share: float, before: float | None, lost: float | None, expected: bool) -> None:
    assert explains(share, before, lost) == expected


def test_facts__have_the_readings_of_each_process() -> None:
    with new_store() as store:
        database = store.database
        for process in (4, 9):
            database.execute(
                "INSERT INTO processes (process, host, rank) VALUES (?, 'h', ?)",
                [process, process],
            )
        for row in (
            (4, 3_000_000_000, "cpu_wait", 250_000_000, 1000),
            (9, 3_500_000_000, "cpu_wait", 9_000_000_000, 2000),
            (9, 5_500_000_000, "cpu_wait", 1, 0),
            (9, 6_000_000_000, "process_stalled", 200_000_000, 0),
        ):
            database.execute(
                "INSERT INTO events (process, time_ns, what, value, status) VALUES (?, ?, ?, ?, ?)",
                [*row],
            )
        facts = facts_of(store)
    assert {name: column.tolist() for name, column in facts.cpu_waits.items()} == {
        "time_ns": [3_000_000_000, 3_500_000_000],
        "waited_ns": [250_000_000, 9_000_000_000],
        "over_ns": [1_000_000_000, 2_000_000_000],
        "source": [0, 1],
    }
    share_of = recorded(facts)
    assert share_of(0, 2_500_000_000, 4_000_000_000) == 0.25
    assert share_of(1, 2_500_000_000, 4_000_000_000) == 1.0
    assert share_of(1, 4_000_000_000, 5_000_000_000) is None
