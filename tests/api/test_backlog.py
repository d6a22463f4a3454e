"""Tests the backlog: operations beyond the engines' rings are posted in order, up to a bound."""

import gc

import numpy as np
import pytest

from tests.waiting import until
from transport import Endpoint
from transport.errors import ConnectionClosedError, OperationCancelledError, WouldBlockError

from .support import LOCAL, PATIENCE_S, child, line, pair, running

POSTS = 10_000
RINGS = 128  # requests per direction that the engines take


def test_backlog__completes_while_its_program_sleeps() -> None:
    with (
        Endpoint(**LOCAL) as endpoint,
        endpoint.listen() as listener,
        running(child("posts_and_sleeps", listener.handle.hex(), str(POSTS))) as poster,
        listener.accept(timeout_s=PATIENCE_S) as connection,
    ):
        assert line(poster) == "posted"
        buffer = bytearray(64)
        for i in range(POSTS):
            assert connection.recv_into(buffer, timeout_s=PATIENCE_S) == i % 61
            assert bytes(buffer[: i % 61]) == bytes([i % 251]) * (i % 61)
        assert poster.stdin is not None
        poster.stdin.write("wake\n")
        poster.stdin.flush()
        assert line(poster) == f"done {POSTS}"


def test_backlog__receives_wait_for_room_as_well() -> None:
    with pair() as (here, there):
        buffers = [bytearray(8) for _ in range(1000)]
        handles = [here.irecv_into(buffer) for buffer in buffers]
        for i in range(len(buffers)):
            there.send(i.to_bytes(8, "little"), timeout_s=PATIENCE_S)
        for i, handle in enumerate(handles):
            assert handle.wait(PATIENCE_S) == 8
            assert int.from_bytes(buffers[i], "little") == i


def test_backlog__refuses_what_is_beyond_its_bound() -> None:
    with pair(posts_max=16) as (here, there):
        handles = [here.irecv_into(bytearray(8)) for _ in range(RINGS + 16)]
        with pytest.raises(WouldBlockError, match="WEFT_POSTS_MAX"):
            here.irecv_into(bytearray(8))
        for i in range(len(handles)):
            there.send(bytes([i % 256]) * 8, timeout_s=PATIENCE_S)
        assert [handle.wait(PATIENCE_S) for handle in handles] == [8] * len(handles)
        again = here.irecv_into(bytearray(8))
        there.send(b"at last.", timeout_s=PATIENCE_S)
        assert again.wait(PATIENCE_S) == 8


def test_backlog__ends_with_its_connection() -> None:
    with pair() as (here, there):
        handles = [here.irecv_into(bytearray(8)) for _ in range(RINGS + 50)]
        here.close()
        for handle in handles:
            with pytest.raises(OperationCancelledError):
                handle.wait(PATIENCE_S)
        with pytest.raises(ConnectionClosedError):
            there.recv(8, timeout_s=PATIENCE_S)


def test_backlog__ends_when_the_peer_goes() -> None:
    with pair() as (here, there):
        handles = [here.irecv_into(bytearray(8)) for _ in range(RINGS + 50)]
        there.close()
        for handle in handles:
            with pytest.raises(ConnectionClosedError):
                handle.wait(PATIENCE_S)


def test_backlog__withdraws_what_waits_and_the_connection_lives() -> None:
    with pair() as (here, there):
        handles = [here.irecv_into(bytearray(8)) for _ in range(RINGS + 3)]
        with pytest.raises(TimeoutError):
            here.recv_into(bytearray(8), timeout_s=0.05)
        for i in range(len(handles)):
            there.send(bytes([i % 256]) * 8, timeout_s=PATIENCE_S)
        assert [handle.wait(PATIENCE_S) for handle in handles] == [8] * len(handles)
        sent = here.isend(b"yes")
        assert there.recv(8, timeout_s=PATIENCE_S) == b"yes"
        assert sent.wait(PATIENCE_S) == 3


def test_backlog__pieces_are_filled_though_nobody_asks() -> None:
    with pair() as (here, there):
        pieces = [np.zeros(5, np.uint8), np.zeros(300, np.uint8), np.zeros(7, np.uint8)]
        sent = bytes(range(256)) + b"the end"
        handle = here.irecv_into(pieces)
        del handle
        gc.collect()
        there.send(sent, timeout_s=PATIENCE_S)
        until(lambda: bytes(np.concatenate(pieces))[: len(sent)] == sent, "pieces are missing")
        assert not any(np.concatenate(pieces)[len(sent) :])
