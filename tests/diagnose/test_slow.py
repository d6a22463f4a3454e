"""Tests when slow messages are certain evidence of a slow NIC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.lib.diagnosis_jobs import Job
from tests.diagnose.support import traced
from tests.diagnose.test_answers import job, written
from tests.diagnose.test_faults import judged
from transport.diagnose import Answer
from transport.sim.run import run
from transport.sim.scenario import from_tables
from transport.sim.trace import write_trace

RANKS, STEPS = 16, 12


def small_pipeline(folder: Path, seed: int, *faults: dict[str, Any]) -> Path:
    """Four stages of four ranks under one switch: their flows meet at NICs as stages drift."""
    tables = Job("pipeline", RANKS, seed).tables(STEPS)
    tables["faults"] = list(faults)
    write_trace(run(from_tables(tables, file="job"), trace_ns=500_000), folder)
    return folder


@pytest.mark.parametrize("seed", [1, 3, 8])
def test_slow__flows_of_the_job_that_meet_are_no_slow_nic(tmp_path: Path, seed: int) -> None:
    """With seeds 1 and 8 one pair of ranks is slow for some windows, with seed 3 all that send to
    a rank, whose NIC carries more than usual then."""
    assert judged(small_pipeline(tmp_path, seed)).answer is Answer.HEALTHY


@pytest.mark.parametrize("factor", [0.5, 0.25])
@pytest.mark.parametrize("side", ["send", "receive", "both"])
def test_slow__the_side_of_a_nic_in_a_ring_is_told(
    tmp_path: Path, side: str, factor: float
) -> None:
    """In a ring, each pair of ranks is all that two NICs send or receive."""
    fault = {"kind": "slow_nic", "rank": 3, "at_ns": 6_500_000, "rate_factor": factor, "side": side}
    (one,) = judged(written(tmp_path, job(fault))).findings
    assert (one.place.name, one.place.side) == ("NIC of rank 3", "" if side == "both" else side)
    assert one.place.candidates == ()
    assert one.certain


@pytest.mark.parametrize("rank", [5, 14])
def test_slow__a_nic_that_carries_less_is_certain(tmp_path: Path, rank: int) -> None:
    fault = {"kind": "slow_nic", "rank": rank, "at_ns": 9_000_000, "rate_factor": 0.4}
    first = judged(small_pipeline(tmp_path, 3, fault)).findings[0]
    assert (first.kind, first.place.name) == ("communication_slow", f"NIC of rank {rank}")
    assert first.certain


def short_ring(folder: Path, fault: dict[str, Any]) -> Path:
    """Eight ranks sum around a ring, twice."""
    operations = [
        {"name": "compute", "compute_ns": 300_000},
        {"name": "sum", "collective": "all_reduce_ring", "size_bytes": 2_000_000},
    ]
    work = {
        "name": "training",
        "pattern": "steps",
        "repeats": 2,
        "launch_ns": 2_000,
        "noise": 0.02,
        "operations": operations,
    }
    network = {"hosts": 8, "hosts_per_leaf": 4, "spines": 2, "queue_bytes": "1 MB"}
    return traced(folder, fault, network=network, workload=[work])


@pytest.mark.parametrize("rank", [0, 3, 4, 7])
def test_slow__of_two_windows_the_right_nic_is_suspected(tmp_path: Path, rank: int) -> None:
    """One pair of the NIC is 2.5 times as slow as others, and its other pair almost so."""
    fault = {"kind": "slow_nic", "rank": rank, "at_ns": 0, "rate_factor": 0.4}
    found = judged(short_ring(tmp_path, fault))
    assert found.iterations == 2
    first = found.findings[0]
    assert (first.kind, first.place.name) == ("communication_slow", f"NIC of rank {rank}")
    assert not first.certain
