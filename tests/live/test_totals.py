"""Tests totals of counters, which must never decrease when rows of a page disappear."""

from tests.live.support import flow, page, peer
from transport.live.totals import ENDED, Totals

FLOWS = ("flow", 0, "10.0.0.2", -1)


def test_totals__rows_that_end_keep_counting_to_their_peer() -> None:
    totals = Totals()
    totals.update(page(flows=(flow(0, bytes_sent=100), flow(1, bytes_sent=10))))
    assert totals.sums[FLOWS]["bytes_sent"] == 110
    totals.update(page(flows=(flow(1, bytes_sent=15),)))
    assert totals.sums[FLOWS]["bytes_sent"] == 115
    totals.update(page(flows=(flow(0, generation=3, bytes_sent=7), flow(1, bytes_sent=15))))
    assert totals.sums[FLOWS]["bytes_sent"] == 122
    totals.update(page(flows=()))
    assert totals.sums[FLOWS]["bytes_sent"] == 122


def test_totals__a_counter_that_starts_again_adds_its_new_value() -> None:
    totals = Totals()
    totals.update(page(flows=(flow(bytes_sent=100),)))
    totals.update(page(flows=(flow(bytes_sent=30),)))
    assert totals.sums[FLOWS]["bytes_sent"] == 130


def test_totals__from_zero_leaves_out_what_was_there() -> None:
    totals = Totals()
    totals.update(page(flows=(flow(bytes_sent=100),)), from_zero=True)
    assert totals.sums[FLOWS]["bytes_sent"] == 0
    totals.update(page(flows=(flow(bytes_sent=130),)))
    assert totals.sums[FLOWS]["bytes_sent"] == 30


def test_totals__peers_of_one_address_are_added_and_ended_ones_kept_apart() -> None:
    counters = {"bytes_sent": 5}
    both = (peer(0, path_counters=counters), peer(1, path_counters=counters))
    totals = Totals()
    totals.update(page(peers=both, flows=()))
    assert totals.sums["path", 0, "10.0.0.2", 1]["bytes_sent"] == 10
    totals.update(page(peers=both[:1], flows=()))
    assert totals.sums["path", 0, "10.0.0.2", 1]["bytes_sent"] == 10
    totals.update(page(peers=(), flows=()))
    assert totals.sums["path", 0, ENDED, 0]["bytes_sent"] == 20
    assert {key[2] for key in totals.sums} == {ENDED}
    totals.update(page(peers=both[:1], flows=()))
    assert totals.sums["path", 0, "10.0.0.2", 1]["bytes_sent"] == 5
