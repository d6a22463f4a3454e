"""Tests messages between two ends: sizes, order, lengths, buffers, both address families."""

import socket
from typing import Any

import numpy as np
import pytest

from tests.api.support import PATIENCE_S, child, content, line, pair, running
from transport import Connection, Endpoint
from transport.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    InvalidArgumentError,
    MessageTooLongError,
    OperationCancelledError,
    RefusedError,
    TimedOutError,
)

SIZES = [0, 1, 7, 8191, 8192, 8193, 65_536, 1_000_003, 64 << 20]


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


FAMILIES = [
    "ipv4",
    pytest.param("ipv6", marks=pytest.mark.skipif(not has_ipv6(), reason="lo has no ::1")),
]


def move(source: Connection, target: Connection, data: bytes, room_bytes: int) -> bytes:
    memory = bytearray(room_bytes)
    receive = target.irecv_into(memory)
    source.send(data, timeout_s=PATIENCE_S)
    count = receive.wait(PATIENCE_S)
    assert receive.done
    assert receive.nbytes == count
    return bytes(memory[:count])


@pytest.mark.parametrize("family", FAMILIES)
def test_transfer__every_size_arrives_whole(family: str) -> None:
    with pair(family=family) as (here, there):
        for size in SIZES:
            data = content(size, size)
            assert move(here, there, data, size) == data, size
        for size in SIZES[:-1]:
            data = content(size, size + 1)
            assert move(there, here, data, size + 10) == data, size


@pytest.mark.parametrize("family", FAMILIES)
def test_transfer__two_processes(family: str) -> None:
    with running(child("echo", WEFT_FAMILY=family)) as peer:
        handle = bytes.fromhex(line(peer))
        with Endpoint(interfaces="lo", engines=1, family=family) as endpoint:
            with endpoint.connect(handle, timeout_s=PATIENCE_S) as connection:
                assert ("::1" if family == "ipv6" else "127.0.0.1") in connection.peer_address
                for size in SIZES:
                    data = content(size, size)
                    connection.isend(data)
                    assert connection.recv(size, timeout_s=PATIENCE_S) == data, size
            assert line(peer) in {"connection_closed", "peer_dead"}


@pytest.mark.parametrize(
    "knobs", [{}, {"engines": 2, "stripes": 3}, {"paths": 1, "eager_bytes": 0}]
)
def test_transfer__many_outstanding_both_ways(knobs: dict[str, Any]) -> None:
    count = 64
    sizes = [(i * 7919) % 50_000 if i % 5 else 0 for i in range(count)]
    with pair(**knobs) as ends:
        memory = [[bytearray(size + 3) for size in sizes] for _ in ends]
        receives = [
            [end.irecv_into(one) for one in mine] for end, mine in zip(ends, memory, strict=True)
        ]
        sends = [
            end.isend(content(size, i + 100 * which))
            for i, size in enumerate(sizes)
            for which, end in enumerate(ends)
        ]
        for send in sends:
            send.wait(PATIENCE_S)
        for which in range(2):
            for i, size in enumerate(sizes):
                assert receives[1 - which][i].wait(PATIENCE_S) == size
                assert bytes(memory[1 - which][i][:size]) == content(size, i + 100 * which)


def test_transfer__more_outstanding_than_the_engine_holds() -> None:
    count = 1_000
    with pair() as (here, there):
        sends = [here.isend(i.to_bytes(4)) for i in range(count)]
        got = [int.from_bytes(there.recv(4, timeout_s=PATIENCE_S)) for _ in range(count)]
        assert got == list(range(count))
        assert [send.wait(PATIENCE_S) for send in sends] == [4] * count


@pytest.mark.parametrize(("sent", "room"), [(100, 99), (100_000, 5_000), (1, 0)])
def test_transfer__too_long_fails_both_ends(sent: int, room: int) -> None:
    with pair() as (here, there):
        receive = there.irecv_into(bytearray(room))
        send = here.isend(bytes(sent))
        with pytest.raises(MessageTooLongError):
            receive.wait(PATIENCE_S)
        # A short send may end before its receive is posted; the peer's engine stores its bytes.
        try:
            send.wait(PATIENCE_S)
            assert sent <= 100
        except MessageTooLongError:
            pass
        with pytest.raises(MessageTooLongError):
            here.recv_into(bytearray(1), timeout_s=PATIENCE_S)


def test_transfer__any_buffer() -> None:
    numbers = np.arange(1_000, dtype=np.float64).reshape(10, 100)
    with pair() as (here, there):
        target = np.zeros_like(numbers)
        receive = there.irecv_into(target)
        here.send(numbers, timeout_s=PATIENCE_S)
        assert receive.wait(PATIENCE_S) == numbers.nbytes
        assert (target == numbers).all()
        for empty in (b"", bytearray(), memoryview(b""), np.empty(0), np.empty((0, 4))):
            receive = there.irecv_into(bytearray(8))
            here.send(empty, timeout_s=PATIENCE_S)
            assert receive.wait(PATIENCE_S) == 0


def test_transfer__dropped_handles_still_complete() -> None:
    with pair() as (here, there):
        for i in range(20):
            here.isend(content(100_000, i))
        for i in range(20):
            assert there.recv(100_000, timeout_s=PATIENCE_S) == content(100_000, i)


def test_connection__refuses_wrong_arguments() -> None:
    with pair() as (here, there):
        with pytest.raises(ValueError, match="max_bytes"):
            here.recv(-1)
        with pytest.raises(ValueError, match="timeout_s"):
            here.send(b"", timeout_s=-1)
        with pytest.raises(ValueError, match=r"buf: .* read-only"):
            there.recv_into(b"constant")
        with pytest.raises(TypeError, match="buf"):
            here.send("text")  # type: ignore[arg-type]


def test_connection__wait_in_steps_and_then_close() -> None:
    with pair() as (here, there):
        receive = there.irecv_into(bytearray(8))
        with pytest.raises(TimedOutError):
            receive.wait(0.01)
        here.send(b"late", timeout_s=PATIENCE_S)
        assert receive.wait(PATIENCE_S) == 4
        pending = there.irecv_into(bytearray(8))
        there.close()
        there.close()
        with pytest.raises(OperationCancelledError):
            pending.wait(PATIENCE_S)
        with pytest.raises(ConnectionClosedError):
            there.send(b"")
        with pytest.raises(ConnectionClosedError):
            there.check()
        with pytest.raises(ConnectionLostError):
            here.recv(8, timeout_s=PATIENCE_S)


def test_connection__counts() -> None:
    with pair(paths=4) as (here, there):
        assert move(here, there, bytes(1 << 20), 1 << 20) == bytes(1 << 20)
        counters = here.counters()
        assert counters.bytes_sent == 1 << 20
        assert len(counters.paths) == 4
        assert sum(path.bytes_sent for path in counters.paths) >= 1 << 20
        assert there.counters().bytes_received == 1 << 20
        assert counters.acks_received > 0
        assert all(getattr(counters, name) >= 0 for name in counters.FIELDS)
        batches = here._owner.counters().batch_datagrams
        assert len(batches) == 40
        assert 0 < sum(batches) <= here._owner.counters().datagrams_sent
        here.close()
        assert here.counters().bytes_sent == 1 << 20


def test_endpoint__says_what_it_is() -> None:
    with Endpoint(interfaces="lo", paths=3) as endpoint:
        assert [device.name for device in endpoint.devices] == ["lo"]
        assert endpoint.devices[0].mtu_bytes > 0
        assert "lo" in endpoint.summary()
        assert "\n" not in endpoint.summary()
        with pytest.raises(InvalidArgumentError, match=r"device: .*'eth7'.*0 lo"):
            endpoint.listen(device="eth7")
        with pytest.raises(InvalidArgumentError, match="port"):
            endpoint.listen(port=70_000, open=True)
    assert endpoint.closed
    endpoint.close()
    with pytest.raises(ConnectionClosedError):
        endpoint.listen()


def test_endpoint__connects_by_address_and_iterates() -> None:
    with (
        Endpoint(interfaces="lo", engines=1) as endpoint,
        endpoint.listen(device="lo", open=True) as listener,
    ):
        here = [endpoint.connect("127.0.0.1", listener.port) for _ in range(3)]
        there = [connection for _, connection in zip(range(3), listener, strict=False)]
        for i, connection in enumerate(here):
            connection.send(bytes([i]), timeout_s=PATIENCE_S)
        assert sorted(one.recv(1, timeout_s=PATIENCE_S) for one in there) == [b"\0", b"\1", b"\2"]
        with pytest.raises(TimedOutError, match="accept"):
            listener.accept(timeout_s=0.01)
        port = listener.port
        listener.close()
        assert list(listener) == []
        with pytest.raises(RefusedError, match=str(port)):
            endpoint.connect("127.0.0.1", port, timeout_s=PATIENCE_S)


def test_endpoint__refuses_what_is_no_handle() -> None:
    with Endpoint(interfaces="lo", engines=1) as endpoint:
        for wrong in (b"", b"short", bytes(64)):
            with pytest.raises(InvalidArgumentError):
                endpoint.connect(wrong)
        with pytest.raises(InvalidArgumentError, match="port"):
            endpoint.connect("127.0.0.1")


def test_endpoint__forgotten_at_exit_ends_cleanly() -> None:
    with running(child("forgetful")) as peer:
        out, err = peer.communicate(timeout=PATIENCE_S)
        assert (out, err, peer.returncode) == ("leaving\n", "", 0)


def test_endpoint__daemon_threads_at_exit_end_nothing() -> None:
    """Calls of daemon threads may return after the interpreter has ended, which must not crash."""
    for _ in range(6):
        with running(child("threads_at_exit")) as peer:
            out, _ = peer.communicate(timeout=PATIENCE_S)
            assert (out, peer.returncode) == ("leaving\n", 0)
