"""Tests a report's counters over time, on traces with known bytes, losses and events."""

from pathlib import Path

import pytest

from tests.trace.writer import Process, message, rank_of
from transport.report.counters import BINS_MAX, HOUR_NS, counters_of, nice_ns
from transport.trace.store import open_store

S = 10**9


def sampled(process: Process, path: int, *lost: int) -> None:
    """Samples of a path, one a second from second 0 on."""
    for at, count in enumerate(lost):
        values = {"path": path, "segments_lost": count, "usable": 1}
        process.new("path", at * S, **values)


def traced(folder: Path, files: int = 0) -> Process:
    """A process from second 0 to second 59."""
    process = rank_of(folder, 0, 1)
    process.files = files
    sampled(process, 0, 2, 2, 5)
    sampled(process, 1, 0, 1, 1)
    process.new("connection", 0, pair=1)
    for at_s in (3, 4, 59):
        message(process, 1, at_s, 1000, (at_s - 1) * S, at_s * S, 1)
        message(process, 1, at_s, 500, (at_s - 1) * S, at_s * S, 0)
    for at_s in (10, 10, 20):
        process.new("event", at_s * S, what="path_down")
    process.new("event", 30 * S, what="an operation of a simulation")
    return process


def test_counters__are_by_the_time_of_their_records(tmp_path: Path) -> None:
    traced(tmp_path).write()
    with open_store(tmp_path) as store:
        found = counters_of(store)
    assert (found.bin_ns, found.bins) == (S, 60)
    assert found.sent is not None
    sent = {at: size for at, size in enumerate(found.sent.values) if size}
    assert sent == {3: 1000, 4: 1000, 59: 1000}
    assert found.lost is not None
    assert found.lost.values[:4] == (2, 1, 3, 0)
    assert found.resent is None  # no stripes
    assert found.events is not None
    (down,) = found.events
    assert (down.name, down.values[10], down.values[20], sum(down.values)) == ("path_down", 2, 1, 3)


def test_counters__without_the_first_file_earlier_losses_do_not_count(tmp_path: Path) -> None:
    traced(tmp_path, files=1).write()
    with open_store(tmp_path) as store:
        found = counters_of(store)
    assert found.lost is not None
    assert found.lost.values[:4] == (0, 1, 3, 0)


def test_counters__of_a_trace_of_operations_alone_are_not_known(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    process.new("event", 5, what="path_down")
    process.write()
    with open_store(tmp_path) as store:
        found = counters_of(store)
    assert (found.sent, found.resent, found.lost, found.events) == (None, None, None, None)


@pytest.mark.parametrize(
    ("span_ns", "bin_ns"),
    [
        (0, 1),
        (1, 1),
        (60, 1),
        (61, 2),
        (14_000_000, 500_000),
        (60 * S, S),
        (600 * S, 10 * S),
        (2 * HOUR_NS, 120 * S),
        (24 * HOUR_NS, 1800 * S),
        (30 * 24 * HOUR_NS, 12 * HOUR_NS),
        (31 * 24 * HOUR_NS, 13 * HOUR_NS),
    ],
)
def test_nice__bins_read_well(span_ns: int, bin_ns: int) -> None:
    assert nice_ns(span_ns / BINS_MAX) == bin_ns
