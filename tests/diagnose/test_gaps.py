"""Tests how a process that did not run for a while is told from a NIC that loses packets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.grown import agent
from tests.diagnose.support import traced
from tests.diagnose.test_faults import judged
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.gaps import Gap, gaps_of, without_losses
from transport.diagnose.live.collector import UNSEEN, Collector
from transport.diagnose.live.pauses import Pauses
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
    down = {"kind": "link_down", "link": f"leaf2-host{RANK}", "at_ns": AT_NS,
            "until_ns": AT_NS + for_ns}  # fmt: skip
    traced(tmp_path, down)
    assert gaps(tmp_path)[1] == []
    assert [(one.kind, one.place.name) for one in judged(tmp_path).findings] == [
        ("network_loss", f"NIC of rank {RANK}")
    ]


def test_gaps__are_told_once_while_the_job_runs(tmp_path: Path) -> None:
    said = agent(stopped(tmp_path, 3_000_000)).step()
    collector = Collector(pauses=Pauses(untaught_ns=0))
    told = [
        [(one.what, one.incident.finding.place.name) for one in collector.step([said])]
        for _ in range(UNSEEN + 1)
    ]
    assert told == [
        [("finding", f"rank {RANK}")],
        *[[]] * (UNSEEN - 1),
        [("ended", f"rank {RANK}")],
    ]
    assert collector.pauses.longest_ns < 3_000_000  # what a stopped process makes others wait
