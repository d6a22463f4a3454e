"""Tests what flows, connections and processes wait for, on made-up pages."""

from dataclasses import replace
from typing import Any

import pytest

from tests.live.support import NOW, SECOND, engine, flow, page, path, peer, reading
from transport.live import REASONS, rates
from transport.live.silence import CAUSES
from transport.telemetry import Page, PeerRow, Row


def words(made: Page) -> str:
    (process,) = rates(None, reading(made))
    assert process.wait.reason in REASONS
    return process.wait.text


def down(of: PeerRow) -> PeerRow:
    return replace(of, paths=tuple(path(at, usable=0) for at in range(len(of.paths))))


OLD = {"progress_ns": NOW - 1_200_000_000}
UNSENT = {"sends": 1, "unsent_bytes": 2_000_000}


@pytest.mark.parametrize(
    ("made", "peers", "text"),
    [
        (flow(), peer(), "idle"),
        (flow(sends=1, inflight_bytes=9), peer(), "transferring"),
        (flow(receives=1), peer(), "transferring"),
        (
            flow(**OLD, sends=1, inflight_bytes=3_000_000),
            peer(),
            "acknowledgment of 3 MB by 10.0.0.2, 1.2 s",
        ),
        (
            flow(**OLD, sends=2, inflight_bytes=3_000_000),
            peer(heard_ns=NOW - 5 * SECOND),
            "acknowledgment of 3 MB by 10.0.0.2, 1.2 s, not heard for 5 s",
        ),
        (flow(**OLD, sends=2), peer(), "acknowledgment of 2 messages by 10.0.0.2, 1.2 s"),
        (
            flow(**OLD, **UNSENT),
            peer(),
            "room: 10.0.0.2 posts no receive or grants no credit, 2 MB unsent, 1.2 s",
        ),
        (
            flow(**OLD, **UNSENT),
            down(peer(heard_ns=NOW - SECOND)),
            f"no answer from 10.0.0.2 for 1.2 s on all 2 paths: {CAUSES}",
        ),
        (
            flow(**OLD, **UNSENT),
            down(peer(paths=1, heard_ns=-1)),
            f"no answer from 10.0.0.2 for 1.2 s on its path: {CAUSES}",
        ),
        (
            flow(progress_ns=NOW - 5 * SECOND, receives=1),
            peer(),
            "receive: 10.0.0.2 sent nothing for 5 s",
        ),
        (
            flow(progress_ns=0, active_ns=NOW - 7 * SECOND, receives=1, peer=-1),
            peer(),
            "receive: the peer sent nothing for 7 s",
        ),
        (
            flow(receives=1),
            peer(dead=1, heard_ns=NOW - 300 * SECOND),
            f"dead: 10.0.0.2, not heard for 5 min: {CAUSES}",
        ),
        (flow(phase=1), peer(), "failed"),
        (flow(phase=2), peer(), "closing"),
        (flow(phase=3), peer(), "closed"),
    ],
)
def test_wait__of_a_flow_in_words(made: Row, peers: PeerRow, text: str) -> None:
    assert words(page(flows=(made,), peers=(peers,))) == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"process_state": "gone"}, "gone: the process has ended"),
        ({"process_state": "stopped"}, "stopped by a signal"),
        (
            {"engines": (engine(), engine(1, sleeping=0, turn_ns=NOW - 2 * SECOND))},
            "engine 1 has not run for 2 s (starved or stuck)",
        ),
        ({"engines": (engine(sleeping=1, turn_ns=NOW - 2 * SECOND),)}, "transferring"),
        ({"engines": (engine(sleeping=0, turn_ns=0),)}, "transferring"),
        ({"flows": ()}, "idle: no connections"),
    ],
)
def test_wait__of_a_process_that_does_not_run(changes: dict[str, Any], text: str) -> None:
    made = {"flows": (flow(receives=1),)} | changes
    assert words(page(**made)) == text


def test_wait__a_stripe_that_lags_decides_and_one_that_has_all_does_not() -> None:
    waits = flow(**OLD, sends=1, inflight_bytes=1000)
    moves = flow(1, stripe=1, sends=1, inflight_bytes=1000)
    assert words(page(flows=(moves, waits))) == "acknowledgment of 1 kB by 10.0.0.2, 1.2 s"
    has_all = flow(**OLD, receives=1)
    assert words(page(flows=(moves, has_all))) == "transferring"


def test_wait__a_long_receive_shows_beside_connections_that_transfer() -> None:
    moves = flow(1, connection=8, receives=1)
    for age_ns, text in (
        (5 * SECOND, "receive: 10.0.0.2 sent nothing for 5 s (1 of 2 connections)"),
        (SECOND // 2, "transferring (1 of 2 connections)"),
    ):
        waits = flow(progress_ns=NOW - age_ns, receives=1)
        assert words(page(flows=(moves, waits))) == text
