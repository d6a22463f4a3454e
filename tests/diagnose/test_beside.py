"""Tests the rules that compare a link or NIC with others like it, and not with its own past."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.diagnose.support import as_real
from tests.diagnose.test_answers import RANKS, job, slow, written
from transport.diagnose import Answer, Diagnosis, Settings, diagnose
from transport.diagnose.facts import facts_of
from transport.diagnose.failing_link import _failures, failing_link
from transport.diagnose.long_transfers import _causes, long_transfers
from transport.diagnose.measures import delays_of, lateness_of
from transport.diagnose.paths import paths_of
from transport.diagnose.report import json_of, lines_of
from transport.diagnose.round_trips import long_round_trips
from transport.diagnose.seen import Seen
from transport.diagnose.windows import judged_windows_of
from transport.plan import routes
from transport.plan.routes import undirected
from transport.trace import open_store

LINK_RATE = 12_500_000_000


def seen_of(folder: Path, *, with_routes: bool = True) -> Seen:
    with open_store(folder) as store:
        facts = facts_of(store)
    windows = judged_windows_of(facts)
    known = routes.read(folder / routes.FILE) if with_routes else None
    paths = paths_of(facts, windows, known)
    return Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)


def judged(folder: Path) -> Diagnosis:
    with open_store(folder) as store:
        return diagnose(store, Settings(routes=routes.read(folder / routes.FILE)))


def first(found: Diagnosis) -> tuple[str, str, bool]:
    one = found.findings[0]
    return one.kind, one.place.name, one.certain


def slow_from_the_start(link: str) -> dict[str, Any]:
    tables = job()
    tables["events"] = [{"at_ns": 0, "link": link, "rate": LINK_RATE // 20}]
    return tables


@pytest.mark.parametrize("link", ["leaf1-spine2", "leaf3-spine0"])
def test_round_trips__a_link_that_was_never_quick_is_named(tmp_path: Path, link: str) -> None:
    found = judged(written(tmp_path, slow_from_the_start(link)))
    assert found.answer is Answer.FOUND
    one = found.findings[0]
    assert (one.kind, one.certain) == ("congestion", True)
    # In a ring, the same paths may cross two links.
    assert link in (one.place.name, *one.place.candidates)


@pytest.mark.parametrize("side", ["receive", "both"])
def test_round_trips__a_nic_that_was_never_quick_is_named(tmp_path: Path, side: str) -> None:
    fault = {"kind": "slow_nic", "rank": 6, "at_ns": 0, "side": side, "rate_factor": 0.3}
    found = judged(written(tmp_path, job(fault)))
    assert first(found) == ("communication_slow", "NIC of rank 6", True)


def test_round_trips__a_healthy_job_has_no_slow_place(tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, job()))
    assert long_round_trips(seen) is None
    assert failing_link(seen) is None


def test_round_trips__without_routes_no_link_is_named(tmp_path: Path) -> None:
    written(tmp_path, slow_from_the_start("leaf1-spine2"))
    found = long_round_trips(seen_of(tmp_path, with_routes=False))
    assert found is None or found.place.kind == "nic"
    assert failing_link(seen_of(tmp_path, with_routes=False)) is None


def test_round_trips__a_link_that_carries_more_is_not_slow(tmp_path: Path) -> None:
    seen = seen_of(written(tmp_path, slow_from_the_start("leaf1-spine2")))
    assert seen.paths is not None
    crossed = seen.paths.crossings
    names = enumerate(seen.paths.names)
    over = [at for at, name in names if undirected(name) == "leaf1-spine2"]
    busy = crossed.path[np.isin(crossed.link, over)]
    seen.paths.sent[:, busy] += seen.paths.sent.max()  # its queue is then of the job's own making
    found = long_round_trips(seen)
    assert found is None or "leaf1-spine2" not in found.place.name


@pytest.mark.parametrize("at_ns", [0, 6_000_000])
def test_failing__the_link_that_all_failed_paths_cross(tmp_path: Path, at_ns: int) -> None:
    fault = {
        "kind": "flapping",
        "link": "leaf1-spine2",
        "at_ns": at_ns,
        "until_ns": 300_000_000,
        "flap_ns": 600_000,
    }
    found = judged(written(tmp_path, job(fault)))
    assert first(found) == ("network_loss", "leaf1-spine2", True)


def test_failing__links_that_the_same_paths_cross_are_all_named(tmp_path: Path) -> None:
    tables = job({"kind": "link_down", "link": "leaf1-spine1", "at_ns": 8_000_000})
    tables["network"] |= {"hosts_per_leaf": 8, "spines": 2}
    found = judged(written(tmp_path, tables)).findings[0]
    assert (found.kind, found.certain) == ("network_loss", True)
    assert {found.place.name, *found.place.candidates} == {"leaf0-spine1", "leaf1-spine1"}
    assert found.confidence_of_all == 0.95
    assert found.confidence < 0.5
    lines = lines_of(found, "FOLDER")
    assert lines[0].endswith("confidence 95 % that it is one of 2 places (48 % for each)")
    assert lines[1] == f"  one of:   {found.place.name}; {found.place.candidates[0]}"
    told = json_of(found)
    assert (told["confidence_of_all"], told["confidence"]) == (0.95, 0.475)


@pytest.mark.parametrize("step", [3, 6])
def test_group__half_of_the_ranks_that_lose_little_is_one_finding(
    tmp_path: Path, step: int
) -> None:
    ranks = tuple(range(0, RANKS, 2))
    found = judged(written(tmp_path, job(*(slow(one, 1.25, step) for one in ranks), steps=14)))
    assert (found.findings[0].kind, found.findings[0].place.ranks) == (
        "non_communication_slow",
        ranks,
    )


def test_mismatch__of_a_size_alone_is_one(tmp_path: Path) -> None:
    fault = {"kind": "wrong_call", "rank": 5, "at_step": 4, "operation": 0, "size_bytes": 1_000_000}
    assert first(judged(written(tmp_path, job(fault)))) == ("mismatch", "rank 5", True)


@given(
    paths=st.integers(2, 12),
    over=st.integers(1, 11),
    failed=st.integers(1, 11),
)
def test_failing__chance_is_hypergeometric(paths: int, over: int, failed: int) -> None:
    over, failed = min(over, paths - 1), min(failed, over, paths - 1)
    mine = np.arange(paths) < over
    downs = (np.arange(paths) < failed).astype(float)
    here, every, chance = _failures(np.zeros(paths, np.int64), downs, mine)
    assert here == every == failed
    assert chance == pytest.approx(comb(over, failed) / comb(paths, failed))


def test_failing__a_pair_without_another_path_is_no_evidence() -> None:
    pair, mine = np.array([1, 1, 2, 2]), np.array([True, True, True, True])
    assert _failures(pair, np.ones(4), mine) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("side", ["send", "receive", "both"])
def test_transfers__a_nic_that_was_never_quick_is_named(tmp_path: Path, side: str) -> None:
    fault = {"kind": "slow_nic", "rank": 6, "at_ns": 0, "side": side, "rate_factor": 0.4}
    found = long_transfers(seen_of(written(tmp_path, job(fault))))
    assert found is not None
    assert found.certain
    # In a ring, a NIC of one side has a single slow pair, which the other end's NIC explains, too.
    assert "NIC of rank 6" in (found.place.name, *found.place.candidates)
    assert (found.place.kind == "nic") == (side == "both")


def test_transfers__a_healthy_job_has_no_long_ones(tmp_path: Path) -> None:
    assert long_transfers(seen_of(written(tmp_path, job()))) is None


def test_transfers__of_real_hosts_are_a_suspicion(tmp_path: Path) -> None:
    fault = {"kind": "slow_nic", "rank": 6, "at_ns": 0, "side": "both", "rate_factor": 0.4}
    seen = seen_of(written(tmp_path, job(fault)))
    found = long_transfers(replace(seen, facts=as_real(seen.facts)))
    assert found is not None
    assert not found.certain


@given(st.data())
def test_transfers__only_a_nic_with_all_slow_pairs_is_a_cause(data: st.DataObject) -> None:
    """Compared with trying every NIC and side."""
    ranks = data.draw(st.integers(3, 6))
    every = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    pairs = data.draw(st.sets(st.sampled_from(every), min_size=2))
    slow = data.draw(st.sets(st.sampled_from(sorted(pairs)), min_size=1))
    named = set()
    for one in range(ranks):
        sent, received = ({pair for pair in pairs if pair[side] == one} for side in (0, 1))
        named |= {one} if slow in (sent, received, sent | received) else set()
    assert {one.process for one in _causes(slow, pairs)} == named
