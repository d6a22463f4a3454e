"""Runs thousands of fault schedules: none hangs, corrupts data, breaks an invariant or varies.

WEFT_TEST_SCHEDULES sets their number, which is at least 20,000; a failure names its seed.
"""

import os

import pytest

from . import Outcome, Runner

COUNT = max(20_000, int(os.environ.get("WEFT_TEST_SCHEDULES", "20000")))
KIND_COUNT_MIN = 500
KINDS = {
    *("loss", "reorder", "duplicate", "corrupt", "delay", "dead_path", "dead_peer", "replay"),
    *("stray", "early_close", "too_long", "swap", "windows", "late_reads"),
    *("staged_sends", "staged_receives"),
}


@pytest.fixture(scope="module")
def outcome(runner: Runner) -> Outcome:
    return runner.run(seed=1, count=COUNT)


def test_schedules__none_breaks_an_invariant(outcome: Outcome) -> None:
    assert outcome.violations == []
    assert outcome.schedules == COUNT


def test_schedules__none_hangs(outcome: Outcome) -> None:
    assert outcome.hung == 0


def test_schedules__none_delivers_a_wrong_byte(outcome: Outcome) -> None:
    assert outcome.corrupt_messages == 0
    assert outcome.completed > 10 * COUNT


def test_schedules__all_are_distinct(outcome: Outcome) -> None:
    assert outcome.distinct == outcome.schedules


def test_schedules__every_kind_of_fault_occurs(outcome: Outcome) -> None:
    assert set(outcome.kinds) == KINDS
    rare = {kind: count for kind, count in outcome.kinds.items() if count < KIND_COUNT_MIN}
    assert rare == {}


def test_schedules__faults_do_bite(outcome: Outcome) -> None:
    assert outcome.segments_resent > COUNT
    assert outcome.data_lost > COUNT
    assert outcome.failed > 0


def test_schedules__no_shipped_policy_fails(outcome: Outcome) -> None:
    assert outcome.policies_failed == 0


def test_schedules__a_seed_is_a_run(runner: Runner) -> None:
    first = runner.run(seed=500_000, count=1_000)
    assert runner.run(seed=500_000, count=1_000) == first
    assert runner.run(seed=501_000, count=1_000).fingerprint != first.fingerprint
