"""Tests a flood of processes at the Unix socket that want nothing: genuine peers are served.

They get shared memory, or the network where the flood has all places, and no descriptor is lost.
"""

import itertools
import os
import resource
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.api.support import PATIENCE_S, Log
from tests.local.support import agree, held, is_local, returns_to, served, words
from tests.local.test_proposals import TOKEN, met, propose, usable
from tests.waiting import until
from transport import Connection, Endpoint
from transport.endpoint.endpoint import Listener

GUESTS_MAX = 256  # native/local/host.cc, kGuestsMax
FLOOD = GUESTS_MAX + 100
DESCRIPTORS = 4096
TOKENS = itertools.count()
SETTINGS: dict[str, Any] = words("auto") | {"handshake_timeout_ns": "1s"}


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = max(soft, min(DESCRIPTORS, hard))
    if enough < DESCRIPTORS:
        pytest.skip(f"at most {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def name_at(port: int) -> bytes:
    """The name of the Unix socket of the process that listens at a port."""
    with met(port) as (_, local):
        name = local.getpeername()
    assert isinstance(name, bytes)
    return name


def guest(name: bytes) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(PATIENCE_S)
    made.connect(name)
    return made


def token() -> bytes:
    """One that no open frame names."""
    return next(TOKENS).to_bytes(len(TOKEN))


@contextmanager
def dialled(peer: Endpoint, listener: Listener) -> Iterator[Connection]:
    """A genuine peer's connection, which works."""
    with (
        peer.connect(listener.handle, timeout_s=PATIENCE_S) as here,
        listener.accept(timeout_s=PATIENCE_S) as there,
    ):
        here.isend(b"genuine")
        assert there.recv(100, timeout_s=PATIENCE_S) == b"genuine"
        yield here


def is_dropped(one: socket.socket) -> bool:
    """Whether the listener has closed its end."""
    one.settimeout(PATIENCE_S)
    return one.recv(1) == b""


def test_guests__that_propose_nothing_keep_no_peer_from_memory() -> None:
    with (
        Endpoint(**SETTINGS) as endpoint,
        Endpoint(**words("auto")) as peer,
        endpoint.listen(open=True) as listener,
        ExitStack() as stack,
        dialled(peer, listener) as first,
    ):
        assert is_local(first)
        before = held()
        guests = [stack.enter_context(guest(name_at(listener.port))) for _ in range(FLOOD)]
        for _ in range(3):
            with dialled(peer, listener) as connection:
                assert is_local(connection)
        assert all(map(is_dropped, guests))
        stack.close()
        returns_to(before)


def test_guests__that_propose_for_nothing_hold_memory_back_for_a_while_only() -> None:
    short = {"WEFT_HANDSHAKE_TIMEOUT_NS": "1s", "WEFT_LOG_LEVEL": "info"}
    with (
        served("exchanges", **short) as (there, handle),
        Endpoint(**words("auto")) as peer,
        peer.connect(handle, timeout_s=PATIENCE_S) as first,
        ExitStack() as stack,
    ):
        agree(first, [10], [10])
        assert is_local(first)
        before = held(there.pid)
        name = unix_name_of(there.pid)
        guests = [stack.enter_context(guest(name)) for _ in range(GUESTS_MAX)]
        for one in guests:
            propose(one, token(), [usable()])
        with peer.connect(handle, timeout_s=PATIENCE_S) as connection:
            agree(connection, [10], [10])
            if not is_local(connection):  # the flood was in time
                said = Log(there).take("messages go over the network")
                assert "256 other processes have proposed memory" in said
        assert all(map(is_dropped, guests))
        returns_to(before, there.pid)
        with peer.connect(handle, timeout_s=PATIENCE_S) as connection:
            agree(connection, [10], [10])
            assert is_local(connection)


def unix_name_of(pid: int) -> bytes:
    """The name of the Unix socket at which a process meets its peers."""
    inodes = set()
    for one in os.listdir(f"/proc/{pid}/fd"):
        inodes.add(os.readlink(f"/proc/{pid}/fd/{one}").removeprefix("socket:[").removesuffix("]"))
    with open("/proc/net/unix") as sockets:
        rows = [row.split() for row in sockets]
    (name,) = {row[7] for row in rows if len(row) > 7 and row[6] in inodes and "@weft" in row[7]}
    return b"\0" + name[1:].encode()


def test_guests__that_come_and_go_all_the_time_keep_nobody_out() -> None:
    with (
        Endpoint(**SETTINGS) as endpoint,
        Endpoint(**words("auto")) as peer,
        endpoint.listen(open=True) as listener,
        dialled(peer, listener) as first,
    ):
        assert is_local(first)
        before = held()
        name = name_at(listener.port)
        ended = threading.Event()
        count = itertools.count()
        errors: list[BaseException] = []

        def flood() -> None:
            kept: deque[socket.socket] = deque()
            try:
                while not ended.is_set():
                    kept.append(guest(name))
                    if next(count) % 3 == 0:
                        propose(kept[-1], token(), [usable()])
                    if len(kept) > 2 * GUESTS_MAX:
                        kept.popleft().close()
                    ended.wait(0.0002)
            except OSError as error:
                errors.append(error)
            for one in kept:
                one.close()

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            until(lambda: next(count) > FLOOD, "the flood does not begin")
            for _ in range(20):
                with dialled(peer, listener):
                    pass
        finally:
            ended.set()
            thread.join(PATIENCE_S)
        assert not errors or all(isinstance(error, BrokenPipeError) for error in errors)
        returns_to(before)
        with dialled(peer, listener) as connection:
            assert is_local(connection)
