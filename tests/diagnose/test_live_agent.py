"""Tests the agent of a host: clocks that are set, damaged times, sends and receives, claims."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.diagnose.grown import agent, followed
from tests.diagnose.support import traced
from tests.trace.writer import communicator, message, operation, rank_of
from transport.diagnose.facts import facts_of
from transport.diagnose.live.claim import NAME, Claim
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.columns import Table
from transport.diagnose.live.turns import Turns, aligned
from transport.diagnose.live.vanished import Vanished
from transport.trace import open_store
from transport.trace.layout import HEADER

HOUR_NS = 3600 * 10**9


def test_agent__a_clock_that_is_set_moves_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = rank_of(tmp_path, 0, 1)
    process.new("connection", 500, pair=77, peer="10.0.0.9:1", flows=1, paths=1)
    now_ns = time.monotonic_ns()
    message(process, 1, 0, 100, now_ns - 3_000, now_ns, sends=1)
    process.write()
    one = agent(tmp_path)
    said = one.step()
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 5 * HOUR_NS)
    later = one.step()
    assert (later.read_ns - said.read_ns) // HOUR_NS == 0
    assert said.read_ns == pytest.approx(said.processes[0]["last_ns"], abs=HOUR_NS)
    process.ahead_ns += 5 * HOUR_NS  # the clock was set: the next file has another time of day
    message(process, 1, 1, 100, now_ns, now_ns + 3_000, sends=1)
    process.write()
    last_ns = one.step().processes[0]["last_ns"]
    assert last_ns - said.processes[0]["last_ns"] == 3_000


def described(**said: Any) -> dict[str, Any]:
    return {"state": "?", "ended": False, "last_ns": HOUR_NS} | said


@pytest.mark.parametrize(
    ("later", "gone"),
    [
        ({}, True),
        ({"state": "S"}, False),
        ({"state": "T"}, False),
        ({"state": None, "ended": True}, False),
        ({"last_ns": 2 * HOUR_NS - 1_000}, False),  # it runs in another container
    ],
)
def test_vanished__is_a_job_of_which_nothing_runs_or_writes(
    later: dict[str, Any], gone: bool
) -> None:
    watch = Vanished()
    assert not watch.all_gone
    for one in ({}, later, {}):
        watch.step([described(), described(**one)], 2 * HOUR_NS)
    assert watch.all_gone == gone


def test_agent__impossible_times_are_left_out(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    process.new("connection", 500, pair=77, peer="10.0.0.9:1", flows=1, paths=1)
    message(process, 1, 0, 100, 1_000, 2_000, sends=1)
    message(process, 1, 1, 100, 1_000, 1 << 62, sends=1)
    process.write()
    (said,) = agent(tmp_path).step().processes
    assert said["last_ns"] - said["first_ns"] == 1_500


def test_agent__holes_of_a_trace_are_said_and_the_rest_is_judged(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    process.new("connection", 500, pair=77, peer="10.0.0.9:1", flows=1, paths=1)
    files = []
    for number in range(4):
        message(process, 1, number, 100, 1_000 + number, 2_000 + number, sends=1)
        files.append(process.write())
    files[1].unlink()
    damaged = bytearray(files[3].read_bytes())
    damaged[HEADER.unpack_from(damaged)[2] + 40] ^= 0xFF
    files[3].write_bytes(bytes(damaged))
    one, collector = agent(tmp_path), Collector()
    for interval in range(2):
        said = one.step()
        assert said.tables["messages"]["message"].tolist() == [0, 2]
        assert len(said.notes) == (interval == 0)
        assert collector.step([said]) == []
        assert collector.latest is not None
        assert any("file 1 is missing" in note for note in collector.notes) == (interval == 0)


def test_agent__a_file_of_the_future_hides_no_job(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    now_ns = time.monotonic_ns()
    message(process, 1, 0, 100, now_ns - 3_000, now_ns, sends=1)
    process.ended = False
    process.write()
    (tmp_path / "left over.trace").touch()
    later = rank_of(tmp_path, 1, 2)  # its clock was set back after it wrote this file
    message(later, 1, 0, 100, now_ns - 3_000, now_ns, sends=1)
    future_s = time.time() + 3600
    for file in (tmp_path / "left over.trace", later.write()):
        os.utime(file, (future_s, future_s))
    one = agent(tmp_path)
    one.follower.window_ns = 60 * 10**9
    assert [process["rank"] for process in one.step().processes] == [0, 1]


def test_agent__copies_of_traces_are_read_once(tmp_path: Path) -> None:
    file = rank_of(tmp_path, 0, 1).write()
    one = agent(tmp_path)
    one.step()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / file.name).write_bytes(file.read_bytes())
    before = one.follower.bytes
    (line,) = one.step().notes
    assert line == f"{tmp_path / 'copy' / file.name} is a copy of {file}: left out"
    assert (one.follower.bytes, one.step().notes) == (before, [])


def test_agent__impossible_counts_spoil_nothing_else(tmp_path: Path) -> None:
    """A wait for the GPU of 2^64 - 1 ns, and 2^32 - 1 segments."""
    now_ns = time.monotonic_ns()
    for rank in (0, 1):
        one = rank_of(tmp_path, rank, 2)
        comm = communicator(one, 7, rank, 2)
        one.new("connection", now_ns - 9_000, pair=77, peer="10.0.0.9:1", flows=1, paths=1)
        op = operation(one, comm, "AllReduce", now_ns - 9_000, now_ns - 8_000)
        values = {"operation": op, "communicator": comm, "peer": 1 - rank, "sends": 0}
        id_ = one.new("channel", now_ns - 9_000, channel=0, **values)
        one.put("channel_end", id_, now_ns - 8_000, messages=1, steps=1, gpu_wait_ns=2**64 - 1)
        message(one, 2, 0, 100, now_ns - 9_000, now_ns - 8_000, sends=1, channel_id=id_)
        one.new(
            "stripe",
            now_ns - 8_000,
            connection=2,
            message=0,
            sends=1,
            bytes=100,
            segments=2**32 - 1,
            path_0=255,
        )
        one.write()
    said = agent(tmp_path).step()
    assert (len(said.processes), len(said.tables["calls"]["id"])) == (2, 2)
    with open_store(tmp_path) as store:
        facts = facts_of(store)
    assert facts.calls["gpu_wait_ns"].tolist() == [0, 0]


def test_agent__says_for_how_long_a_process_has_called_nothing(tmp_path: Path) -> None:
    absent = {"kind": "absent_rank", "rank": 21, "at_step": 3, "operation": 1}
    source = traced(tmp_path / "trace", absent, limit_ns=10_000_000)
    said = followed(source, tmp_path / "grown", 1, agent(tmp_path / "grown"))
    idle = {one["rank"] for one in said.processes if one["idle_ns"] > 0}
    waiting = said.tables["calls"]["process"][said.tables["calls"]["end_ns"] < 0]
    ranks = {one["number"]: one["rank"] for one in said.processes}
    assert 21 in idle
    assert not idle & {ranks[one] for one in waiting.tolist()}


def calls(count: int, first: int = 0) -> Table:
    """Rank 0 sends to rank 1; the receives from number `first` on are known."""
    number = np.concatenate([np.arange(count), np.arange(first, count)])
    sends = np.arange(len(number)) < count
    return {
        "process": np.where(sends, 0, 1),
        "id": number + 1,
        "comm_id": np.full(len(number), 9, "u8"),
        "rank": np.where(sends, 0, 1),
        "root": np.where(sends, 1, 0),
        "kind": np.full(len(number), "p2p", object),
        "function": np.where(sends, "Send", "Recv").astype(object),
        "begin_ns": number * 1_000,
        "end_ns": number * 1_000 + np.where(sends, 500, 400),
    }


def test_turns__are_counted_across_steps() -> None:
    turns = Turns()
    first = calls(3)
    assert turns.of(first).tolist() == [0, 1, 2, 0, 1, 2]
    turns.settle({name: column[:2] for name, column in first.items()})
    more = {name: column[[2, 5]] for name, column in first.items()}
    assert turns.of(more).tolist() == [2, 2]  # still open: the same numbers
    new = {**more, "id": np.array([4, 4])}
    assert turns.of(new).tolist() == [3, 3]
    turns.forget({0, 1})
    assert turns.of(new).tolist() == [0, 0]


@pytest.mark.parametrize("first", [0, 4])
def test_turns__of_an_agent_that_began_late_are_moved(first: int) -> None:
    known = calls(10, first)
    sent = np.arange(10)
    known["turn"] = np.concatenate([sent, np.arange(10 - first)])
    moved = aligned(known, np.array([True, False]))
    assert moved.tolist() == [*sent, *range(first, 10)]
    whole = aligned(known, np.array([True, True]))
    assert whole.tolist() == known["turn"].tolist()


def test_claim__one_collector_acts(tmp_path: Path) -> None:
    mine = Claim(tmp_path, 60.0, host="here")
    assert (mine.step(), mine.holds) == ([], True)
    other = Claim(tmp_path, 60.0, host="there")
    (line,) = other.step()
    assert line.startswith(f"another collector judges this share (process {os.getpid()} on here)")
    assert (other.step(), other.holds) == ([], False)
    assert (mine.step(), mine.holds) == ([], True)
    mine.close()
    assert (other.step(), other.holds) == ([], True)
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_claim__a_stale_or_damaged_one_is_taken_over(tmp_path: Path) -> None:
    Claim(tmp_path, 60.0, host="here").step()
    late = Claim(tmp_path, -1.0, host="there")
    held = []
    for step in range(4):
        late.step()
        held.append(late.holds)
        if step == 1:
            (tmp_path / NAME).write_text("[")
    # A collector that takes a claim over holds it only from the next interval on, as another
    # collector may have taken it at the same time.
    assert held == [False, True, False, True]


@pytest.mark.parametrize("text", ["[" * 4_096, '{"weft_collector":["a",1e999,1]}', None])
def test_claim__a_hostile_one_is_held_by_nobody(tmp_path: Path, text: str | None) -> None:
    """None: a pipe, which nobody may wait for."""
    if text is None:
        os.mkfifo(tmp_path / NAME)
    else:
        (tmp_path / NAME).write_text(text)
    late = Claim(tmp_path, -1.0)
    for _ in range(2):
        assert len(late.step()) <= 1
    assert late.holds


def test_claim__of_a_dead_process_of_this_host_is_taken_over(tmp_path: Path) -> None:
    dead = Claim(tmp_path, 60.0)
    dead._me[1:] = [2**22 + 1, 5]
    dead.step()
    mine = Claim(tmp_path, 60.0)
    mine.step()
    mine.step()
    assert mine.holds


def test_claim__a_share_that_is_gone_is_one_line(tmp_path: Path) -> None:
    claim = Claim(tmp_path / "gone", 60.0)
    (line,) = claim.step()
    assert "No such file or directory" in line
    assert claim.step() == []
