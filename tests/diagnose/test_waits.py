"""Tests who is charged for waiting at collectives, against the definition of the Shapley value."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from tests.diagnose.test_answers import job, late, written
from tests.diagnose.test_command import without
from tests.trace.writer import rank_of
from transport.cli import weft
from transport.diagnose.waits import _caused_ns


def calls_of(*collectives: list[int], ends_ns: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Calls of ranks that came to collectives at these times; all ended at ends_ns before."""
    rows = [
        (instance, rank, ns)
        for instance, arrivals in enumerate([[ends_ns] * len(collectives[0]), *collectives])
        for rank, ns in enumerate(arrivals)
    ]
    instance, rank, ns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    count = len(rows)
    return {
        "instance": instance,
        "process": rank,
        "arrival_ns": ns,
        "end_ns": np.where(instance == 0, ns, -1),
        "function": np.full(count, "AllReduce", object),
        "count": np.ones(count, np.uint64),
        "datatype": np.full(count, "", object),
        "ranks": np.full(count, len(collectives[0])),
    }


def shapley(arrivals: list[int]) -> list[float]:
    """By definition: the mean, over all orders, of what each rank adds to the waiting of all.

    The game of a set of ranks: the others came first, and wait for the latest of the set.
    """
    first = min(arrivals)

    def waiting(some: tuple[int, ...]) -> int:
        came = [ns if rank in some else first for rank, ns in enumerate(arrivals)]
        return max(came)

    total = [0.0] * len(arrivals)
    orders = list(permutations(range(len(arrivals))))
    for order in orders:
        for at, rank in enumerate(order):
            total[rank] += waiting(order[: at + 1]) - waiting(order[:at])
    return [one / len(orders) for one in total]


@given(st.lists(st.integers(0, 1_000), min_size=2, max_size=5))
def test_waits__what_a_rank_delays_is_its_shapley_value(arrivals: list[int]) -> None:
    """Of the delay of the collective each rank is charged its Shapley value, and of the time that
    others waited the part of each interval that the ranks which were missing share."""
    calls = calls_of([ns + 10_000 for ns in arrivals])
    rows = np.flatnonzero(calls["instance"] == 1)
    caused, last = _caused_ns(calls, rows)
    slow = np.sort(arrivals)[int(0.25 * (len(arrivals) - 1))]
    ranks = len(arrivals)
    order = sorted(range(ranks), key=lambda rank: (arrivals[rank], rank))
    shares, charged = [0.0] * ranks, [0.0] * ranks
    for k in range(1, ranks):
        gap = arrivals[order[k]] - arrivals[order[k - 1]]
        for rank in order[k:]:
            shares[rank] += gap / (ranks - k)
            charged[rank] += gap * k / (ranks - k)
    assert shares == pytest.approx(shapley(arrivals))
    late_ns = [ns - min(arrivals) for ns in arrivals]
    own = [max(ns - slow, 0) for ns in arrivals]
    want = [
        each * min(mine, whole) / whole if whole else 0.0
        for each, mine, whole in zip(charged, own, late_ns, strict=True)
    ]
    assert caused.tolist() == pytest.approx(want)
    assert last.sum() == 1
    assert arrivals[int(np.flatnonzero(last)[0])] == max(arrivals)


def test_waits__a_victim_is_charged_nothing() -> None:
    """Rank 1 comes late because its operation before ended late: it took no longer on its own."""
    calls = calls_of([10_000, 15_000, 10_000, 10_000])
    calls["end_ns"][1] = 5_000
    rows = np.flatnonzero(calls["instance"] == 1)
    assert _caused_ns(calls, rows)[0].tolist() == pytest.approx([0, 0, 0, 0], abs=5)


def test_waits__buckets_that_begin_together_count_once() -> None:
    arrivals = [10_000, 10_000, 10_000, 10_000, 15_000]
    calls = calls_of(arrivals, arrivals)
    caused, _ = _caused_ns(calls, np.flatnonzero(calls["instance"] >= 1))
    assert caused.sum() == pytest.approx(4 * 5_000)


def test_lost_time__names_rank_cost_and_period(tmp_path: Path) -> None:
    folder = written(tmp_path, job(*(late(8, step) for step in range(4, 22, 4)), steps=24))
    done = CliRunner().invoke(weft, ["diagnose", str(folder), "--lost-time"])
    assert done.exit_code == 0
    first = done.output.splitlines()[2]
    assert first.split()[:2] == ["8", "host8"]
    assert "5 of 24 iterations, in every 4th iteration" in first
    done = CliRunner().invoke(weft, ["diagnose", str(folder), "--lost-time", "--json", "-"])
    found = json.loads(done.output)
    assert (found["ranks"][0]["rank"], found["ranks"][0]["period_iterations"]) == (8, 4)
    # Five times 3 ms, for which 15 ranks wait.
    assert found["ranks"][0]["waited_ns"] == pytest.approx(5 * 3_000_000 * 15, rel=0.05)
    assert found["waited_ns"] == sum(one["waited_ns"] for one in found["ranks"])


def test_lost_time__of_a_rank_without_a_trace(tmp_path: Path) -> None:
    folder = written(tmp_path, job(*(late(8, step) for step in range(4, 10)), steps=12))
    without(folder, 8)
    done = CliRunner().invoke(weft, ["diagnose", str(folder), "--lost-time", "--json", "-"])
    found = json.loads(done.output)
    assert (found["ranks"][0]["rank"], found["ranks"][0]["host"]) == (8, "")
    assert found["ranks"][0]["waited_ns"] == pytest.approx(6 * 3_000_000 * 15, rel=0.05)


def test_lost_time__says_what_to_record_without_collectives(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    process.write()
    done = CliRunner().invoke(weft, ["diagnose", str(tmp_path), "--lost-time"])
    assert done.exit_code == 4, done.output
    assert "trace a job that calls NCCL's collectives (weft trace record" in done.output


def test_lost_time__is_of_whole_jobs(tmp_path: Path) -> None:
    done = CliRunner().invoke(weft, ["diagnose", str(tmp_path), "--lost-time", "--live"])
    assert (done.exit_code, "of whole jobs, not --live" in done.output) == (2, True)
