"""Tests peers that die, stop, fork or become another program while long messages move."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.api.support import PATIENCE_S, child, line, running
from tests.local.peer import child_of_fork
from tests.local.support import (
    LONG_BYTES,
    WAYS,
    agree,
    alive,
    dialled,
    held,
    is_local,
    message,
    returns_to,
    served,
    variables_of,
    words,
)
from tests.stopping import stopped
from tests.waiting import until
from transport import Connection, Endpoint, Request
from transport.errors import ConnectionLostError, PeerDeadError, PeerStalledError

OUTSTANDING = 3
# What a peer does; the survivor does the other.
DIRECTIONS = ("sends", "receives")


def post(connection: Connection, direction: str, number: int) -> tuple[Request, np.ndarray]:
    """Starts the survivor's part of a message."""
    if direction == "receives":
        data = message(LONG_BYTES, number)
        return connection.isend(data), data
    memory = np.zeros(LONG_BYTES, np.uint8)
    return connection.irecv_into(memory), memory


def check_content(direction: str, number: int, memory: np.ndarray) -> None:
    if direction == "sends":
        assert np.array_equal(memory, message(LONG_BYTES, number)), f"message {number} is wrong"


def lose(connection: Connection, direction: str, end: Any, error: type[Exception]) -> None:
    """Moves long messages, lets `end` end the peer meanwhile, and asserts that all the rest fail.

    Each message that counts as received is right, and no buffer changes once its request failed.
    """
    flying = [(number, *post(connection, direction, number)) for number in range(OUTSTANDING)]
    ended = False
    while True:
        number, request, memory = flying.pop(0)
        try:
            request.wait(PATIENCE_S)
        except error:
            break
        check_content(direction, number, memory)
        if not ended:
            end()
            ended = True
        with suppress(ConnectionLostError):  # this end may know already
            flying.append((number + OUTSTANDING, *post(connection, direction, flying[-1][0] + 1)))
    kept = memory.copy()
    for _, request, _ in flying:
        with pytest.raises(error):
            request.wait(PATIENCE_S)
    time.sleep(0.05)  # time in which a thread that goes on would write
    assert np.array_equal(memory, kept)
    with pytest.raises(ConnectionLostError):
        connection.check()


def descendants(pid: int) -> list[int]:
    """Processes that a process started and that have not been waited for."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            found += map(int, (task / "children").read_text().split())
    return found


def files_of(pid: int) -> list[str]:
    """Files of shared memory that a process left, but the page that `weft top` reads."""
    names = [one for one in os.listdir("/dev/shm") if str(pid) in one.split("-")]
    return [one for one in names if not one.endswith(".page")]


@contextmanager
def surviving(mode: str) -> Iterator[tuple[Endpoint, bytes]]:
    """An endpoint with a connection that must outlive what the test does to another.

    The other connection, a new one and what this process holds are checked at the end.
    """
    children = descendants(os.getpid())
    with (
        served("exchanges", mode=mode) as (_, handle),
        Endpoint(**words(mode)) as endpoint,
        endpoint.connect(handle, timeout_s=PATIENCE_S) as other,
    ):
        alive(other)
        before = held()
        yield endpoint, handle
        alive(other, seed=5)
        assert is_local(other)
        with endpoint.connect(handle, timeout_s=PATIENCE_S) as another:
            alive(another, seed=6)
            assert is_local(another)
        returns_to(before)
        alive(other, seed=7)
    assert descendants(os.getpid()) == children


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kill__fails_what_moves_and_nothing_else(mode: str, direction: str) -> None:
    with surviving(mode) as (endpoint, _):
        for pause_s in (0.0, 0.003, 0.02):
            with served("moves", direction, mode=mode) as (peer, handle):
                connection = endpoint.connect(handle, timeout_s=PATIENCE_S)

                def kill(pause_s: float = pause_s, peer: Any = peer) -> None:
                    time.sleep(pause_s)  # so that a message has moved in part
                    peer.kill()

                lose(connection, direction, kill, PeerDeadError)
                connection.close()
                assert peer.wait(PATIENCE_S) == -signal.SIGKILL
                assert not files_of(peer.pid)


def told(connection: Connection, peer: Any) -> None:
    """Asserts that requests end with their peer although no caller waits for one of them."""
    requests = [post(connection, "sends", number)[0] for number in range(OUTSTANDING)]
    until(lambda: requests[0].nbytes, "no message arrives")
    peer.kill()
    requests.append(post(connection, "sends", OUTSTANDING)[0])
    until(lambda: requests[-1].done, "a request does not end")
    with pytest.raises(PeerDeadError):
        requests[-1].wait(0)


@pytest.mark.parametrize("mode", WAYS)
def test_kill__is_told_to_requests_that_nobody_waits_for(mode: str) -> None:
    with (
        surviving(mode) as (endpoint, _),
        served("moves", "sends", mode=mode) as (peer, handle),
        endpoint.connect(handle, timeout_s=PATIENCE_S) as connection,
    ):
        told(connection, peer)


def through_a_stop(connection: Connection, direction: str, count: int, pid: int) -> None:
    """Stops the peer while messages move, and asserts that all arrive after it goes on."""
    requests = [post(connection, direction, number) for number in range(count)]
    requests[0][0].wait(PATIENCE_S)
    with stopped(pid):
        time.sleep(1)  # as long as a pause of a busy host
        connection.check()
    for number, (request, memory) in enumerate(requests):
        assert request.wait(PATIENCE_S) == LONG_BYTES
        check_content(direction, number, memory)


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_stop__everything_arrives_after_it(mode: str, direction: str) -> None:
    count = 6
    with (
        surviving(mode) as (endpoint, _),
        served("moves", direction, str(count), mode=mode) as (peer, handle),
        endpoint.connect(handle, timeout_s=PATIENCE_S) as connection,
    ):
        through_a_stop(connection, direction, count, peer.pid)
        assert line(peer) == "all"


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_stop__for_longer_than_the_knob_ends_the_connection(mode: str, direction: str) -> None:
    limits = {"silence": "1s", "stall": "2s"}
    with (
        running(child("silent", **variables_of(mode))) as peer,
        dialled(bytes.fromhex(line(peer)), mode, peer_timeout=limits) as connection,
    ):
        assert line(peer) == "accepted"
        request, _ = post(connection, direction, 0)
        with stopped(peer.pid), pytest.raises(PeerStalledError, match="WEFT_PEER_TIMEOUT=stall"):
            request.wait(PATIENCE_S)
        assert connection.counters().segments_sent == 0
        with pytest.raises(PeerStalledError):
            connection.check()


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_exec__no_message_has_wrong_bytes(mode: str, direction: str) -> None:
    with surviving(mode) as (endpoint, _):
        for pause_s in (0.0, 0.01):
            with served("becomes_another_program", direction, mode=mode) as (peer, handle):
                connection = endpoint.connect(handle, timeout_s=PATIENCE_S)

                def become(pause_s: float = pause_s, peer: Any = peer) -> None:
                    time.sleep(pause_s)  # so that a message has moved in part
                    peer.stdin.write("\n")
                    peer.stdin.flush()

                lose(connection, direction, become, PeerDeadError)
                connection.close()
                assert peer.poll() is None  # the same process, with another program


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fork__of_the_peer_changes_nothing(mode: str, direction: str) -> None:
    with surviving(mode) as (endpoint, _), served("forks", direction, mode=mode) as (peer, handle):
        connection = endpoint.connect(handle, timeout_s=PATIENCE_S)
        forked: list[int] = []

        def fork_and_die() -> None:
            peer.stdin.write("\n")
            peer.stdin.flush()
            forked.extend(map(int, line(peer).split()))
            peer.kill()

        try:
            lose(connection, direction, fork_and_die, PeerDeadError)
        finally:
            for pid in forked[1:]:
                os.kill(pid, signal.SIGKILL)
        assert forked[0] == 0, "the forked child was not refused"
        connection.close()


@pytest.mark.parametrize("mode", WAYS)
def test_fork__of_this_process_harms_nobody(mode: str) -> None:
    sizes = [8 << 20] * 12
    with served("exchanges", mode=mode) as (_, handle), dialled(handle, mode) as connection:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                agree(connection, sizes, sizes)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        codes: list[int] = []
        while thread.is_alive() and len(codes) < 5:
            pid = os.fork()
            if pid == 0:
                child_of_fork(connection)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        thread.join(PATIENCE_S)
        assert not failures, failures
        assert set(codes) == {0}
        alive(connection)
