"""Tests what pages say about why a peer is silent: made-up ones, and those of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.api.support import line
from tests.live.support import (
    NOW,
    SECOND,
    connected,
    exchanging,
    flow,
    page,
    path,
    peer,
    reading,
    weft,
)
from tests.stopping import stopped
from tests.waiting import until
from transport.live import rates, read
from transport.live.silence import CAUSES
from transport.live.waiting import Wait
from transport.telemetry import Page, PeerRow

OLD = NOW - 6 * SECOND
WAITS = flow(progress_ns=OLD, sends=1, inflight_bytes=9)
LOOPBACK = "127.0.0.1"
ELSEWHERE = "240.0.0.2"  # no host has it: RFC 1112 reserves the class


def silent(index: int = 0, address: str = "10.0.0.2", heard_ns: int = OLD) -> PeerRow:
    """A peer that a flow waits for and of which no path answers."""
    made = peer(index, 2, address, waited_for=1, heard_ns=heard_ns)
    return replace(made, paths=tuple(path(at, usable=0) for at in range(2)))


def said(*pages: Page) -> str:
    """The wait of the first of these processes, in words."""
    return rates(None, reading(*pages))[0].wait.text


def waiting(address: str = "10.0.0.2", heard_ns: int = OLD) -> Page:
    return page(flows=(WAITS,), peers=(silent(0, address, heard_ns),))


def other(*peers: PeerRow, **fields: Any) -> Page:
    return page(flows=(), peers=peers, pid=4712, **fields)


ALONE = f"no answer from 10.0.0.2 for 6 s on all 2 paths: {CAUSES}"


def test_silence__alone_says_both_causes() -> None:
    assert said(waiting()) == ALONE
    # Another connection to the address that was heard as long ago says nothing.
    assert said(page(flows=(WAITS,), peers=(silent(heard_ns=OLD), peer(1, heard_ns=OLD)))) == ALONE
    # Nothing is known of addresses in another PID namespace.
    assert said(waiting(), other(peer(), process_state="unknown")) == ALONE


def test_silence__another_connection_to_the_address_is_answered() -> None:
    for pages in (
        (waiting(), other(peer())),
        (page(flows=(WAITS,), peers=(silent(), peer(1))),),
    ):
        assert said(*pages) == (
            f"{ALONE}; other connections to 10.0.0.2 are answered: look at that process first"
        )


def test_silence__other_addresses_do_not_answer_either() -> None:
    one, two = (other(silent(0, address)) for address in ("10.0.0.3", "10.0.0.4"))
    two = replace(two, pid=4713, path=Path("/pages/weft-0-1-4713-5-0.page"))
    look = "not answer either: look at the network of this host first"
    assert said(waiting(), one) == f"{ALONE}; another address does {look}"
    assert said(waiting(), one, two) == f"{ALONE}; 2 other addresses do {look}"
    # A host that is heard shows that the network of this host works.
    assert said(waiting(), one, replace(two, peers=(peer(0, 2, "10.0.0.5"),))) == ALONE


def test_silence__packets_that_arrive_show_that_the_process_runs() -> None:
    text = said(waiting(heard_ns=NOW))
    assert "its process runs: look at the network from here to it" in text
    assert CAUSES not in text


def test_silence__a_stopped_process_may_be_a_peer_of_this_host_only() -> None:
    halted = other(peer(0, 2, LOOPBACK, heard_ns=OLD), process_state="stopped")
    look = "; process 4712 of this host is stopped: look there first"
    assert said(waiting(LOOPBACK), halted).endswith(CAUSES + look)
    assert said(waiting(ELSEWHERE), halted).endswith(CAUSES)
    receives = flow(progress_ns=OLD, receives=1)
    waits = page(flows=(receives,), peers=(peer(0, 2, LOOPBACK, heard_ns=OLD),))
    assert (
        said(waits, halted) == f"receive: {LOOPBACK} sent nothing for 6 s, not heard for 6 s{look}"
    )
    remote = other(peer(0, 2, ELSEWHERE, heard_ns=OLD), process_state="stopped")
    assert said(waiting(LOOPBACK), remote).endswith(CAUSES)


def wait_of(where: Path, pid: int, *others: int) -> Wait:
    """What a process waits for, if only the pages of it and of `others` are read."""
    found = rates(None, read(where, [pid, *others]))
    return next(one.wait for one in found if one.pid == pid)


@contextmanager
def stalled(where: Path) -> Iterator[tuple[int, int]]:
    """The pids of a stopped process and of one that waits for it: no path to it answers."""
    with connected("sender", where) as (echo, sender):

        def settled() -> str:
            found = wait_of(where, sender.pid)
            return found.reason if found.reason in ("paths", "room") and found.ns > SECOND else ""

        while True:
            with stopped(echo.pid):
                assert sender.stdin is not None
                sender.stdin.write("\n")
                sender.stdin.flush()
                assert line(sender) == "posted"
                if until(settled) == "paths":
                    yield echo.pid, sender.pid
                    return
            # It was stopped before its receive was known to the sender, which sent nothing.
            assert line(sender) == "echoed"


def test_silence__of_a_real_process_that_is_stopped(tmp_path: Path) -> None:
    with stalled(tmp_path) as (halted, sender):
        done = weft("top", "--interval", "0.1", where=tmp_path)
        look = f"process {halted} of this host is stopped: look there first"
        assert f"on all 4 paths: {CAUSES}; {look}" in done.stdout
        # Without the page of the stopped process, nothing says which cause it is.
        done = weft("top", str(sender), "--interval", "0.1", where=tmp_path)
        assert f"on all 4 paths: {CAUSES}\n" in done.stdout


def test_silence__of_a_real_process_beside_one_that_answers(tmp_path: Path) -> None:
    """Reads the pages of the two that wait, as if their peers were on another host."""
    with stalled(tmp_path) as (_, sender), exchanging(tmp_path) as (_, partner):
        answered = f"{CAUSES}; other connections to {LOOPBACK} are answered"
        until(
            lambda: answered in wait_of(tmp_path, sender, partner.pid).text,
            lambda: wait_of(tmp_path, sender, partner.pid).text,
        )
