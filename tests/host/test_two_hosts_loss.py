"""Tests from which counters `weft doctor --peer` takes the loss under load."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.host.sample import HELLO, SIDE, paired
from tests.host.support import report, serving
from transport.host.two_hosts.facts import PairStep
from transport.host.two_hosts.paths import PairFacts
from transport.lab import Lab


@pytest.mark.parametrize(
    ("arrived", "state", "said"),
    [
        (5_000, "ok", "under load: to the peer 0 % of 5000 segments, from the peer 0 %"),
        (4_500, "limited", "under load: to the peer 10.00 % of 5000 segments, from the peer 0 %"),
        (5_001, "ok", "under load: to the peer 0 % of 5000 segments, from the peer 0 %"),
        (0, "limited", "under load: to the peer 4.00 % of 5000 segments, from the peer 0 %"),
    ],
)
def test_loss__is_what_did_not_arrive_and_no_lost_acknowledgment(
    arrived: int, state: str, said: str
) -> None:
    """The sender takes 200 segments for lost; 0: the other end does not say what arrived."""
    here, there = replace(SIDE, lost=200), replace(SIDE, arrived=arrived)
    facts = PairFacts(PairStep(0, 0), HELLO, HELLO, here, there)
    found = {one.subject: one for one in paired(facts, alone=True)}["loss"]
    assert (found.state, said in found.found) == (state, True), found


@pytest.mark.namespaces
def test_loss__both_ends_count_what_arrived(lab: Lab) -> None:
    with serving(lab):
        _, found = report(lab)
    assert "under load: to the peer" in found["loss"]["found"], found
