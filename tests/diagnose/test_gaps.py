"""Tests how a process that did not run for a while is told from a NIC that loses packets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.grown import agent
from tests.diagnose.support import as_real, tables, traced
from tests.diagnose.test_faults import judged
from transport.diagnose import diagnosis
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.gaps import ALONE_NS, Gap, gaps_of, pauses, without_losses
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.incidents import HOLD_LOOKS
from transport.diagnose.live.pauses import Pauses
from transport.diagnose.settings import Settings
from transport.diagnose.windows import windows_of
from transport.trace import open_store

AT_NS, RANK = 3_900_000, 21


def stopped(folder: Path, for_ns: int, **more: Any) -> Path:
    fault = {"kind": "stopped_process", "rank": RANK, "at_ns": AT_NS, "until_ns": AT_NS + for_ns}
    return traced(folder, fault | more)


def gaps(folder: Path) -> tuple[Facts, list[Gap]]:
    with open_store(folder) as store:
        facts = facts_of(store)
    return facts, gaps_of(facts, windows_of(facts))


@pytest.mark.parametrize(("for_ns", "certain"), [(1_000_000, False), (3_000_000, True)])
def test_gaps__a_process_that_was_stopped_is_no_lossy_nic(
    tmp_path: Path, for_ns: int, certain: bool
) -> None:
    found = judged(stopped(tmp_path, for_ns)).findings
    assert [(one.kind, one.place.name, one.certain) for one in found] == [
        ("non_communication_hang", f"rank {RANK}", certain)
    ]
    assert found[0].from_ns <= AT_NS + 100_000
    assert found[0].to_ns >= AT_NS + for_ns


@pytest.mark.parametrize(
    ("processes", "long", "certain"),
    [
        ((RANK,), False, False),
        ((RANK,), True, True),
        ((RANK,) * 3, False, True),
        ((RANK, RANK, RANK, RANK + 1), False, False),  # another process of the host has one, too
    ],
)
def test_gaps__of_real_jobs_that_a_busy_host_makes_are_suspicions(
    tmp_path: Path, processes: tuple[int, ...], long: bool, certain: bool
) -> None:
    """Gaps of more than two iterations, of processes of one host."""
    with open_store(traced(tmp_path)) as store:
        facts = as_real(facts_of(store), 30)
    facts = replace(facts, processes=tuple(replace(one, host="a") for one in facts.processes))
    windows = windows_of(facts)
    lasted_ns = ALONE_NS if long else ALONE_NS - 1
    begin_ns = int(windows.starts_ns[0])
    every = [
        Gap(one, begin_ns + at, begin_ns + at + lasted_ns, (), 0, 0, lasted_ns, True)
        for at, one in enumerate(processes)
    ]
    assert lasted_ns > 2 * windows.usual_ns
    found = pauses(facts, windows, every, 0)
    assert [one.certain for one in found if one.place.ranks == (RANK,)] == [certain]
    assert all("a pause, and no hang" in one.meaning for one in found)


@pytest.mark.parametrize("times", [200, 300])
def test_gaps__of_a_real_job_that_are_suspicions_blame_no_nic(tmp_path: Path, times: int) -> None:
    """Neither the losses of the NIC nor that no path to it worked is a finding instead."""
    workload = [tables()["workload"][0] | {"repeats": 14}]
    fault = {"kind": "stopped_process", "rank": RANK, "at_ns": 5_900_000, "until_ns": 8_800_000}
    with open_store(traced(tmp_path, fault, workload=workload)) as store:
        found = diagnosis.judged(as_real(facts_of(store), times), [], Settings(), [])
    assert [(one.kind, one.certain) for one in found.findings] == [
        ("non_communication_hang", False)
    ]
    assert not found.unexplained


def test_gaps__only_that_process_has_one(tmp_path: Path) -> None:
    """Others record nothing either while they wait for it, and it cannot reach all of them."""
    _, found = gaps(stopped(tmp_path, 5_000_000))
    assert [one.process for one in found] == [RANK]


def test_gaps__explain_losses_at_both_ends_until_senders_have_tried_again(tmp_path: Path) -> None:
    facts, found = gaps(stopped(tmp_path, 3_000_000))
    assert len(facts.losses["time_ns"])
    rest = without_losses(facts, found)
    assert not len(rest.losses["time_ns"])
    assert set(rest.downs["what"].tolist()) == {"path_up"}


@pytest.mark.parametrize("for_ns", [300_000, 1_000_000, 3_000_000])
def test_gaps__a_nic_that_was_down_makes_its_process_try(tmp_path: Path, for_ns: int) -> None:
    down = {
        "kind": "link_down",
        "link": f"leaf2-host{RANK}",
        "at_ns": AT_NS,
        "until_ns": AT_NS + for_ns,
    }
    traced(tmp_path, down)
    assert gaps(tmp_path)[1] == []
    assert [(one.kind, one.place.name) for one in judged(tmp_path).findings] == [
        ("network_loss", f"NIC of rank {RANK}")
    ]


LAST = 15  # the last rank of a chain, or of a pipeline, only receives


def compute(name: str, for_ns: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "compute_ns": for_ns} | more


CHAIN = (
    compute("forward", 400_000),
    {"name": "weights", "collective": "broadcast", "size_bytes": 4_000_000},
    compute("backward", 200_000),
)
ONE_WAY = (
    {
        "name": "receive",
        "collective": "receive",
        "size_bytes": 1_000_000,
        "shift": 4,
        "stream": "in",
    },
    compute("forward", 400_000, after="receive"),
    {
        "name": "send",
        "collective": "send",
        "size_bytes": 1_000_000,
        "shift": 4,
        "stream": "out",
        "after": "forward",
    },
    compute("optimizer", 100_000, after="forward"),
)


def one_way(
    folder: Path, operations: tuple[dict[str, Any], ...], steps: int, fault: dict[str, Any]
) -> Path:
    """Traces a job of 16 ranks in which the last ones only receive."""
    work = {
        "name": "training",
        "pattern": "steps",
        "hosts": list(range(LAST + 1)),
        "repeats": steps,
        "launch_ns": 2_000,
        "noise": 0.03,
        "operations": list(operations),
    }
    network = {"hosts": LAST + 1, "hosts_per_leaf": 8, "spines": 4, "queue_bytes": "1 MB"}
    return traced(folder, fault, limit_ns=10**9, network=network, workload=[work])


@pytest.mark.parametrize(
    ("kind", "for_ns"),
    [
        ("link_down", 1_500_000),
        ("link_down", 3_000_000),
        ("link_down", 10_000_000),
        ("lossy_link", 10_000_000),
    ],
)
def test_gaps__of_a_rank_that_only_receives_may_be_its_nic(
    tmp_path: Path, kind: str, for_ns: int
) -> None:
    at_ns = 20_000_000
    fault = {"kind": kind, "link": f"leaf1-host{LAST}", "at_ns": at_ns, "until_ns": at_ns + for_ns}
    fault |= {"loss": 0.9} if kind == "lossy_link" else {}
    one_way(tmp_path, CHAIN, 60, fault)
    facts, found = gaps(tmp_path)
    assert [(one.process, one.proven) for one in found] == [(LAST, False)]
    assert without_losses(facts, found) is facts
    by_kind = {one.kind: one for one in judged(tmp_path).findings}
    assert set(by_kind) == {"network_loss", "non_communication_hang"}
    either = by_kind["non_communication_hang"]
    assert either.place.candidates == (f"NIC of rank {LAST}",)
    assert (either.confidence_of_all, either.confidence) == (0.9, 0.45)
    assert "or its NIC did not work" in either.evidence
    assert f"rank {LAST - 1}" in by_kind["network_loss"].place.name


@pytest.mark.parametrize("for_ns", [3_000_000, 10_000_000])
def test_gaps__that_are_not_proven_still_explain_what_the_sender_lost(
    tmp_path: Path, for_ns: int
) -> None:
    """The rank before the last sends to no other rank, so its NIC also seems to lose packets."""
    stop = {"kind": "stopped_process", "rank": LAST, "at_ns": 20_000_000}
    one_way(tmp_path, CHAIN, 60, stop | {"until_ns": 20_000_000 + for_ns})
    assert [(one.process, one.proven) for one in gaps(tmp_path)[1]] == [(LAST, False)]
    found = judged(tmp_path).findings
    assert [one.place.name for one in found if one.certain] == [f"rank {LAST}"]


def test_gaps__of_a_last_stage_whose_nic_was_down_excuse_no_losses(tmp_path: Path) -> None:
    at_ns = 10_000_000
    down = {
        "kind": "link_down",
        "link": f"leaf1-host{LAST}",
        "at_ns": at_ns,
        "until_ns": at_ns + 3_000_000,
    }
    found = judged(one_way(tmp_path, ONE_WAY, 60, down)).findings
    assert [one.kind for one in found] == ["network_loss"]


def test_gaps__of_a_rank_that_only_receives_are_proven_by_a_call_that_was_due(
    tmp_path: Path,
) -> None:
    """It was stopped while it computed: behind a dead NIC it would have called the next Recv."""
    at_ns = 10_000_000
    stop = {"kind": "stopped_process", "rank": LAST, "at_ns": at_ns, "until_ns": at_ns + 3_000_000}
    _, found = gaps(one_way(tmp_path, ONE_WAY, 60, stop))
    assert [(one.process, one.proven) for one in found] == [(LAST, True)]


@pytest.mark.parametrize("fault", ["link_down", "stopped_process"])
def test_gaps__of_a_rank_that_only_waits_are_not_proven(tmp_path: Path, fault: str) -> None:
    """All of its messages of the ring had been acknowledged, and it waited for the next one."""
    at_ns = 4_000_000
    where = {"link": f"leaf2-host{RANK}"} if fault == "link_down" else {"rank": RANK}
    traced(tmp_path, {"kind": fault, "at_ns": at_ns, "until_ns": at_ns + 2_000_000} | where)
    assert [(one.process, one.proven) for one in gaps(tmp_path)[1]] == [(RANK, False)]
    (either,) = [one for one in judged(tmp_path).findings if one.kind == "non_communication_hang"]
    # A short one is only suspected, and then the evidence alone names the NIC.
    assert either.place.candidates == ((f"NIC of rank {RANK}",) if either.certain else ())
    assert "or its NIC did not work" in either.evidence


def test_gaps__of_a_rank_that_only_waits_are_proven_if_it_noticed_them(tmp_path: Path) -> None:
    at_ns, for_ns = 4_000_000, 1_500_000_000
    stop = {"kind": "stopped_process", "rank": RANK, "at_ns": at_ns, "until_ns": at_ns + for_ns}
    facts, found = gaps(traced(tmp_path, stop, limit_ns=10**10))
    assert [(one.process, one.proven) for one in found] == [(RANK, True)]
    assert 0.9 * for_ns <= found[0].stalled_ns <= for_ns
    said = [one for one in judged(tmp_path).findings if one.certain]
    assert [(one.kind, one.place.name) for one in said] == [
        ("non_communication_hang", f"rank {RANK}")
    ]
    assert "Its thread that writes the trace woke up 1400.0 ms late." in said[0].evidence

    # It is as certain if nobody tried to reach the process.
    kept = facts.downs["what"] == "process_stalled"
    alone = replace(facts, downs={name: column[kept] for name, column in facts.downs.items()})
    found = gaps_of(alone, windows_of(alone))
    assert [(one.process, one.proven, one.timeouts) for one in found] == [(RANK, True, 0)]


@pytest.mark.parametrize("at_ns", [3_000_000, 3_200_000, 3_600_000, 4_200_000])
def test_gaps__of_a_rank_that_sends_are_proven(tmp_path: Path, at_ns: int) -> None:
    traced(
        tmp_path,
        {"kind": "stopped_process", "rank": RANK, "at_ns": at_ns, "until_ns": at_ns + 3_000_000},
    )
    assert [(one.process, one.proven) for one in gaps(tmp_path)[1]] == [(RANK, True)]
    found = [(one.kind, one.certain) for one in judged(tmp_path).findings]
    assert found == [("non_communication_hang", True)]


def test_gaps__are_told_once_while_the_job_runs(tmp_path: Path) -> None:
    said = agent(stopped(tmp_path, 3_000_000)).step()
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told = [
        [(one.what, one.incident.finding.place.name) for one in collector.step([said])]
        for _ in range(HOLD_LOOKS + 1)
    ]
    # Nothing new is judged, so it does not end either.
    assert told == [[("finding", f"rank {RANK}")], *[[]] * HOLD_LOOKS]
    # The wait of the others for the stopped process does not count.
    assert collector.pauses.longest_ns < 3_000_000
