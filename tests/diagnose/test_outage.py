"""Tests what is said of connections that failed, of networks that were cut for a while, of damaged
traces, and of senders that lose packets. The facts of real processes are made up here, as such
faults take seconds to be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.diagnose.support import traced
from tests.diagnose.test_cut_off import RANKS, facts_with
from transport.diagnose import Answer, diagnose
from transport.diagnose.facts import Facts
from transport.diagnose.failed import NO_PROGRESS, PEER_SILENT, PEER_STALLED, failed
from transport.diagnose.finding import Finding, Place
from transport.diagnose.outage import outage
from transport.diagnose.sockets import overflowing_sockets
from transport.diagnose.stragglers import delayed_by_losses
from transport.diagnose.windows import Windows
from transport.trace import open_store
from transport.trace.store import Store

REAL_NS = 1_700_000_000_000_000_000
ITERATION_NS = 1_000_000
PATHS = 2
Row = tuple[int, int, int, int]  # process, peer, status, time_ns


class FakeStore:
    """A store with these connections alone."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def rows(self, sql: str) -> list[Row]:
        return self._rows


def failures(*rows: Row) -> list[Finding]:
    numbers = {one: one for one in range(RANKS)}
    return failed(cast(Store, FakeStore(list(rows))), facts_with(), numbers)


def test_failed__a_stalled_process_is_named_by_its_peers() -> None:
    (one,) = failures((0, 3, PEER_STALLED, 10), (2, 3, PEER_STALLED, 11), (1, 2, PEER_SILENT, 40))
    assert (one.kind, one.place.name, one.certain) == ("non_communication_hang", "rank 3", True)
    assert "rank 0, rank 2 ended the connection" in one.evidence
    assert one.from_ns == 10


@pytest.mark.parametrize("status", [PEER_SILENT, NO_PROGRESS])
def test_failed__a_network_that_carries_nothing_is_no_fault_of_a_process(status: int) -> None:
    (one,) = failures((0, 1, status, 10))
    assert (one.kind, one.place.kind, one.place.ranks) == ("communication_hang", "pair", (0, 1))
    (one,) = failures((0, 1, status, 10), (1, 0, status, 11), (2, 1, status, 12))
    assert (one.place.kind, one.place.ranks) == ("nic", (1,))
    (one,) = failures((0, 1, status, 10), (2, 3, status, 11))
    assert one.place.kind == "network"


def test_failed__connections_that_ended_well_say_nothing() -> None:
    assert failures() == []


def cut(*pairs: tuple[int, int], lasts_ns: int = 8_000_000, hosts: int = RANKS) -> Facts:
    """Facts in which all paths of some pairs failed at once and came back later."""
    facts = facts_with()
    rows = [
        (source, target, path, what, when)
        for what, when in (("path_down", 1_000_000), ("path_up", 1_000_000 + lasts_ns))
        for source, target in pairs
        for path in range(PATHS)
    ]
    names = ("source", "target", "path", "what", "time_ns")
    downs = {name: np.array([row[at] for row in rows]) for at, name in enumerate(names)}
    named = [replace(one, host=f"host{at % hosts}") for at, one in enumerate(facts.processes)]
    return replace(facts, downs=downs, processes=tuple(named))


def windows(count: int = 20) -> Windows:
    starts_ns = np.arange(count) * ITERATION_NS
    return Windows(starts_ns, count * ITERATION_NS, 1)


@pytest.mark.parametrize(
    ("pairs", "hosts", "kind", "name"),
    [
        ([(0, 1), (1, 0), (2, 1)], RANKS, "nic", "NIC of rank 1"),
        ([(0, 1), (3, 2)], 2, "network", "the network between host0 and host1"),
        ([(0, 1), (2, 0)], 3, "nic", "NIC of rank 0"),
        ([(0, 1), (3, 2)], 3, "host", None),
    ],
)
def test_outage__what_all_pairs_have_in_common(
    pairs: list[tuple[int, int]], hosts: int, kind: str, name: str | None
) -> None:
    found = outage(cut(*pairs, hosts=hosts), windows())
    if kind == "host":  # host0 has ranks 0 and 3
        name = "host host0"
    assert found is not None
    assert (found.kind, found.place.kind, found.place.name) == ("network_loss", kind, name)
    assert found.certain
    assert "8 ms" in found.evidence


def test_outage__shorter_than_two_iterations_is_none() -> None:
    assert outage(cut((0, 1), lasts_ns=1_500_000), windows()) is None


def test_outage__of_a_process_that_did_not_run_is_none() -> None:
    facts = cut((0, 1), (2, 1))
    stalled = {"source": 1, "target": -1, "path": 0, "what": "process_stalled"}
    row = stalled | {"time_ns": 9_000_000, "value": 8_000_000}
    downs: dict[str, Any] = {
        name: np.concatenate([facts.downs.get(name, np.zeros(8, np.int64)), np.array([value])])
        for name, value in row.items()
    }
    assert outage(replace(facts, downs=downs), windows()) is None


def waited(facts: Facts, process: int, waited_ns: int, over_ns: int = 20_000_000) -> Facts:
    """The facts with one reading of how long a process had no core, while an outage lasted."""
    waits = {"source": process, "time_ns": over_ns, "waited_ns": waited_ns, "over_ns": over_ns}
    return replace(facts, cpu_waits={name: np.array([one]) for name, one in waits.items()})


@pytest.mark.parametrize(
    ("process", "waited_ns", "certain"),
    [(1, 10_000_000, False), (0, 10_000_000, False), (3, 10_000_000, True), (1, 5_000_000, True)],
)
def test_outage__that_a_lack_of_cores_explains_is_a_suspicion(
    process: int, waited_ns: int, certain: bool
) -> None:
    """An outage of 8 ms. The process is one of its ends, or another; or it waited for less."""
    found = outage(waited(cut((0, 1)), process, waited_ns), windows())
    assert found is not None
    assert found.certain == certain
    assert ("had no core for 50 % of the time then" in found.evidence) != certain


def test_outage__that_a_lack_of_cores_does_not_explain_counts_for_more() -> None:
    facts = cut((0, 1), (2, 3))
    facts.downs["time_ns"] += np.where(
        (facts.downs["source"] == 0) & (facts.downs["what"] == "path_up"), 9_000_000, 0
    )
    found = outage(waited(facts, 0, 19_000_000), windows())
    assert found is not None
    assert found.certain
    assert "rank 2 to rank 3" in found.evidence


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_damaged__a_trace_that_was_cut_is_no_process_that_fell_silent(
    tmp_path: Path, share: float
) -> None:
    traced(tmp_path)
    file = sorted(tmp_path.glob("*.trace"))[5]
    with file.open("r+b") as opened:
        opened.truncate(int(file.stat().st_size * share))
    with open_store(tmp_path) as store:
        found = diagnose(store)
    assert not [one for one in found.findings if one.certain]
    assert found.answer is Answer.NOT_JUDGED


def test_sockets__whose_kernel_dropped_packets_are_named_and_no_cable() -> None:
    facts = facts_with((0, 1, "host_drops"), (2, 1, "host_drops"), (2, 1, "timeout"))
    value = np.where(facts.downs["source"] == 2, 300, 1)
    sent = {name: np.array(of) for name, of in (("source", [0]), ("target", [2]), ("sent", [5000]))}
    losses = {"source": np.array([0]), "target": np.array([2]), "segments": np.array([600])}
    facts = replace(facts, downs=facts.downs | {"value": value}, sent=sent, losses=losses)
    (one,) = overflowing_sockets(facts)
    assert (one.kind, one.place.name, one.certain) == ("congestion", "rank 2", True)
    assert "dropped 600 datagrams of rank 2" in one.evidence
    assert "counted 600 lost segments" in one.evidence
    few = replace(facts, downs=facts.downs | {"value": np.ones_like(value)})
    assert overflowing_sockets(few) == []


def test_straggler__that_loses_what_it_sends_is_only_suspected() -> None:
    one = Finding(
        "non_communication_slow", Place("rank", "rank 1", (1,)), 0, 1, 0.9, True, "Late.", "", ""
    )
    sent = {"source": np.array([0, 1]), "sent": np.array([1000, 1000])}
    facts = replace(facts_with(), sent=sent, has_operations=False, end_ns=REAL_NS)

    def doubted(lost: list[int]) -> Finding:
        losses = {"source": np.array([0, 1]), "segments": np.array(lost)}
        return delayed_by_losses(replace(facts, losses=losses), one)

    assert doubted([900, 1]).certain
    found = doubted([0, 20])
    assert not found.certain
    assert "2.0 % of their segments" in found.evidence
