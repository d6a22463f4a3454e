"""Tests a peer that lends memory which cannot be read for as long as it likes.

Only its own connection waits for it, and no request of that ends before the kernel has stopped
writing to the request's buffer.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.api.support import PATIENCE_S, child, line, running
from tests.local.blocking import LENT_BYTES
from tests.local.peer import moved, post_all
from tests.local.support import SEVERAL, alive, is_local, names_of_threads, served, words
from tests.waiting import until
from transport import Connection, Endpoint, Request
from transport.errors import OperationCancelledError, PeerDeadError, TimedOutError, WeftError

POSTS = 16


def order(peer: Any, word: str) -> None:
    peer.stdin.write(f"{word}\n")
    peer.stdin.flush()


@pytest.fixture(params=["auto", SEVERAL])
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    """With one thread for each copy, or several, which are all held up."""
    with Endpoint(**words(request.param)) as made:
        yield made


@contextmanager
def lent(endpoint: Endpoint) -> Iterator[tuple[Any, Connection]]:
    """A peer process that lends unreadable memory, and the connection to it."""
    with (
        endpoint.listen() as listener,
        running(
            child(listener.handle.hex(), module="tests.local.blocking", WEFT_LOCAL="auto")
        ) as peer,
    ):
        connection = listener.accept(timeout_s=PATIENCE_S)
        connection.send(connection.recv(100, timeout_s=PATIENCE_S), timeout_s=PATIENCE_S)
        said = line(peer)
        if said != "lent":
            pytest.skip(said)
        yield peer, connection


def asleep(peer: Any) -> None:
    """Waits until a thread of this process sleeps in a copy."""
    assert line(peer) == "asleep"


def ends_late(request: Request, memory: np.ndarray, error: type[WeftError], peer: Any) -> None:
    """Asserts that a request ends only after its copy, and that nothing is written after it."""
    assert not request.done
    with pytest.raises(TimedOutError):
        request.wait(0.05)
    order(peer, "give")
    with pytest.raises(error):
        request.wait(PATIENCE_S)
    kept = memory.copy()
    time.sleep(0.05)  # time in which a thread that goes on would write
    assert np.array_equal(memory, kept)


def others_go_on(endpoint: Endpoint) -> None:
    """Asserts that other connections work, whether a caller moves their messages or none."""
    with (
        served("exchanges") as (_, handle),
        endpoint.connect(handle, timeout_s=PATIENCE_S) as other,
    ):
        alive(other)
        assert is_local(other)
    with (
        served("posts", str(POSTS)) as (peer, handle),
        endpoint.connect(handle, timeout_s=PATIENCE_S) as other,
    ):
        kept = post_all(other, POSTS)
        until(lambda: moved(other, POSTS), "messages that no caller moves stay where they are")
        for request in (*kept[0], *kept[1]):
            request.wait(PATIENCE_S)
        assert line(peer) == "right"


@pytest.mark.parametrize("dies", [False, True])
def test_copy__that_no_caller_waits_for_holds_up_its_connection_alone(
    dies: bool, endpoint: Endpoint
) -> None:
    with lent(endpoint) as (peer, connection):
        memory = np.full(LENT_BYTES, 0xA5, np.uint8)
        request = connection.irecv_into(memory)
        asleep(peer)
        if dies:
            order(peer, "die")
        others_go_on(endpoint)
        connection.close()
        ends_late(request, memory, OperationCancelledError, peer)


def test_copy__out_of_a_peer_that_has_died_fails_once_it_ends(endpoint: Endpoint) -> None:
    with lent(endpoint) as (peer, connection):
        memory = np.full(LENT_BYTES, 0xA5, np.uint8)
        request = connection.irecv_into(memory)
        asleep(peer)
        order(peer, "die")
        ends_late(request, memory, PeerDeadError, peer)
        with pytest.raises(PeerDeadError):
            connection.check()


def test_copy__of_a_waiting_caller_holds_up_that_caller_alone(endpoint: Endpoint) -> None:
    with lent(endpoint) as (peer, connection):
        memory = np.full(LENT_BYTES, 0xA5, np.uint8)
        request = connection.irecv_into(memory)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                request.wait(PATIENCE_S)
            except WeftError as error:
                errors.append(error)

        caller = threading.Thread(target=wait)
        caller.start()
        asleep(peer)
        others_go_on(endpoint)
        connection.close()
        ends_late(request, memory, OperationCancelledError, peer)
        caller.join(PATIENCE_S)
        assert [type(error) for error in errors] == [OperationCancelledError]


def leave(mode: str) -> None:
    """Closes an endpoint while a copy is held up, and goes on without it."""
    endpoint = Endpoint(**words(mode))
    with lent(endpoint) as (peer, connection):
        request = connection.irecv_into(bytearray(LENT_BYTES))
        asleep(peer)
        endpoint.close()
        del request, connection  # and with them the engines, but not the memory
        print("closed", flush=True)
        order(peer, "give")
        until(
            lambda: not {"weft-local", "weft-copy"} & set(names_of_threads("self")),
            "the threads that copied do not end",
        )
    with Endpoint(**words("auto")) as another:
        others_go_on(another)


@pytest.mark.parametrize("mode", ["auto", SEVERAL])
def test_copy__does_not_keep_an_endpoint_from_closing(mode: str) -> None:
    """In a process of its own, because the thread that is left behind keeps its connection."""
    with running(child(mode, module="tests.local.test_blocked")) as process:
        said, errors = process.communicate(timeout=PATIENCE_S)
    if "Skipped" in errors:
        pytest.skip(errors.splitlines()[-1])
    assert (said, process.returncode) == ("closed\n", 0), errors


if __name__ == "__main__":
    leave(sys.argv[1])
