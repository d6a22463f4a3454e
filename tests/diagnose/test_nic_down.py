"""Tests that a NIC which fails while others carry on is found, by the addresses of paths. The facts
are made up here: a host with two NICs, and seconds of failure, cannot be had in a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.diagnose.test_cut_off import facts_with
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding
from transport.diagnose.nic_down import nic_down

REAL_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000
END_NS = REAL_NS + 30 * SECOND_NS
PATHS = 8  # even ones between first NICs, odd ones between second NICs
Down = tuple[int, int, int, float, float]  # process, peer, NIC, from and to, in seconds


def address(process: int, nic: int) -> str:
    return f"10.6{nic}.0.{process + 1}"


def facts_of(*downs: Down, ranks: int = 2, paths: int = PATHS) -> Facts:
    """A job whose processes all talk to each other. paths: how many of each NIC's paths fail."""
    pairs = [(one, other) for one in range(ranks) for other in range(ranks) if one != other]
    samples = [
        (one, other, path, address(other, path % 2), REAL_NS + second * SECOND_NS)
        for second in range(30)
        for one, other in pairs
        for path in range(PATHS)
    ]
    events = [
        (one, other, path, address(other, nic), REAL_NS + int(when * SECOND_NS), what)
        for one, other, nic, begin_s, end_s in downs
        for path in range(nic, PATHS, 2)[:paths]
        for what, when in (("path_down", begin_s), ("path_up", end_s))
        if when < 30
    ]
    first = facts_with()
    return replace(
        first,
        samples=columns(samples, ("source", "target", "path", "address", "time_ns")),
        downs=columns(events, ("source", "target", "path", "address", "time_ns", "what")),
        processes=first.processes[:ranks],
        end_ns=END_NS,
        addresses={one: (address(one, 0),) for one in range(ranks)},
    )


def columns(rows: list[Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: np.array([row[at] for row in rows]) for at, name in enumerate(names)}


def found_in(facts: Facts) -> Finding:
    found = nic_down(facts)
    assert found is not None
    assert (found.kind, found.certain) == ("network_loss", True)
    return found


def test_nic_down__both_ends_are_named_if_no_third_tells_which() -> None:
    found = found_in(facts_of((0, 1, 1, 7, 17), (1, 0, 1, 7.5, 17)))
    assert found.places == ("NIC 10.61.0.1 of rank 0", "NIC 10.61.0.2 of rank 1")
    assert "came back after 10 s" in found.evidence


def test_nic_down__the_one_that_several_ranks_cannot_reach() -> None:
    pairs = [(0, 2), (1, 2), (3, 2), (2, 0), (2, 1), (2, 3)]
    found = found_in(facts_of(*((*pair, 1, 7, 17) for pair in pairs), ranks=4))
    assert found.places == ("NIC 10.61.0.3 of rank 2",)
    assert found.place.ranks == (2,)


def test_nic_down__one_that_stays_down() -> None:
    found = found_in(facts_of((0, 1, 1, 7, 99), (1, 0, 1, 7, 99)))
    assert "stayed so for 23 s, to the end" in found.evidence


def test_nic_down__many_nics_that_fail_alike_are_a_network() -> None:
    pairs = [(one, other) for one in range(4) for other in range(4) if one != other]
    found = found_in(facts_of(*((*pair, 1, 7, 17) for pair in pairs), ranks=4))
    assert found.place.kind == "network"


@pytest.mark.parametrize(
    "facts",
    [
        facts_of(),
        facts_of((0, 1, 1, 7, 8), (1, 0, 1, 7, 8)),  # a thread without a core answers again
        facts_of((0, 1, 0, 7, 17), (0, 1, 1, 7, 17)),  # a process that does not run
        facts_of((0, 1, 1, 7, 17), paths=2),  # too few paths
        facts_of((0, 1, 1, 7, 17), (0, 1, 0, 9, 12)),  # the others fail meanwhile
    ],
)
def test_nic_down__is_none_of_what_a_process_or_few_paths_explain(facts: Facts) -> None:
    assert nic_down(facts) is None


def test_nic_down__engines_that_share_a_number_keep_a_path_down() -> None:
    """Of two engines with the same paths, the path of one comes back at once."""
    facts = facts_of((0, 1, 1, 7, 17), (0, 1, 1, 7, 7.1))
    assert "10 s" in found_in(facts).evidence
