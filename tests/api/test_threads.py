"""Tests many threads on one endpoint, connection or handle; blocking calls release the GIL."""

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.api.support import LOCAL, PATIENCE_S, ROOT, content, pair
from transport import Connection, Endpoint, Request
from transport.endpoint.endpoint import Listener
from transport.errors import ConnectionClosedError, OperationCancelledError, TimedOutError


def together(count: int, work: Callable[[int], Any]) -> None:
    """Calls work(0) to work(count - 1) in threads; raises the first failure."""
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


def test_threads__each_with_a_connection_of_its_own() -> None:
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:

        def work(index: int) -> None:
            here, there = ends[index]
            for i in range(50):
                data = content((i * 997) % 30_000, index)
                handle = here.isend(data)
                assert there.recv(30_000, timeout_s=PATIENCE_S) == data
                handle.wait(PATIENCE_S)

        ends = []
        for _ in range(8):
            here = endpoint.connect(listener.handle)
            ends.append((here, listener.accept(timeout_s=PATIENCE_S)))
        together(8, work)


def test_threads__posting_to_one_connection_loses_nothing() -> None:
    each = 200
    with pair() as (here, there):
        received: list[int] = []

        def work(index: int) -> None:
            if index == 0:
                messages = (there.recv(4, timeout_s=PATIENCE_S) for _ in range(4 * each))
                received.extend(map(int.from_bytes, messages))
                return
            for i in range(each):
                here.send((index * each + i).to_bytes(4), timeout_s=PATIENCE_S)

        together(5, work)
        assert sorted(received) == list(range(each, 5 * each))
        for index in range(1, 5):
            mine = [one for one in received if one // each == index]
            assert mine == sorted(mine)


def test_threads__one_handle_waited_for_by_many() -> None:
    with pair() as (here, there):
        for _ in range(20):
            handle = there.irecv_into(bytearray(8))

            def work(index: int, handle: Any = handle) -> None:
                if index == 0:
                    time.sleep(0.005)  # so that some wait; those that come later pass as well
                    here.send(b"message", timeout_s=PATIENCE_S)
                else:
                    assert handle.wait(PATIENCE_S) == 7

            together(5, work)


def test_threads__closing_wakes_who_blocks() -> None:
    with pair() as (_, there):

        def work(index: int) -> None:
            if index == 0:
                time.sleep(0.05)  # so that some wait; those that come later find it closed
                there.close()
            else:
                with pytest.raises((OperationCancelledError, ConnectionClosedError)):
                    there.recv(8, timeout_s=PATIENCE_S)

        together(4, work)


def test_threads__a_listener_gives_its_port_back_while_another_thread_accepts() -> None:
    with Endpoint(**LOCAL) as endpoint:
        listener = endpoint.listen(open=True)
        port = listener.port
        waits = threading.Event()

        def accepts(listener: Listener) -> None:
            waits.set()
            with pytest.raises(ConnectionClosedError):
                listener.accept(timeout_s=PATIENCE_S)

        for _ in range(20):
            with listener:
                thread = threading.Thread(target=accepts, args=(listener,), daemon=True)
                thread.start()
                assert waits.wait(PATIENCE_S)
                waits.clear()
                time.sleep(0.005)  # so that it waits; an accept that comes later fails alike
            listener = endpoint.listen(port, open=True)
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_threads__the_last_dial_or_listener_ends_the_runtime() -> None:
    """Each may be the last to let go of the runtime, whose end releases the GIL itself."""
    code = """
from transport import _native
for last in ("dial", "listener"):
    settings = {"interfaces": "lo", "engines": "1", "log_level": "error"}
    runtime = _native.open_runtime(list(settings.items()))[3]
    listener = runtime.listen(0, 0)[2]
    dial = runtime.connect_handle(0, listener.handle())[2]
    runtime.close()
    for each in (listener, dial) if last == "dial" else (dial, listener):
        each.close()
    print(last, "closed")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["dial closed", "listener closed", ""]


def test_threads__waiting_for_a_peer_costs_next_to_nothing() -> None:
    """A thread that waits wakes 20 times a second, to look for signals."""
    wakes: list[int] = []
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:

        def accepts() -> None:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
            with pytest.raises(TimedOutError):
                listener.accept(timeout_s=1)
            wakes.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before)

        thread = threading.Thread(target=accepts)
        thread.start()
        thread.join(PATIENCE_S)
    assert wakes[0] < 100


def test_threads__a_blocked_call_holds_no_lock() -> None:
    with pair() as (here, there):
        waiting = threading.Thread(
            target=there.recv, args=(8,), kwargs={"timeout_s": PATIENCE_S}, daemon=True
        )
        waiting.start()
        for _ in range(10_000):  # with the lock held, the call would end before this loop does
            assert waiting.is_alive()
        here.send(b"x", timeout_s=PATIENCE_S)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()


def test_threads__one_closes_the_endpoint_as_another_comes_back_from_the_same_wait() -> None:
    with Endpoint(**LOCAL) as there, there.listen() as listener:
        for round_ in range(60):
            with ThreadPoolExecutor(2) as threads:
                endpoint = Endpoint(**LOCAL)
                connection = endpoint.connect(listener.handle)
                peer = listener.accept(timeout_s=PATIENCE_S)
                place = bytearray(4096)
                handle = connection.irecv_into(place)
                waits = threads.submit(handle.wait, PATIENCE_S)
                closes = threads.submit(close_after, handle, connection, endpoint)
                data = content(4096, round_)
                peer.isend(data)
                assert waits.result(PATIENCE_S) == 4096
                closes.result(PATIENCE_S)
                assert place == data
                peer.close()


def close_after(handle: Request, connection: Connection, endpoint: Endpoint) -> None:
    handle.wait(PATIENCE_S)
    connection.close()
    endpoint.close()
