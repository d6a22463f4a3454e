"""Tests which process is found cut off, from what each end of the failing paths recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from transport.diagnose.cut_off import complaints, cut_off
from transport.diagnose.facts import Facts, Process
from transport.diagnose.finding import Finding

RANKS, PATHS, END_NS = 4, 2, 10_000
FAILED_NS = 5_000
Event = tuple[int, int, str]


def facts_with(
    *events: Event, last_ns: int = END_NS, messages: tuple[tuple[int, int, int], ...] = ()
) -> Facts:
    """Four processes whose paths are known. events: process, peer, what it recorded of the peer.

    last_ns: the last record of rank 0. messages: sender, receiver, and when it was acknowledged.
    """
    rows = [
        (source, target, path, what, FAILED_NS + number)
        for number, (source, target, what) in enumerate(events)
        for path in range(1 if what == "peer_quiet" else PATHS)
    ]
    names = ("source", "target", "path", "what", "time_ns")
    downs = {name: np.array([row[at] for row in rows]) for at, name in enumerate(names)}
    pairs = [(one, other) for one in range(RANKS) for other in range(RANKS) if one != other]
    ends = np.repeat(np.array(pairs), PATHS, axis=0).T
    samples = {"source": ends[0], "target": ends[1], "path": np.tile(range(PATHS), len(pairs))}
    crossed = np.array(messages, np.int64).reshape(-1, 3).T
    edges = dict(zip(("source", "target", "end_ns"), crossed, strict=True))
    last = [last_ns, *[END_NS] * (RANKS - 1)]
    processes = tuple(Process(one, f"host{one}", one, None, 0, last[one]) for one in range(RANKS))
    nothing: dict[str, Any] = {}
    calls = {"process": np.zeros(0, np.int64), "end_ns": np.zeros(0, np.int64)}
    return Facts(processes, calls, edges, nothing, samples, nothing, downs, END_NS, {}, {})


def found_in(facts: Facts) -> Finding:
    found = cut_off(facts, 0, FAILED_NS)
    assert found is not None
    return found


@pytest.mark.parametrize("cut", range(RANKS))
def test_cut_off__in_a_ring_the_nic_that_both_neighbours_complain_about(cut: int) -> None:
    """Each rank sends to the next one, and waits for the one before."""
    before, after = (cut - 1) % RANKS, (cut + 1) % RANKS
    one = found_in(
        facts_with(
            (before, cut, "path_down"), (after, cut, "peer_quiet"), (cut, before, "peer_quiet")
        )
    )
    assert (one.kind, one.place.ranks, one.certain) == ("communication_hang", (cut,), True)
    assert "both ends say so" in one.evidence


def test_cut_off__one_end_alone_is_a_suspicion_that_names_both() -> None:
    one = found_in(facts_with((3, 0, "path_down")))
    assert (one.place.name, one.place.candidates) == ("NIC of rank 0", ("NIC of rank 3",))
    assert not one.certain
    assert "both ends" not in one.evidence


def test_cut_off__a_nic_whose_process_reaches_none_of_several_peers() -> None:
    """Its peers have not complained yet, so it is only a suspicion."""
    one = found_in(facts_with((2, 0, "path_down"), (2, 1, "path_down"), (2, 3, "path_down")))
    assert (one.place.ranks, one.place.candidates, one.certain) == ((2,), (), False)


def test_cut_off__a_nic_that_several_peers_cannot_reach_is_certain() -> None:
    one = found_in(facts_with((0, 2, "path_down"), (1, 2, "path_down"), (3, 2, "path_down")))
    assert (one.place.ranks, one.place.candidates, one.certain) == ((2,), (), True)


def test_cut_off__of_two_ends_the_one_that_others_still_hear_works() -> None:
    complaint, later = (3, 0, "path_down"), FAILED_NS + PATHS
    one = found_in(facts_with(complaint, messages=((3, 2, later),)))
    assert (one.place.ranks, one.place.candidates, one.certain) == ((0,), (), True)
    earlier = found_in(facts_with(complaint, messages=((3, 2, FAILED_NS - 1),)))
    assert not earlier.certain


def test_cut_off__pairs_between_two_hosts_are_the_network_between_them() -> None:
    facts = facts_with(*((a, b, "path_down") for a, b in ((0, 2), (2, 0), (1, 3), (3, 1))))
    on = [replace(one, host=f"host{at // 2}") for at, one in enumerate(facts.processes)]
    one = found_in(replace(facts, processes=tuple(on)))
    assert (one.place.kind, one.place.name) == ("network", "the network between host0 and host1")
    assert one.certain
    assert not found_in(facts).certain  # four hosts


def test_cut_off__two_that_complain_about_each_other_are_a_pair() -> None:
    one = found_in(facts_with((0, 1, "path_down"), (1, 0, "path_down")))
    assert (one.place.kind, one.place.ranks, one.certain) == ("pair", (0, 1), True)


def test_cut_off__a_network_in_two_halves_is_no_certain_nic() -> None:
    halves = [(one, other, "path_down") for one in (0, 1) for other in (2, 3)]
    one = found_in(facts_with(*halves, *((other, one, what) for one, other, what in halves)))
    assert not one.certain
    assert len(one.place.candidates) == 3


def test_complaints__about_a_process_that_went_on_or_ended_do_not_count() -> None:
    quiet = (1, 0, "peer_quiet"), (3, 0, "peer_quiet")
    facts = facts_with(*quiet)
    stalled = {
        "source": 0,
        "target": -1,
        "path": 0,
        "what": "process_stalled",
        "time_ns": FAILED_NS + 1_000,
        "value": 2_000,
    }
    downs = {
        name: np.concatenate([facts.downs.get(name, np.zeros(2, np.int64)), np.array([value])])
        for name, value in stalled.items()
    }
    assert complaints(facts, 0)
    assert complaints(replace(facts, downs=downs), 0) == {}
    ended = tuple(replace(one, ended=True, last_ns=FAILED_NS - 1) for one in facts.processes)
    assert complaints(replace(facts, processes=ended), 0) == {}


def test_cut_off__a_process_that_records_nothing_either_does_not_run() -> None:
    found = (1, 0, "path_down"), (3, 0, "peer_quiet")
    assert found_in(facts_with(*found, last_ns=FAILED_NS - 1)).kind == "non_communication_hang"
    assert found_in(facts_with(*found)).kind == "communication_hang"


def test_complaints__end_when_a_path_recovers_or_a_message_passes() -> None:
    down, up = (0, 1, "path_down"), (0, 1, "path_up")
    assert complaints(facts_with(down), 0) == {(0, 1): FAILED_NS}
    assert complaints(facts_with(down, up), 0) == {}
    assert complaints(facts_with(down), FAILED_NS + 1) == {}  # it failed long before
    quiet = (0, 1, "peer_quiet")
    assert complaints(facts_with(quiet), 0) == {(0, 1): FAILED_NS}
    assert complaints(facts_with(quiet, messages=((1, 0, FAILED_NS + 1),)), 0) == {}
    assert complaints(facts_with(quiet, messages=((1, 2, FAILED_NS + 1),)), 0) != {}


def test_cut_off__without_complaints_there_is_nothing_to_say() -> None:
    assert cut_off(facts_with(), 0, FAILED_NS) is None
