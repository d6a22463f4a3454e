"""Tests how the iterations of programs without NCCL are told by the pauses in which they compute.

The traces are made by hand: a ring of ranks that pause, and then exchange messages with their
neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from transport.diagnose.facts import Facts, Process, with_instances
from transport.diagnose.measures import Delays, lateness_of
from transport.diagnose.own_pauses import own_pauses
from transport.diagnose.own_times import own_times_of
from transport.diagnose.recurring import recurring
from transport.diagnose.seen import Rule, Seen
from transport.diagnose.slow import slow_place
from transport.diagnose.windows import Windows, windows_of

RANKS, ITERATIONS = 4, 200
PAUSE_NS, MESSAGE_NS, LATENCY_NS = 20_000_000, 300_000, 200_000
NOW_NS = 1_700_000_000_000_000_000


def ring(messages: int, pauses_ns: np.ndarray) -> Facts:
    """A ring without NCCL. messages: that a rank sends in an iteration. pauses_ns: [iteration,
    rank] before them."""
    rows: list[tuple[Any, ...]] = []
    free = np.full(RANKS, NOW_NS, np.int64)
    for at, pauses in enumerate(pauses_ns.astype(np.int64)):
        free = free + pauses
        for step in range(messages):
            turn = at * messages + step
            ended = np.maximum(free, np.roll(free, 1)) + MESSAGE_NS
            for rank in range(RANKS):
                begin, end = int(free[rank]), int(ended[rank])
                before, after = (rank - 1) % RANKS, (rank + 1) % RANKS
                rows.append((rank, before, "Recv", turn, before, begin, -1, end))
                sent = begin + 1_000
                rows.append((rank, rank, "Send", turn, after, sent, sent, sent + LATENCY_NS))
            free = ended
    names = ("process", "comm_id", "function", "turn", "root", "begin_ns", "arrival_ns", "end_ns")
    columns = zip(*rows, strict=True)
    calls = {name: np.array(column) for name, column in zip(names, columns, strict=True)}
    count = len(rows)
    calls |= {
        "id": np.arange(count),
        "rank": calls["process"],
        "ranks": np.full(count, 2),
        "kind": np.full(count, "p2p"),
        "sequence": calls["turn"],
        "count": np.full(count, 65_536),
        "datatype": np.full(count, ""),
        "relays": np.zeros(count, bool),
        "gpu_wait_ns": np.zeros(count, np.int64),
    }
    calls = with_instances(calls)
    calls.pop("turn")
    edges = {name: np.zeros(0, np.int64) for name in ("instance", "source", "target", "first_ns")}
    downs = {
        name: np.zeros(0, np.int64) for name in ("source", "target", "path", "what", "time_ns")
    }
    end_ns = int(calls["end_ns"].max())
    processes = tuple(Process(one, "h", one, None, NOW_NS, end_ns) for one in range(RANKS))
    none: dict[str, Any] = {}
    return Facts(
        processes, calls, edges, downs, none, none, downs, end_ns, {}, {}, has_operations=False
    )


def equal_pauses() -> np.ndarray:
    noise = np.random.default_rng(1).integers(-200_000, 200_000, (ITERATIONS, RANKS))
    return PAUSE_NS + noise


@pytest.mark.parametrize("messages", [3, 5, 6, 8, 11, 40])
def test_windows__have_one_pause_of_each_rank_if_pauses_tell_iterations(messages: int) -> None:
    facts = ring(messages, equal_pauses())
    windows = windows_of(facts)
    each = max(16 // (2 * messages), 1)  # a window has about 16 calls at least
    assert windows.operations == 2 * messages * each
    assert abs(windows.count - ITERATIONS / each) <= 1
    own = own_times_of(facts, windows)[1:-1] / each
    assert (abs(own - PAUSE_NS) < 1_000_000).all()


@pytest.mark.parametrize("messages", [5, 6, 11])
def test_recurring__ranks_with_equal_pauses_are_not_late(messages: int) -> None:
    facts = ring(messages, equal_pauses())
    windows = windows_of(facts)
    assert recurring(facts, windows, lateness_of(facts, windows)) == []


def test_recurring__a_rank_that_pauses_longer_now_and_then_is_late() -> None:
    pauses_ns = equal_pauses()
    pauses_ns[10::7, 2] += 30_000_000
    facts = ring(6, pauses_ns)
    windows = windows_of(facts)
    (one,) = recurring(facts, windows, lateness_of(facts, windows))
    assert (one.place.name, one.certain) == ("rank 2", True)
    assert one.more["period_iterations"] == 7


@pytest.mark.parametrize(
    ("more_ns", "name", "certain"),
    [(-1_000_000, "rank 0", False), (10_000_000, "rank 3", True)],
)
def test_recurring__a_rank_that_only_seems_late_by_where_windows_begin(
    more_ns: int, name: str, certain: bool
) -> None:
    """Windows begin 0.5 ms before pauses end. Where that of rank 3 ends 1 ms earlier, the receive
    of rank 0 from it, with the pause of rank 0 before it, is in the window before, which then has
    two of them."""
    pauses_ns = np.full((ITERATIONS, RANKS), PAUSE_NS)
    pauses_ns[5::5, 3] += more_ns
    facts = ring(6, pauses_ns)
    calls = facts.calls
    first = (calls["process"] == 0) & (calls["function"] == "Send") & (calls["sequence"] % 6 == 0)
    windows = Windows(calls["begin_ns"][first] - 500_000, facts.end_ns, 12)
    (one,) = recurring(facts, windows, lateness_of(facts, windows))
    assert (one.place.name, one.certain) == (name, certain)
    assert ("over the whole job it did not take longer" in one.evidence.lower()) != certain


@pytest.mark.filterwarnings("ignore:All-NaN")  # no message of these is in the edges
@pytest.mark.parametrize(("longer_ns", "certain"), [(0, False), (90_000_000, True)])
def test_slow_place__costs_no_more_than_iterations_became_longer(
    longer_ns: int, certain: bool
) -> None:
    """Messages from rank 1 to rank 2 lose 100 ms in each of the last windows of 300 ms."""
    facts, count, slow_from = ring(3, equal_pauses()[:10]), 30, 20
    lengths = 300_000_000 + longer_ns * (np.arange(count) >= slow_from)
    windows = Windows(NOW_NS + np.cumsum(lengths) - lengths, facts.end_ns, 6)
    slow = np.zeros((count, RANKS), bool)
    slow[slow_from:, 1] = True
    pairs = np.array([(one, (one + 1) % RANKS) for one in range(RANKS)])
    delays = Delays(pairs, slow * 2.0, slow, slow * 1e8, np.ones_like(slow))
    edges = {name: np.zeros(0, np.int64) for name in ("end_ns", "bytes")}
    facts = replace(facts, edges=facts.edges | edges)
    seen = Seen(facts, windows, lateness_of(facts, windows), delays, None)
    found = slow_place(seen, 28, Rule())
    assert found is not None
    assert found.certain == certain
    assert ("Iterations did not become longer by as much." in found.evidence) != certain


def test_pauses__of_several_in_an_iteration() -> None:
    """A long pause after 4 calls and then one after 10: an iteration has 14."""
    idle = np.tile([1, 1, 1, 900, *[1] * 9, 1000], 30)
    begun = np.cumsum(idle + 10)
    found = own_pauses(begun, begun + 10)
    assert found is not None
    assert found.operations == 14


def test_pauses__are_seen_if_receives_are_called_before_them() -> None:
    begun = np.cumsum(np.tile([10, 10, 10, 10, 10, 10, 10, 10, 1000], 30))
    ends = np.append(begun[1:], begun[-1]) + 5  # each call ends after the next one began
    found = own_pauses(begun, ends)
    assert found is not None
    assert found.operations == 9


def test_pauses__a_delay_within_an_iteration_begins_none() -> None:
    idle = np.tile([1] * 11 + [1000], 60)
    idle[[100, 401]] = 1500
    begun = np.cumsum(idle + 10)
    found = own_pauses(begun, begun + 10)
    assert found is not None
    assert (found.operations, len(found.starts_ns)) == (12, 61)


@pytest.mark.parametrize("kind", ["none", "irregular", "before each call", "few"])
def test_pauses__that_tell_no_iterations(kind: str) -> None:
    random = np.random.default_rng(2)
    idle = {
        "none": np.zeros(600, np.int64),
        "irregular": np.where(random.random(600) < 0.2, 1000, 1),
        "before each call": np.full(600, 1000),
        "few": np.tile([1] * 11 + [1000], 4),
    }[kind]
    begun = np.cumsum(idle + 10)
    assert own_pauses(begun, begun + 10) is None
