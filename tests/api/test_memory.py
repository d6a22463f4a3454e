"""Tests registered memory: over sockets it has no effect, and misuse raises errors.

tests/rdma tests how NICs use registered memory.
"""

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.api.support import LOCAL, PATIENCE_S, content, pair
from transport import Connection, Endpoint
from transport.errors import ConnectionClosedError, OperationCancelledError

MEMORY_BYTES = 1 << 20


@pytest.fixture(name="ends")
def ends_() -> Iterator[tuple[Connection, Connection]]:
    with pair() as ends:
        yield ends


def test_memory__parts_are_sent_and_received(ends: tuple[Connection, Connection]) -> None:
    here, there = ends
    source, target = bytearray(content(MEMORY_BYTES, 1)), bytearray(MEMORY_BYTES)
    with here._owner.register(source) as sent, there._owner.register(target) as received:
        assert (sent.nbytes, sent.used, sent.closed) == (MEMORY_BYTES, False, False)
        cuts = [0, 1, 4_097, 70_001, 500_000, MEMORY_BYTES]
        handles = []
        for begin, end in pairwise(cuts):
            handles.append(there.irecv_into(memoryview(target)[begin:end], memory=received))
            handles.append(here.isend(memoryview(source)[begin:end], memory=sent))
        for handle in handles:
            handle.wait(PATIENCE_S)
        assert target == source
        # Empty messages and blocking calls also accept registered memory.
        receive = there.irecv_into(memoryview(target)[:0], memory=received)
        here.send(memoryview(source)[5:5], timeout_s=PATIENCE_S, memory=sent)
        assert receive.wait(PATIENCE_S) == 0
    assert sent.closed


def test_memory__twice_registered_is_let_go_of_once_each(
    ends: tuple[Connection, Connection],
) -> None:
    here, there = ends
    source = bytearray(content(100_000, 2))
    first, second = here._owner.register(source), here._owner.register(source)
    first.close()
    first.close()
    handle = here.isend(source, memory=second)
    second.close()
    assert there.recv(100_000, timeout_s=PATIENCE_S) == source
    handle.wait(PATIENCE_S)
    with pytest.raises(BufferError), here._owner.register(source):
        source.extend(b"held")
    source.extend(b"free")


def test_memory__misuse_is_said_and_ends_nothing(ends: tuple[Connection, Connection]) -> None:
    here, there = ends
    endpoint = here._owner
    buffer = bytearray(1000)
    memory = endpoint.register(buffer)
    with pytest.raises(ValueError, match=r"memory: .* inside"):
        here.isend(bytearray(10), memory=memory)
    with pytest.raises(ValueError, match=r"memory: .* another endpoint"):
        there.isend(buffer, memory=memory)
    with pytest.raises(TypeError, match=r"memory: .* Endpoint\.register\(\).* bytearray"):
        here.isend(buffer, memory=buffer)  # type: ignore[arg-type]
    memory.close()
    with pytest.raises(ValueError, match=r"memory: .* closed"):
        here.isend(buffer, memory=memory)
    with pytest.raises(ValueError, match=r"buf: .* read-only"):
        endpoint.register(b"constant")
    with pytest.raises(TypeError, match=r"buf: .* not int"):
        endpoint.register(5)
    handle = here.isend(b"still here")
    assert there.recv(10, timeout_s=PATIENCE_S) == b"still here"
    handle.wait(PATIENCE_S)


def test_memory__closes_with_its_endpoint() -> None:
    with Endpoint(**LOCAL) as endpoint:
        memory = endpoint.register(bytearray(1000))
    assert memory.closed
    with pytest.raises(ConnectionClosedError):
        endpoint.register(bytearray(1000))


@pytest.mark.parametrize("seed", range(10))
def test_memory__connection_closed_beside_its_sends(seed: int) -> None:
    with pair() as (here, _):
        closer = threading.Timer(0.0005 * seed, here.close)
        closer.start()
        handles = []
        try:
            for _ in range(40):
                buffer = bytearray(100_000)
                memory = here._owner.register(buffer)
                handles.append(here.isend(buffer, memory=memory))
                memory.close()
        except ConnectionClosedError:
            pass
        closer.join()
        for handle in handles:
            with pytest.raises((ConnectionClosedError, OperationCancelledError)):
                handle.wait(PATIENCE_S)
