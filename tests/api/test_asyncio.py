"""Tests the asyncio API: many operations at once, one descriptor, no thread per operation."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from tests.api.support import LOCAL, PATIENCE_S, content
from transport import Connection, Endpoint, WeftError
from transport.errors import (
    ConnectionClosedError,
    OperationCancelledError,
    RefusedError,
    TimedOutError,
)

COUNT = 300


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, PATIENCE_S))


async def connected(endpoint: Endpoint, count: int) -> list[tuple[Connection, Connection]]:
    async with endpoint.listen() as listener:
        dials = [asyncio.create_task(endpoint.aconnect(listener.handle)) for _ in range(count)]
        there = [await listener.aaccept() for _ in range(count)]
        here = [await dial for dial in dials]
    # The first message on each connection tells which accepted end belongs to which connect.
    for i, one in enumerate(here):
        one.isend(i.to_bytes(2))
    order = [int.from_bytes(await one.arecv(2)) for one in there]
    return [(here[order[i]], there[i]) for i in range(count)]


def test_asyncio__hundreds_at_once() -> None:
    async def main() -> None:
        async with Endpoint(**LOCAL) as endpoint:
            pairs = await connected(endpoint, 4)
            threads = threading.active_count()
            receives = [
                asyncio.create_task(there.arecv(20_000)) for _, there in pairs for _ in range(COUNT)
            ]
            sends = [
                asyncio.create_task(here.asend(content(i * 61 % 20_000, i)))
                for here, _ in pairs
                for i in range(COUNT)
            ]
            await asyncio.gather(*sends)
            assert threading.active_count() == threads
            for i, data in enumerate(await asyncio.gather(*receives)):
                assert data == content(i % COUNT * 61 % 20_000, i % COUNT)

    run(main())


def test_asyncio__one_endpoint_serves_one_loop_after_another() -> None:
    with Endpoint(**LOCAL) as endpoint:

        async def main() -> None:
            ((here, there),) = await connected(endpoint, 1)
            async with here, there:
                memory = bytearray(5)
                _, count = await asyncio.gather(here.asend(b"hello"), there.arecv_into(memory))
                assert (count, bytes(memory)) == (5, b"hello")

        for _ in range(3):
            run(main())


def test_asyncio__blocking_and_awaited_ends_meet() -> None:
    async def main() -> None:
        async with Endpoint(**LOCAL) as endpoint:
            ((here, there),) = await connected(endpoint, 1)
            blocking = asyncio.to_thread(there.recv, 100_000, timeout_s=PATIENCE_S)
            received, _ = await asyncio.gather(blocking, here.asend(content(100_000, 1)))
            assert received == content(100_000, 1)

    run(main())


def test_asyncio__close_wakes_who_waits() -> None:
    async def main() -> None:
        async with Endpoint(**LOCAL) as endpoint:
            listener = endpoint.listen()
            ((here, there),) = await connected(endpoint, 1)
            waiting = asyncio.create_task(there.arecv(10))
            accepting = asyncio.create_task(listener.aaccept())
            await asyncio.sleep(0.05)  # so that both wait; to close earlier ends them as well
            listener.close()
            there.close()
            with pytest.raises(OperationCancelledError):
                await waiting
            with pytest.raises(ConnectionClosedError):
                await accepting
            with pytest.raises(WeftError):
                await here.arecv(10)

    run(main())


def test_asyncio__cancelling_a_receive_withdraws_its_buffer() -> None:
    async def main() -> None:
        async with Endpoint(**LOCAL) as endpoint:
            ((here, there),) = await connected(endpoint, 1)
            memory = bytearray(100)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(there.arecv_into(memory), 0.05)
            with pytest.raises(WeftError):
                await asyncio.gather(here.asend(b"x" * 100), here.arecv(1))
            assert memory == bytearray(100)
            memory.extend(b"nobody holds it")

    run(main())


def test_asyncio__connect_fails_by_name() -> None:
    async def main() -> None:
        async with Endpoint(**LOCAL) as endpoint:
            async with endpoint.listen() as listener:
                port = listener.port
            with pytest.raises(RefusedError):
                await endpoint.aconnect("127.0.0.1", port)
            with socket.create_server(("127.0.0.1", 0)) as mute:
                port = mute.getsockname()[1]
                with pytest.raises(TimedOutError, match=str(port)):
                    await endpoint.aconnect("127.0.0.1", port, timeout_s=0.2)

    run(main())


def test_asyncio__two_loops_at_once_are_refused() -> None:
    async def main() -> None:
        async with Endpoint(**LOCAL) as endpoint:
            ((_, there),) = await connected(endpoint, 1)
            waiting = asyncio.create_task(there.arecv(10))
            await asyncio.sleep(0)  # so that the task has begun

            def other() -> None:
                with pytest.raises(RuntimeError, match="two event loops"):
                    asyncio.run(endpoint.listen().aaccept())

            await asyncio.to_thread(other)
            there.close()
            with pytest.raises(OperationCancelledError):
                await waiting

    run(main())
