"""Tests receives that are left early: none loses a message of a connection that lives on."""

import asyncio
import contextlib
import gc
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.support import LOCAL, PATIENCE_S, pair
from tests.waiting import auntil, until
from transport import Connection, Endpoint, Request
from transport.errors import ConnectionClosedError, TimedOutError, WeftError

ROUNDS, TIMEOUT_S = 300, 0.002
SOON_S = 0.05


def engine_threads() -> list[str]:
    """The names of weft's threads in this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("weft-")]


def left_late(error: BaseException) -> Callable[[Request, float | None], int]:
    """A fake of Request.wait() that is left with `error` just after the message has arrived."""

    def wait(self: Request, timeout_s: float | None = None) -> int:
        until(lambda: self.done, "the message does not arrive")
        raise error

    return wait


def test_receive__a_message_that_arrives_as_the_time_is_up_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as (here, there):
        here.isend(b"first")
        here.isend(b"second")
        with monkeypatch.context() as patched:
            patched.setattr(Request, "wait", left_late(TimedOutError("fake")))
            assert there.recv(10, timeout_s=TIMEOUT_S) == b"first"
        assert there.recv(10, timeout_s=PATIENCE_S) == b"second"
        there.check()


def test_receive__an_interrupt_just_after_the_message_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pair() as (here, there):
        here.isend(b"lost")
        with monkeypatch.context() as patched:
            patched.setattr(Request, "wait", left_late(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                there.recv(10)
        with pytest.raises(WeftError):
            there.check()
        with pytest.raises(ConnectionClosedError):
            here.recv(1, timeout_s=PATIENCE_S)


def test_receive__times_out_while_its_message_arrives() -> None:
    """Each receive returns its own message, or its connection has ended."""
    chance = random.Random(7)
    rounds = [chance.uniform(0.9, 1.1) * TIMEOUT_S for _ in range(ROUNDS)]
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:
        number = 0
        while number < ROUNDS:
            here = endpoint.connect(listener.handle, timeout_s=PATIENCE_S)
            there = listener.accept(timeout_s=PATIENCE_S)
            with here, there:
                number = until_one_ends(here, there, rounds, number)


def until_one_ends(here: Connection, there: Connection, rounds: list[float], number: int) -> int:
    """Sends messages while they are waited for; returns the number of the next one."""
    for delay_s in rounds[number:]:
        timer = threading.Timer(delay_s, send, [here, str(number).encode()])
        timer.start()
        try:
            assert there.recv(8, timeout_s=TIMEOUT_S) == str(number).encode()
        except TimedOutError:
            with pytest.raises(WeftError):
                there.check()
            return number + 1
        except WeftError:  # the last receive was withdrawn just as its message had arrived
            return number
        finally:
            timer.join()
        number += 1
    return number


def send(connection: Connection, message: bytes) -> None:
    with contextlib.suppress(WeftError):  # the connection has ended
        connection.isend(message)


@pytest.mark.parametrize("buffer", [bytearray(0), [bytearray(0)], bytearray(4)], ids=repr)
def test_receive__of_any_length_is_withdrawn(buffer: Any) -> None:
    with pair() as (here, there):
        with pytest.raises(TimedOutError):
            there.recv_into(buffer, timeout_s=SOON_S)
        with pytest.raises(WeftError):
            there.check()
        with pytest.raises(ConnectionClosedError):
            here.send(b"", timeout_s=PATIENCE_S)


def test_arecv__a_message_that_arrives_as_the_time_is_up_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def late(_self: Connection, handle: Request, _seconds: float | None) -> None:
        await auntil(lambda: handle.done, "the message does not arrive")
        raise TimedOutError("fake")

    with pair() as (here, there):
        here.isend(b"first")
        monkeypatch.setattr(Connection, "_until", late)
        assert asyncio.run(there.arecv(10, timeout_s=TIMEOUT_S)) == b"first"
        there.check()


def test_arecv__of_nothing_is_withdrawn() -> None:
    with pair() as (here, there):
        with pytest.raises(TimedOutError):
            asyncio.run(there.arecv(0, timeout_s=SOON_S))
        with pytest.raises(WeftError):
            there.check()
        with pytest.raises(ConnectionClosedError):
            here.send(b"", timeout_s=PATIENCE_S)


def test_handle__a_kept_one_keeps_no_engine() -> None:
    before = len(engine_threads())
    descriptors = len(os.listdir("/proc/self/fd"))
    with pair() as (here, there):
        finished = here.isend(b"kept")
        assert there.recv(10, timeout_s=PATIENCE_S) == b"kept"
        finished.wait(PATIENCE_S)
        pending = there.irecv(10)
    gc.collect()
    assert len(engine_threads()) <= before
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert finished.wait() == 4
    with pytest.raises(WeftError):
        pending.wait()


def wait_for_wakes(thread: threading.Thread, count: int) -> None:
    """Waits until a thread has slept and woken `count` more times."""

    def slept() -> int:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])

    last = slept() + count
    until(lambda: slept() >= last, "the thread does not wake")


def test_wait__idle_waits_do_not_poll_again() -> None:
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:
        here = endpoint.connect(listener.handle, timeout_s=PATIENCE_S)
        there = listener.accept(timeout_s=PATIENCE_S)
        thread = threading.Thread(target=there.recv, args=[8])
        thread.start()
        wait_for_wakes(thread, 5)
        loops = endpoint.counters().loops
        wait_for_wakes(thread, 20)  # to look for signals
        assert endpoint.counters().loops - loops < 1_000  # twenty polls made thousands
        here.send(b"end", timeout_s=PATIENCE_S)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_endpoint__lists_connections_while_others_are_made() -> None:
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:
        over = threading.Event()
        errors: list[Exception] = []

        def look() -> None:
            try:
                while not over.is_set():
                    list(endpoint.connections)
            except Exception as error:  # raised again below
                errors.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        kept = []
        for _ in range(200):
            kept.append(endpoint.connect(listener.handle, timeout_s=PATIENCE_S))
            kept.append(listener.accept(timeout_s=PATIENCE_S))
        over.set()
        thread.join(PATIENCE_S)
        assert not errors
        assert len(endpoint.connections) == len(kept)


def test_endpoint__every_close_returns_after_the_engines_have_stopped() -> None:
    before = len(engine_threads())
    for _ in range(20):
        endpoint = Endpoint(**LOCAL)
        thread = threading.Thread(target=endpoint.close)
        thread.start()
        endpoint.close()
        assert len(engine_threads()) <= before
        thread.join(PATIENCE_S)
