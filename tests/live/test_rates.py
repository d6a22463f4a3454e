"""Tests rates from two readings: made-up ones, and those of two real processes."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.live.support import (
    NOW,
    SECOND,
    engine,
    exchanging,
    flow,
    page,
    peer,
    reading,
)
from tests.stopping import stopped
from tests.waiting import until
from transport import telemetry
from transport.live import Facts, ProcessRates, rates, read
from transport.live.screen import Source

BEFORE = NOW - 2 * SECOND


def test_rates__of_rows_that_stayed() -> None:
    counts = {"segments_sent": 10, "segments_lost": 0, "bytes_sent": 1000, "bytes_received": 0}
    more = {"segments_sent": 110, "segments_lost": 5, "bytes_sent": 9000, "bytes_received": 400}
    old = page(
        engines=(engine(loops=5),),
        peers=(peer(path_counters={"bytes_sent": 0, "segments_sent": 0}),),
        flows=(flow(**counts),),
        read_ns=BEFORE,
    )
    new = page(
        engines=(engine(loops=25),),
        peers=(peer(path_counters={"bytes_sent": 6000, "segments_sent": 60, "segments_lost": 6}),),
        flows=(flow(**more, window_bytes=700, inflight_bytes=30, segments_resent=4),),
    )
    (process,) = rates(reading(old), reading(new))
    for traffic in (process.traffic, process.peers[0].traffic, process.connections[0].traffic):
        assert (traffic.sent_bytes_s, traffic.received_bytes_s) == (4000, 200)
        assert (traffic.segments_sent_s, traffic.resends_s, traffic.loss_share) == (50, 2, 0.05)
        assert (traffic.window_bytes, traffic.inflight_bytes, traffic.rtt_ns) == (700, 30, 50_000)
    for of_path in process.peers[0].paths:
        assert of_path.traffic.sent_bytes_s == 3000
        assert of_path.traffic.loss_share == pytest.approx(0.1)
    assert process.engines[0].rounds_s == 10


def test_rates__a_single_reading_has_levels_only() -> None:
    (process,) = rates(None, reading(page(flows=(flow(bytes_sent=5, window_bytes=6),))))
    assert process.traffic.sent_bytes_s is None
    assert process.traffic.loss_share is None
    assert process.traffic.window_bytes == 6


def sent_s(old: telemetry.Page, new: telemetry.Page) -> float | None:
    (process,) = rates(reading(old), reading(new))
    return process.traffic.sent_bytes_s


def test_rates__a_reused_row_and_a_restarted_counter_count_from_zero() -> None:
    old = page(flows=(flow(generation=1, bytes_sent=1_000_000),), read_ns=BEFORE)
    assert sent_s(old, page(flows=(flow(generation=3, bytes_sent=2_000_000),))) == 1_000_000
    assert sent_s(old, page(flows=(flow(generation=1, bytes_sent=200),))) == 100
    assert sent_s(old, page(flows=())) == 0
    assert sent_s(page(flows=(), read_ns=BEFORE), page(flows=(flow(bytes_sent=50),))) == 25


def test_rates__paths_of_a_reused_peer_count_from_zero() -> None:
    old = page(peers=(peer(generation=1, path_counters={"bytes_sent": 900}),), read_ns=BEFORE)
    new = page(peers=(peer(generation=3, path_counters={"bytes_sent": 1000}),))
    (process,) = rates(reading(old), reading(new))
    assert [each.traffic.sent_bytes_s for each in process.peers[0].paths] == [500, 500]


def test_rates__processes_come_and_go() -> None:
    first, second = page(pid=1, read_ns=BEFORE), page(pid=2)
    (process,) = rates(reading(first, at_ns=BEFORE), reading(second))
    assert process.pid == 2
    # Rates of a new process are averages over the time since it made its page.
    young = page(pid=3, created_ns=NOW - SECOND, flows=(flow(bytes_sent=70),))
    (process,) = rates(reading(first, at_ns=BEFORE), reading(young))
    assert process.traffic.sent_bytes_s == 70
    # A new page with the file name of an old one counts from zero.
    again = replace(
        second, path=first.path, created_ns=BEFORE + SECOND, flows=(flow(bytes_sent=9),)
    )
    (process,) = rates(reading(first, at_ns=BEFORE), reading(again))
    assert process.traffic.sent_bytes_s == 9


def test_rates__two_readings_at_one_moment_divide_by_nothing() -> None:
    (process,) = rates(reading(page()), reading(page()))
    assert process.traffic.sent_bytes_s is None


def test_rates__connections_gather_their_flows_and_peers() -> None:
    flows = (
        flow(0, connection=1, engine=0, peer=0, sends=3, unsent_bytes=5),
        flow(1, connection=1, engine=1, peer=1, sends=3, unsent_bytes=6),
        flow(2, connection=2, engine=1, peer=-1),
    )
    peers = (peer(0), peer(1, address="10.0.0.3", engine=1))
    made = page(engines=(engine(0), engine(1)), peers=peers, flows=flows)
    (process,) = rates(None, reading(made))
    first, second = process.connections
    assert (first.id, first.flows, first.engines, first.sends) == (1, 2, (0, 1), 3)
    assert (first.peers, first.unsent_bytes) == (("10.0.0.2", "10.0.0.3"), 11)
    assert (second.id, second.peers) == (2, ())


def test_rates__cpu_of_engines_is_known_where_a_process_has_one_endpoint() -> None:
    old, new = page(read_ns=BEFORE), page()
    used = [Facts(cpu_ns={"weft-engine-0": ns}) for ns in (SECOND, 2 * SECOND)]
    (process,) = rates(reading(old, facts=used[0]), reading(new, facts=used[1]))
    assert process.cpu_share == process.engines[0].cpu_share == 0.5
    other = replace(new, path=Path("/pages/weft-0-1-4711-5-1.page"))
    both = rates(reading(old, facts=used[0]), reading(new, other, facts=used[1]))
    assert [each.engines[0].cpu_share for each in both] == [None, None]
    # Each row has the CPU share of the whole process.
    assert [each.cpu_share for each in both] == [0.5, 0.5]
    assert [each.endpoint for each in both] == [0, 1]


def test_rates__paths_that_are_down_are_counted() -> None:
    made = page(peers=(peer(paths=3, path_counters={"usable": 0, "downs": 2}),))
    (process,) = rates(None, reading(made))
    assert process.paths_down == process.peers[0].paths_down == 3
    assert [each.downs for each in process.peers[0].paths] == [2, 2, 2]


def by_pid(where: Path, pid: int) -> ProcessRates | None:
    """The rates of a process over a tenth of a second."""
    before = read(where)
    until(lambda: read(where).read_ns - before.read_ns > SECOND // 10)
    found = rates(before, read(where))
    return next((each for each in found if each.pid == pid), None)


def test_rates__of_two_processes_that_exchange(tmp_path: Path) -> None:
    with exchanging(tmp_path) as (echo, partner):

        def moves() -> ProcessRates | None:
            found = by_pid(tmp_path, partner.pid)
            if found is None:
                return None
            moved = found.traffic
            all_move = moved.sent_bytes_s and moved.received_bytes_s and moved.segments_sent_s
            return found if all_move else None

        found = until(moves)
        assert found.traffic.rtt_ns is not None
        assert (found.rank, found.state, found.endpoint) == ("3", "running", 0)
        assert found.engines[0].cpu_share is not None
        assert [each.address for each in found.peers] == ["127.0.0.1"]
        assert sum(each.traffic.sent_bytes_s or 0 for each in found.peers[0].paths) > 0
        assert found.connections[0].peers == ("127.0.0.1",)
        json.dumps(asdict(found))

        def waits() -> bool:
            here, there = by_pid(tmp_path, partner.pid), by_pid(tmp_path, echo.pid)
            assert here is not None
            assert there is not None
            waiting = here.wait.reason in ("receive", "acknowledgment", "room", "paths")
            return waiting and there.wait.text == "stopped by a signal"

        with stopped(echo.pid):
            until(waits)
        echo.kill()
        echo.wait()

        def gone() -> bool:
            there = by_pid(tmp_path, echo.pid)
            return there is not None and there.wait.reason == "gone"

        until(gone)


def test_read__leaves_out_what_is_no_page(tmp_path: Path) -> None:
    damaged = tmp_path / f"weft-{os.geteuid()}-1-2-3-4.page"
    damaged.write_bytes(b"?" * 100)
    found = read(tmp_path)
    assert (found.pages, len(found.problems)) == ((), 1)
    assert str(damaged) in found.problems[0]
    assert read(tmp_path, pids=[1]).problems == ()
    with pytest.raises(telemetry.PageError, match="cannot list"):
        read(tmp_path / "none")


def test_screen__counts_only_processes_that_ended_since_the_first_reading() -> None:
    old = page(pid=1, process_state="gone")
    ran, ended = page(pid=2), page(pid=2, process_state="gone")
    readings = iter([reading(old, ran), reading(old, ended)])
    source = Source(lambda: next(readings).of_running())
    source.refresh()
    assert source.note == ""
    source.refresh()
    assert source.note == "ended: 1"
