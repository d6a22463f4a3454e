"""Tests the four answers, and faults that no three consecutive iterations show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.diagnose.test_command import without
from transport.diagnose import Answer, Diagnosis, diagnose
from transport.diagnose.chance import at_least
from transport.diagnose.recurring import Period, period_of
from transport.diagnose.slower import change_of
from transport.sim.run import run
from transport.sim.scenario import from_tables
from transport.sim.trace import write_trace
from transport.trace import open_store

RANKS = 16


def job(
    *faults: dict[str, Any], steps: int = 12, all_hosts: int = RANKS, **more: Any
) -> dict[str, Any]:
    """Data parallelism of 16 ranks in a ring, with two buckets of gradients."""
    operations = [
        {"name": "forward", "compute_ns": 500_000},
        {"name": "bucket 1", "collective": "all_reduce_ring", "size_bytes": 2_000_000},
        {"name": "backward", "compute_ns": 300_000},
        {"name": "bucket 0", "collective": "all_reduce_ring", "size_bytes": 1_000_000},
    ]
    steps_ = {"pattern": "steps", "repeats": steps, "launch_ns": 3_000, "noise": 0.02}
    return {
        "limit_ns": 400_000_000,
        "network": {"hosts": all_hosts, "hosts_per_leaf": 4, "spines": 4, "queue_bytes": "1 MB"},
        "hosts": {"paths": 8, "segment_bytes": 8_256},
        "workload": [steps_ | {"operations": operations} | more],
        "faults": list(faults),
    }


def written(folder: Path, tables: dict[str, Any]) -> Path:
    write_trace(run(from_tables(tables, file="job"), trace_ns=200_000), folder)
    return folder


def judged(folder: Path) -> Diagnosis:
    with open_store(folder) as store:
        return diagnose(store)


def slow(rank: int, factor: float = 1.8, at_step: int = 5) -> dict[str, Any]:
    return {"kind": "straggler", "rank": rank, "at_step": at_step, "compute_factor": factor}


def late(rank: int, step: int) -> dict[str, Any]:
    delay = {"kind": "late_calls", "rank": rank, "delay_ns": 3_000_000}
    return delay | {"at_step": step, "until_step": step + 1}


def test_answer__healthy_says_what_was_judged(tmp_path: Path) -> None:
    found = judged(written(tmp_path, job()))
    assert found.answer is Answer.HEALTHY
    assert (found.evidence.ranks, found.evidence.nics, found.evidence.iterations) == (16, 16, 11)
    assert found.evidence.messages == 11 * 2 * 30 * 16 + 2 * 30 * 16


def test_answer__too_few_iterations_are_not_judged(tmp_path: Path) -> None:
    found = judged(written(tmp_path, job(steps=4)))
    assert found.answer is Answer.NOT_JUDGED
    assert [one.what for one in found.evidence.lacks] == ["the trace has 3 whole iterations"]


def test_group__half_of_the_ranks_is_one_finding(tmp_path: Path) -> None:
    """The median of all ranks hides them: each is compared with itself."""
    found = judged(written(tmp_path, job(*(slow(rank) for rank in range(8)))))
    (one,) = found.findings
    assert (one.kind, one.place.name, one.certain) == ("non_communication_slow", "ranks 0-7", True)
    assert one.place.ranks == tuple(range(8))


@pytest.mark.parametrize(("first", "apart"), [(4, 4), (3, 3), (5, 6)])
def test_recurring__a_period_is_told(tmp_path: Path, first: int, apart: int) -> None:
    steps = range(first, 22, apart)
    found = judged(written(tmp_path, job(*(late(8, step) for step in steps), steps=24)))
    (one,) = found.findings
    assert (one.place.name, one.more["period_iterations"]) == ("rank 8", apart)
    assert one.certain
    assert f"in {len(steps)} of 22 iterations" in one.evidence


def test_recurring__ranks_that_take_turns_are_no_straggler(tmp_path: Path) -> None:
    """Other load delays another rank each time."""
    delays = [late(rank * 5 % RANKS, 4 + 3 * rank) for rank in range(6)]
    found = judged(written(tmp_path, job(*delays, steps=24)))
    assert not any(one.certain for one in found.findings)


@pytest.mark.parametrize("ranks", [(3, 11), (2, 5, 13)])
def test_stragglers__all_of_several_are_named(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    found = judged(written(tmp_path, job(*(slow(rank, 1.5 + rank / 20) for rank in ranks))))
    (one,) = found.findings
    assert (one.place.kind, one.place.ranks, one.certain) == ("ranks", ranks, True)
    assert "Late as well: rank" in one.evidence


def test_absent__the_straggler_is_the_rank_without_a_trace(tmp_path: Path) -> None:
    without(written(tmp_path, job(slow(12, 2.0))), 12)
    found = judged(tmp_path)
    certain = [one for one in found.findings if one.certain]
    assert [one.place.name for one in certain] == ["rank 12"]
    assert certain[0].confidence <= 0.9
    assert found.ranks == 15


def test_absent__a_healthy_rank_without_a_trace_is_not_blamed(tmp_path: Path) -> None:
    without(written(tmp_path, job(slow(3, 2.0))), 12)
    certain = [one for one in judged(tmp_path).findings if one.certain]
    assert [one.place.name for one in certain] == ["rank 3"]


@pytest.mark.parametrize("at_ns", [4_000_000, 6_500_000])  # after three iterations and later
def test_slower__a_job_on_other_hosts_is_never_healthy(tmp_path: Path, at_ns: int) -> None:
    """It shares links between switches, and no rank has a trace of it."""
    mine = [host for host in range(32) if host % 4 < 2]
    others = ",".join(str(host) for host in range(32) if host % 4 >= 2)
    second = {"kind": "second_job", "hosts": others, "at_ns": at_ns}
    second |= {"size_bytes": 8_000_000, "repeats": 200}
    found = judged(written(tmp_path, job(second, all_hosts=32, hosts=mine)))
    assert found.answer in (Answer.UNEXPLAINED, Answer.FOUND)
    assert found.answer is Answer.FOUND or "pairs of ranks take longer" in found.unexplained


@given(st.lists(st.integers(900, 1_000), min_size=6, max_size=40), st.integers(3, 37))
def test_slower__a_step_is_found_where_it_is(values: list[int], at: int) -> None:
    lengths = np.array(values, np.float64)
    if at > len(values) - 3:
        assert change_of(np.full(len(values), 1_000.0)) is None
        return
    lengths[at:] *= 2
    found = change_of(lengths)
    assert found is not None
    assert found[0] == at


@given(st.integers(1, 9), st.integers(3, 20), st.integers(0, 5))
def test_recurring__whole_steps_are_a_period(apart: int, count: int, first: int) -> None:
    iterations = first + apart * np.arange(count)
    assert period_of(iterations, iterations * 1_000) == Period(steps=apart)


def test_recurring__a_time_is_a_period_where_steps_are_none() -> None:
    times = np.array([0, 2_010, 3_990, 6_000, 8_020, 12_010]) * 1_000_000
    found = period_of(np.array([3, 11, 18, 27, 35, 51]), times)
    assert (found.steps, round(found.ns / 1e9)) == (0, 2)
    assert period_of(np.array([3, 11, 12, 27]), np.array([0, 5, 6, 30]) * 10**9) == Period()


def test_recurring__chance_is_that_of_a_binomial() -> None:
    assert at_least(0, 5, 1 / 4) == pytest.approx(1)
    assert at_least(5, 5, 1 / 4) == pytest.approx(0.25**5)
    assert at_least(1, 2, 1 / 2) == pytest.approx(0.75)


def test_risen__a_rank_is_found_among_ranks_that_always_differ(tmp_path: Path) -> None:
    """Half of the ranks always compute more, and some iterations are longer, so medians and
    deviations of all ranks hide a rank that comes later by a fifth of an iteration."""
    fault = {"kind": "late_calls", "rank": 15, "at_step": 5, "delay_ns": 500_000}
    tables = job(fault, steps=14)
    operations = tables["workload"][0]["operations"]
    operations.append({"name": "padding", "compute_ns": 300_000, "ranks": "0-7"})
    operations.append({"name": "long", "compute_ns": 400_000, "every": 3, "offset": 1})
    certain = [one for one in judged(written(tmp_path, tables)).findings if one.certain]
    assert [one.place.name for one in certain] == ["rank 15"]


def test_windows__an_evaluation_every_few_steps_leaves_steps(tmp_path: Path) -> None:
    """The exact period is four steps long; each of them is an iteration all the same."""
    tables = job(steps=14)
    more = {"name": "evaluation", "collective": "all_gather", "size_bytes": 100_000}
    tables["workload"][0]["operations"].append(more | {"every": 4, "offset": 2})
    found = judged(written(tmp_path, tables))
    assert found.iterations >= 13
    assert found.answer is Answer.HEALTHY


def test_slower__a_nic_is_named_though_queues_overflow(tmp_path: Path) -> None:
    fault = {"kind": "slow_nic", "rank": 12, "at_ns": 9_000_000, "side": "receive"}
    tables = job(fault | {"rate_factor": 0.3}, steps=14)
    tables["network"]["queue_bytes"] = "200 kB"
    exchange = {"name": "tokens", "collective": "all_to_all", "size_bytes": 1_500_000}
    tables["workload"][0]["operations"].append(exchange)
    certain = [one for one in judged(written(tmp_path, tables)).findings if one.certain]
    assert ("communication_slow", "NIC of rank 12") in [(o.kind, o.place.name) for o in certain]


def test_slower__phases_of_a_job_do_not_hide_that_it_became_slower() -> None:
    lengths = np.array([9.5, 9.7, 16.0, 9.2, 9.7, 9.8, 15.6, 11.5, 11.5, 19.6, 11.5, 11.6, 18.6])
    found = change_of(lengths * 1e6)
    assert found is not None
    assert found[0] in (6, 7)  # of which the first is a phase
