"""Tests that connections through shared memory close cleanly, leave nothing, and need no caller."""

import json
from typing import Any

import numpy as np
import pytest

from tests.api.support import PATIENCE_S, line, pair
from tests.local.peer import moved, post_all
from tests.local.support import (
    MODES,
    RING_BYTES,
    alive,
    dialled,
    held,
    is_local,
    lines,
    message,
    returns_to,
    served,
    words,
)
from tests.waiting import until
from transport import Endpoint, WeftError
from transport.errors import ConnectionClosedError, OperationCancelledError

DIALS = 1000
UNASKED = 200
SIZES = [100, 0, 3000, 17]


def go_on(peer: Any) -> None:
    peer.stdin.write("\n")
    peer.stdin.flush()


@pytest.mark.parametrize("mode", MODES)
def test_dials__one_after_another_leave_nothing(mode: str) -> None:
    with (
        served("exchanges", mode=mode) as (peer, handle),
        Endpoint(**words(mode)) as endpoint,
        endpoint.connect(handle, timeout_s=PATIENCE_S) as first,
    ):
        alive(first)
        here, there = held(), held(peer.pid)
        for number in range(DIALS):
            with endpoint.connect(handle, timeout_s=PATIENCE_S) as connection:
                if number % 50 == 0:
                    alive(connection, number)
                    assert is_local(connection)
                del connection
        returns_to(here)
        returns_to(there, peer.pid)
        alive(first)


@pytest.mark.parametrize("mode", MODES)
def test_close__messages_that_were_sent_can_be_received(mode: str) -> None:
    sizes = SIZES * 3
    with (
        served("sends_and_closes", json.dumps(sizes), mode=mode) as (peer, handle),
        dialled(handle, mode) as connection,
    ):
        assert line(peer) == "posted"
        go_on(peer)
        done, outcomes = json.loads(line(peer))
        # All fit into the ring, which this process holds.
        assert all(done)
        assert set(outcomes) == {"ok"}
        for number, size in enumerate(sizes):
            data = connection.recv(5000, timeout_s=PATIENCE_S)
            assert data == message(size, number).tobytes()
        with pytest.raises(ConnectionClosedError):
            connection.recv(5000, timeout_s=PATIENCE_S)
        with pytest.raises(ConnectionClosedError):
            connection.send(b"late", timeout_s=PATIENCE_S)


@pytest.mark.parametrize("mode", MODES)
def test_close__a_long_message_that_was_not_received_counts_as_cancelled(mode: str) -> None:
    sizes = [100_000, 50, 2 * RING_BYTES, 10, 70_000]
    with (
        served("sends_and_closes", json.dumps(sizes), mode=mode) as (peer, handle),
        dialled(handle, mode) as connection,
    ):
        assert line(peer) == "posted"
        memory = [np.zeros(size, np.uint8) for size in sizes]
        first = connection.irecv_into(memory[0])
        assert first.wait(PATIENCE_S) == sizes[0]
        go_on(peer)
        _, outcomes = json.loads(line(peer))
        arrived = ["ok"]
        for one in memory[1:]:
            try:
                connection.recv_into(one, timeout_s=PATIENCE_S)
                arrived.append("ok")
            except WeftError as error:
                arrived.append(error.status)
        count = arrived.count("ok")
        assert arrived == ["ok"] * count + ["connection_closed"] * (len(sizes) - count)
        assert outcomes[:count] == ["ok"] * count
        assert outcomes[2] == outcomes[4] == OperationCancelledError.status
        for number in range(count):
            assert np.array_equal(memory[number], message(sizes[number], number))


@pytest.mark.parametrize("mode", MODES)
def test_close__by_a_peer_that_received_fails_only_the_rest(mode: str) -> None:
    with (
        served("receives_and_closes", "3", mode=mode) as (peer, handle),
        dialled(handle, mode) as connection,
    ):
        sends = [connection.isend(message(200_000, number)) for number in range(9)]
        for one in sends[:3]:
            one.wait(PATIENCE_S)
        go_on(peer)
        assert line(peer) == "closed"
        with pytest.raises(ConnectionClosedError):
            sends[-1].wait(PATIENCE_S)
        for one in sends[:3]:
            assert one.wait(0) == 200_000
        with pytest.raises(ConnectionClosedError):
            connection.recv(10, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("mode", MODES)
def test_close__by_this_end_gives_each_buffer_back(mode: str) -> None:
    with pair(local=mode) as (here, there):
        memory = np.zeros(8 << 20, np.uint8)
        receive = there.irecv_into(memory)
        requests = [here.isend(message(8 << 20, number)) for number in range(4)]
        receive.wait(PATIENCE_S)
        late = there.irecv_into(memory)
        there.close()
        kept = memory.copy()
        with pytest.raises((OperationCancelledError, ConnectionClosedError)):
            late.wait(PATIENCE_S) if not late.done else there.check()
        with pytest.raises(ConnectionClosedError):
            requests[-1].wait(PATIENCE_S)
        assert np.array_equal(memory, kept)


@pytest.mark.parametrize("mode", MODES)
def test_unasked__messages_arrive_although_no_caller_waits(mode: str) -> None:
    with (
        served("posts", str(UNASKED), mode=mode) as (peer, handle),
        dialled(handle, mode) as connection,
    ):
        receives, sends, memory = post_all(connection, UNASKED)
        until(lambda: moved(connection, UNASKED), "messages do not move by themselves")
        assert lines(peer, 1) == ["right"]
        for number, one in enumerate(memory):
            assert receives[number].wait(PATIENCE_S) == len(one)
            assert np.array_equal(one, message(len(one), number))
        for request in sends:
            request.wait(PATIENCE_S)
