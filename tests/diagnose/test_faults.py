"""Tests the verdict on each kind of fault, in a simulated job of 32 ranks."""

from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.support import traced
from transport.diagnose import Answer, Diagnosis, Settings, diagnose
from transport.diagnose.dead_link import dead_link
from transport.diagnose.facts import facts_of
from transport.diagnose.measures import delays_of, lateness_of
from transport.diagnose.paths import paths_of
from transport.diagnose.seen import Seen
from transport.diagnose.windows import windows_of
from transport.plan import routes
from transport.trace import open_store

AT_NS = 3_600_000  # within the fourth step
# Fault -> its keys, and the finding's class, kind of place, and place.
SLOW: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "slow NIC": (
        {"kind": "slow_nic", "rank": 13, "at_ns": AT_NS, "rate_factor": 0.1},
        ("communication_slow", "nic", "NIC of rank 13"),
    ),
    "lossy link": (
        {"kind": "lossy_link", "link": "leaf1-spine2", "at_ns": AT_NS, "loss": 0.1},
        ("network_loss", "link", "leaf1-spine2"),
    ),
    "lossy NIC": (
        {"kind": "lossy_link", "link": "leaf1-host13", "at_ns": AT_NS, "loss": 0.05},
        ("network_loss", "nic", "NIC of rank 13"),
    ),
    "link down": (
        {"kind": "link_down", "link": "leaf1-spine2", "at_ns": AT_NS},
        ("network_loss", "link", "leaf1-spine2"),
    ),
    "straggler": (
        {"kind": "straggler", "rank": 21, "at_step": 3, "compute_factor": 1.5},
        ("non_communication_slow", "rank", "rank 21"),
    ),
    "late calls": (
        {"kind": "late_calls", "rank": 21, "at_step": 3, "delay_ns": 500_000},
        ("non_communication_slow", "rank", "rank 21"),
    ),
    "collision": (
        {"kind": "collision", "link": "leaf1-spine2"},
        ("congestion", "link", "leaf1-spine2"),
    ),
    "process that went on": (
        {"kind": "stopped_process", "rank": 21, "at_ns": AT_NS, "until_ns": AT_NS + 3_000_000},
        ("non_communication_hang", "rank", "rank 21"),
    ),
    "NIC that went down and up": (
        {
            "kind": "link_down",
            "link": "leaf2-host21",
            "at_ns": AT_NS,
            "until_ns": AT_NS + 3_000_000,
        },
        ("network_loss", "nic", "NIC of rank 21"),
    ),
}
HANGS: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "absent rank": (
        {"kind": "absent_rank", "rank": 21, "at_step": 3, "operation": 1},
        ("non_communication_hang", "rank", "rank 21"),
    ),
    "stopped process": (
        {"kind": "stopped_process", "rank": 21, "at_ns": AT_NS},
        ("non_communication_hang", "rank", "rank 21"),
    ),
    "crash": ({"kind": "crash", "rank": 21, "at_ns": AT_NS}, ("crash", "rank", "rank 21")),
    "NIC down": (
        {"kind": "link_down", "link": "leaf1-host13", "at_ns": AT_NS},
        ("communication_hang", "nic", "NIC of rank 13"),
    ),
    "wrong function": (
        {"kind": "wrong_call", "rank": 21, "at_step": 3, "calls": "Broadcast"},
        ("mismatch", "rank", "rank 21"),
    ),
    "wrong size": (
        {"kind": "wrong_call", "rank": 21, "at_step": 3, "operation": 1, "size_bytes": 900_000},
        ("mismatch", "rank", "rank 21"),
    ),
}


def judged(folder: Path) -> Diagnosis:
    with open_store(folder) as store:
        return diagnose(store, Settings(routes=routes.read(folder / routes.FILE)))


@pytest.mark.parametrize("name", SLOW)
def test_fault__that_slows_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    fault, said = SLOW[name]
    first = judged(traced(tmp_path, fault)).findings[0]
    assert (first.kind, first.place.kind, first.place.name) == said
    assert first.certain


@pytest.mark.parametrize("name", HANGS)
def test_fault__that_hangs_is_named_with_its_place(tmp_path: Path, name: str) -> None:
    fault, said = HANGS[name]
    first = judged(traced(tmp_path, fault, limit_ns=10_000_000)).findings[0]
    assert (first.kind, first.place.kind, first.place.name) == said
    assert first.certain


def test_fault__none_is_healthy(tmp_path: Path) -> None:
    found = judged(traced(tmp_path))
    assert found.findings == ()
    assert found.answer is Answer.HEALTHY
    assert (found.ranks, found.iterations) == (32, 7)


def test_fault__a_pause_that_may_be_a_checkpoint_is_a_suspicion(tmp_path: Path) -> None:
    absent = {"kind": "absent_rank", "rank": 21, "at_step": 3, "operation": 1}
    found = judged(traced(tmp_path, absent, limit_ns=5_900_000))
    assert found.answer is Answer.NOT_JUDGED
    assert "a longer trace tells a pause from a hang" in found.evidence.lacks[-1].text
    assert [one.certain for one in found.findings] == [False]
    assert found.findings[0].place.name == "rank 21"


@pytest.mark.parametrize("seed", [2, 3])
def test_dead__a_link_that_only_acknowledgments_cross_is_dead_as_well(
    tmp_path: Path, seed: int
) -> None:
    """Two pairs of ranks cross it; some of their paths come back another way than they go."""
    operations = [
        {"name": "c", "compute_ns": 400_000},
        {"name": "d", "collective": "all_reduce_ring", "size_bytes": 1_000_000},
    ]
    steps = {"pattern": "steps", "repeats": 20, "launch_ns": 2_000, "noise": 0.02}
    down = {"kind": "link_down", "link": "leaf0-spine1", "at_ns": 3_000_000}
    folder = traced(
        tmp_path,
        down,
        seed=seed,
        network={"hosts": 8, "hosts_per_leaf": 4, "spines": 2},
        hosts={"paths": 4, "segment_bytes": 8_256},
        policies={},
        workload=[{**steps, "operations": operations}],
    )
    first = judged(folder).findings[0]
    assert (first.kind, first.place.name, first.certain) == ("network_loss", "leaf0-spine1", True)


@pytest.mark.parametrize(
    ("fault", "where"), [("link down", "leaf1-spine2"), ("lossy link", None), ("lossy NIC", None)]
)
def test_dead__a_link_whose_paths_all_failed(tmp_path: Path, fault: str, where: str | None) -> None:
    folder = traced(tmp_path, SLOW[fault][0])
    with open_store(folder) as store:
        facts = facts_of(store)
    windows = windows_of(facts)
    paths = paths_of(facts, windows, routes.read(folder / routes.FILE))
    found = dead_link(
        Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    )
    assert (found.place.name if found is not None else None) == where


def test_fault__without_routes_names_pairs_of_ranks(tmp_path: Path) -> None:
    lossy = {"kind": "lossy_link", "link": "leaf1-spine2", "at_ns": AT_NS, "loss": 0.1}
    traced(tmp_path, lossy)
    with open_store(tmp_path) as store:
        found = diagnose(store)
    assert found.findings[0].kind == "network_loss"
    assert found.findings[0].place.kind == "network"
    assert not found.findings[0].certain


def test_fault__a_lost_trace_does_not_hide_the_others(tmp_path: Path) -> None:
    folder = traced(tmp_path, SLOW["straggler"][0])
    next(iter(sorted(folder.glob("*.trace")))).unlink()
    found = judged(folder)
    assert found.findings[0].kind == "non_communication_slow"
    assert any("no trace of rank" in note for note in found.notes)


def pipeline(folder: Path, *faults: dict[str, Any]) -> Path:
    """Four stages of one rank each pass two microbatches on, and sum a norm at the end."""
    operations: list[dict[str, Any]] = []
    for number in range(2):
        message = {"size_bytes": 500_000, "shift": 1}
        operations += [
            {"name": f"receive {number}", "collective": "receive", "stream": "in", **message},
            {"name": f"forward {number}", "compute_ns": 300_000, "after": f"receive {number}"},
            {
                "name": f"send {number}",
                "collective": "send",
                "stream": "out",
                "after": f"forward {number}",
                **message,
            },
        ]
    operations += [
        {"name": "norm", "collective": "all_reduce_ring", "size_bytes": 64},
        {"name": "optimizer", "compute_ns": 100_000, "after": "norm"},
    ]
    work = {
        "name": "training",
        "pattern": "steps",
        "repeats": 12,
        "launch_ns": 2_000,
        "noise": 0.02,
        "operations": operations,
    }
    network = {"hosts": 4, "hosts_per_leaf": 2, "spines": 2, "queue_bytes": "1 MB"}
    return traced(folder, *faults, network=network, workload=[work])


def test_pipeline__a_stage_of_one_rank_is_compared_with_its_own_past(tmp_path: Path) -> None:
    fault = {"kind": "straggler", "rank": 2, "at_step": 7, "compute_factor": 1.5}
    first = judged(pipeline(tmp_path, fault)).findings[0]
    assert (first.kind, first.place.name, first.certain) == (
        "non_communication_slow",
        "rank 2",
        True,
    )


def test_pipeline__without_a_fault_is_healthy(tmp_path: Path) -> None:
    found = judged(pipeline(tmp_path))
    assert (found.findings, found.iterations) == ((), 12)
