"""Tests peers that stop, die, fork and come back: the other end's errors, and when they come."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.api import frames
from tests.api.support import LOCAL, PATIENCE_S, Log, child, content, line, pair, running
from tests.stopping import stopped
from tests.waiting import until
from transport import Connection, Endpoint, KnobValue
from transport.endpoint.knobs import merged
from transport.errors import (
    ConnectionLostError,
    PeerDeadError,
    PeerSilentError,
    PeerStalledError,
    RefusedError,
    TimedOutError,
    WeftError,
)

SHORT: dict[str, KnobValue] = {"peer_timeout": {"silence": "1s"}}


def echoed(connection: Connection, size_bytes: int, seed: int) -> bool:
    """Whether one message comes back unchanged from the `echo` child."""
    data = content(size_bytes, seed)
    connection.send(data, timeout_s=PATIENCE_S)
    return connection.recv(size_bytes, timeout_s=PATIENCE_S) == data


def test_stall__a_stopped_peer_is_waited_for() -> None:
    with running(child("echo")) as peer, Endpoint(**LOCAL, **SHORT) as endpoint:
        connection = endpoint.connect(bytes.fromhex(line(peer)), timeout_s=PATIENCE_S)
        assert echoed(connection, 100_000, 1)
        data = content(3_000_000, 2)
        with stopped(peer.pid):
            send = connection.isend(data)
            receive = connection.irecv_into(back := bytearray(len(data)))
            time.sleep(4.0)  # four times the silence that would end a connection
            until(lambda: endpoint.counters().peers_stalled == 1, "the peer is not stalled")
            assert not send.done
            connection.check()
        send.wait(PATIENCE_S)
        receive.wait(PATIENCE_S)
        assert bytes(back) == data
        assert echoed(connection, 1000, 3)


def test_stall__the_stopped_one_does_not_charge_its_pause_to_the_peer() -> None:
    with running(child("echo", WEFT_PEER_TIMEOUT="silence=1s")) as peer:
        handle = bytes.fromhex(line(peer))
        with Endpoint(**LOCAL, **SHORT) as endpoint:
            connection = endpoint.connect(handle, timeout_s=PATIENCE_S)
            assert echoed(connection, 1000, 1)  # then the child waits in its next receive
            for seed in range(2):
                with stopped(peer.pid):
                    time.sleep(2.5)  # longer than either end's peer_timeout
                assert echoed(connection, 2_000_000, seed)


def test_stall__the_one_that_was_stopped_reads_every_greeting_that_waits() -> None:
    """A process reads 100 hellos after a stop that is longer than its handshake timeout."""
    with running(child("greets", WEFT_HANDSHAKE_TIMEOUT_NS="4000000000")) as peer:
        port = int(line(peer))
        sockets = [
            socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) for _ in range(100)
        ]
        time.sleep(0.3)  # the sockets are accepted, and their handshake timeout runs
        with stopped(peer.pid):
            for index, one in enumerate(sockets):
                one.sendall(frames.hello(node=1000 + index, session=1000 + index))
            time.sleep(5.0)  # longer than the handshake timeout
        for one in sockets:
            assert frames.read_frames(one, 1)
            one.close()


def test_stall__ends_within_the_knob_where_one_is_set() -> None:
    knobs = merged(SHORT, {"peer_timeout": {"stall": "3s"}})
    with running(child("silent")) as peer, Endpoint(**LOCAL, **knobs) as endpoint:
        connection = endpoint.connect(bytes.fromhex(line(peer)), timeout_s=PATIENCE_S)
        assert line(peer) == "accepted"
        with stopped(peer.pid), pytest.raises(PeerStalledError, match="WEFT_PEER_TIMEOUT=stall"):
            connection.send(bytes(1 << 20), timeout_s=PATIENCE_S)
        # The stopped process reports its own stop, not a stall of its peer.
        Log(peer).take("this process was stopped for longer than")


def test_stall__connecting_to_a_stopped_process_waits_for_it() -> None:
    knobs = {"handshake_timeout_ns": 200_000_000}
    with running(child("echo")) as peer, Endpoint(**LOCAL, **knobs) as endpoint:
        handle = bytes.fromhex(line(peer))
        made: list[Connection] = []
        with stopped(peer.pid):
            dialling = threading.Thread(
                target=lambda: made.append(endpoint.connect(handle, timeout_s=PATIENCE_S))
            )
            dialling.start()
            dialling.join(1.5)  # time in which it may not end
            assert dialling.is_alive()
        dialling.join(PATIENCE_S)
        assert echoed(made[0], 1000, 1)


def test_stall__the_one_that_was_stopped_loses_none_of_its_dials() -> None:
    """No dial fails if the dialling process is stopped for longer than the handshake timeout.

    200 handshakes at once take much less than the timeout of 4 s, also beside busy neighbours.
    """
    with (
        Endpoint(**LOCAL, handshake_timeout_ns=4_000_000_000) as endpoint,
        endpoint.listen() as listener,
    ):

        def serve(connection: Connection) -> None:
            with connection, contextlib.suppress(WeftError):
                connection.send(connection.recv(4))
                connection.recv(4)  # returns when the other end closes

        def accept() -> None:
            with contextlib.suppress(WeftError):
                for connection in listener:
                    threading.Thread(target=serve, args=[connection]).start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        handle = listener.handle.hex()
        dialler = child("dials_at_once", handle, WEFT_HANDSHAKE_TIMEOUT_NS="4000000000")
        with running(dialler) as peer:
            assert line(peer) == "dialling"
            for _ in range(2):
                time.sleep(0.05)  # so that other dials are half done than at the last stop
                with stopped(peer.pid):
                    time.sleep(5.0)  # longer than the handshake timeout
            assert line(peer) == "0"
        listener.close()
        accepting.join(PATIENCE_S)


def test_redial__after_a_stall_verdict_meets_the_same_process_again() -> None:
    """A stall verdict removes all state of the peer, so that the peer can connect again."""
    knobs = merged(SHORT, {"peer_timeout": {"stall": "3s"}})
    with (
        running(child("echoes")) as peer,
        running(child("echoes")) as other,
        Endpoint(**LOCAL, **knobs) as endpoint,
    ):
        handle, healthy = bytes.fromhex(line(peer)), bytes.fromhex(line(other))
        beside = endpoint.connect(healthy, timeout_s=PATIENCE_S)
        first = endpoint.connect(handle, timeout_s=PATIENCE_S)
        assert echoed(first, 1000, 1)
        with stopped(peer.pid), pytest.raises(ConnectionLostError):
            first.send(bytes(1 << 20), timeout_s=PATIENCE_S)
        for seed in range(3):
            again = endpoint.connect(handle, timeout_s=PATIENCE_S)
            assert echoed(again, 100_000, seed)
        assert echoed(beside, 100_000, 9)
        peer.kill()
        with pytest.raises(PeerDeadError):
            again.recv(10, timeout_s=PATIENCE_S)
        assert echoed(beside, 100_000, 10)
        assert echoed(endpoint.connect(healthy, timeout_s=PATIENCE_S), 1000, 11)


def test_death__is_told_although_a_forked_child_lives_on() -> None:
    # With these knobs, only a proof of death ends a connection within the patience of the test.
    patient = {"peer_timeout": {"silence": "1h", "dead": "1h"}}
    with running(child("forking")) as peer, Endpoint(**LOCAL, **patient) as endpoint:
        connection = endpoint.connect(bytes.fromhex(line(peer)), timeout_s=PATIENCE_S)
        grandchild = int(line(peer))
        receive = connection.irecv_into(bytearray(10))
        try:
            peer.kill()
            with pytest.raises(PeerDeadError):
                receive.wait(PATIENCE_S)
            with pytest.raises(RefusedError):
                endpoint.connect("127.0.0.1", connection_port(connection), timeout_s=PATIENCE_S)
        finally:
            os.kill(grandchild, signal.SIGKILL)


def connection_port(connection: Connection) -> int:
    return int(connection.peer_address.rsplit(" ", 1)[1])


def test_death__what_was_sent_to_the_end_is_received_first(
    capfd: pytest.CaptureFixture[str],
) -> None:
    knobs = LOCAL | {"log_level": "info"}
    with running(child("sends_and_dies")) as peer, Endpoint(**knobs) as endpoint:
        connection = endpoint.connect(bytes.fromhex(line(peer)), timeout_s=PATIENCE_S)
        assert line(peer) == "sent"
        peer.kill()
        peer.wait(PATIENCE_S)
        until(lambda: "disconnected from" in capfd.readouterr().err, "the death is not noticed")
        assert connection.recv(100, timeout_s=PATIENCE_S) == b"first"
        assert connection.recv(100, timeout_s=PATIENCE_S) == b"second"
        with pytest.raises(PeerDeadError):
            connection.recv(100, timeout_s=PATIENCE_S)


def test_dials__by_the_hundred_at_once_all_succeed() -> None:
    many = 1000
    with Endpoint(**LOCAL) as left, Endpoint(**LOCAL) as right, right.listen() as listener:
        dials = [left._dial(listener.handle, None, 0) for _ in range(many)]
        made: list[Connection] = []
        accepted: list[Connection] = []
        for name, dial in dials:
            one: list[Connection] = []
            until(partial(left._reached, name, dial, one), "a dial hangs")
            made += one
        while len(accepted) < many:
            accepted.append(listener.accept(timeout_s=PATIENCE_S))
        for index, connection in enumerate(made):
            connection.isend(index.to_bytes(4, "little"))
        seen = {one.recv(4, timeout_s=PATIENCE_S) for one in accepted}
        assert seen == {index.to_bytes(4, "little") for index in range(many)}


def test_timeout__of_a_dial_that_is_abandoned_leaves_the_next_one_alone() -> None:
    with running(child("echoes")) as peer, Endpoint(**LOCAL) as endpoint:
        handle = bytes.fromhex(line(peer))
        with stopped(peer.pid), pytest.raises(TimedOutError):
            endpoint.connect(handle, timeout_s=0.5)
        assert echoed(endpoint.connect(handle, timeout_s=PATIENCE_S), 1000, 1)


def test_dials__that_are_given_up_leave_room_for_the_next() -> None:
    """Connects to a stopped peer time out; the peer still works when it runs again."""
    with running(child("echoes")) as peer, Endpoint(**LOCAL) as endpoint:
        handle = bytes.fromhex(line(peer))
        kept = endpoint.connect(handle, timeout_s=PATIENCE_S)
        with stopped(peer.pid):
            for _ in range(60):
                with pytest.raises(TimedOutError):
                    endpoint.connect(handle, timeout_s=0.02)
        assert echoed(endpoint.connect(handle, timeout_s=PATIENCE_S), 1000, 1)
        assert echoed(kept, 1000, 2)


def test_close__of_an_endpoint_while_others_dial_and_listen_is_told_to_them() -> None:
    for _ in range(5):
        endpoint = Endpoint(**LOCAL)
        told: list[Exception] = []

        def use(work: Callable[[], object], told: list[Exception] = told) -> None:
            while True:
                try:
                    work()
                except Exception as error:
                    told.append(error)
                    return

        works = [lambda e=endpoint: e._dial("127.0.0.1", 1, 0), lambda e=endpoint: e.listen()] * 2
        threads = [threading.Thread(target=use, args=[work]) for work in works]
        for thread in threads:
            thread.start()
        time.sleep(0.05)  # some dials and listens are under way; the end is told at any moment
        endpoint.close()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert len(told) == len(threads)


@pytest.mark.parametrize("deaf", ["dialler", "listener"])
def test_silence__of_the_network_one_way_is_told_to_both_ends(deaf: str) -> None:
    """If datagrams pass in one direction only, the end that gives up tells the other one."""
    knobs = LOCAL | SHORT | {"log_level": "error"}
    with (
        Endpoint(**knobs, fault={"loss": float(deaf == "dialler")}) as left,
        Endpoint(**knobs, fault={"loss": float(deaf == "listener")}) as right,
        right.listen() as listener,
    ):
        here = left.connect(listener.handle, timeout_s=PATIENCE_S)
        there = listener.accept(timeout_s=PATIENCE_S)
        receives = [one.irecv_into(bytearray(1 << 20)) for one in (here, there)]
        sends = [one.isend(bytes(1 << 20)) for one in (here, there)]
        for handle in (*receives, *sends):
            with pytest.raises(PeerSilentError):
                handle.wait(PATIENCE_S)
        # The first, failed connection does not block a second one, which fails in the same way.
        again = left.connect(listener.handle, timeout_s=PATIENCE_S)
        with pytest.raises(PeerSilentError):
            again.send(bytes(1 << 20), timeout_s=PATIENCE_S)


def test_close__is_told_at_once_and_is_no_death() -> None:
    with pair() as (here, there):
        receive = there.irecv_into(bytearray(10))
        here.close()
        with pytest.raises(ConnectionLostError) as caught:
            receive.wait(PATIENCE_S)
        assert not isinstance(caught.value, PeerDeadError)
