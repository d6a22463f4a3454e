"""Tests proposals of memory that no peer makes: messages go over the network, nothing is kept.

The dialler is written by hand: it sends control frames and meets the listener at its Unix socket.
"""

import array
import fcntl
import itertools
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.api import frames
from tests.api.support import PATIENCE_S
from tests.local import hostile
from tests.local.support import held, is_local, mappings, returns_to, words
from tests.waiting import until
from transport import Endpoint
from transport.endpoint.endpoint import Listener

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
MAGIC = 0x33304C5446455721.to_bytes(8, "little")  # native/local/segment.cc
TOKEN = b"sixteen bytes..."
FEW = 12
NUMBERS = itertools.count(1000)


def memory(size_bytes: int, seals: int) -> int:
    """A descriptor of memory of its own, which is full of zeros."""
    descriptor = os.memfd_create("weft-local", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size_bytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def usable() -> int:
    """A descriptor of memory as a peer makes it."""
    made = memory(WHOLE, SEALS)
    os.pwrite(made, MAGIC, 0)
    return made


def pipe() -> int:
    read, write = os.pipe()
    os.close(write)
    return read


WHOLE = -(-hostile.WHOLE_BYTES // 128) * 128
PROPOSALS: dict[str, Callable[[], list[int]]] = {
    "nothing": list,
    "a pipe": lambda: [pipe()],
    "unsealed": lambda: [memory(WHOLE, 0)],
    "may shrink": lambda: [memory(WHOLE, fcntl.F_SEAL_GROW)],
    "too small": lambda: [memory(WHOLE - 4096, SEALS)],
    "empty": lambda: [memory(0, SEALS)],
    "too large": lambda: [memory(WHOLE + 4096, SEALS)],
    "read-only": lambda: [memory(WHOLE, SEALS | fcntl.F_SEAL_WRITE)],
    "of another layout": lambda: [memory(WHOLE, SEALS)],
    "two": lambda: [memory(WHOLE, SEALS), memory(WHOLE, SEALS)],
    "many": lambda: [memory(4096, 0) for _ in range(20)],
}


def unix_name(hello_reply: bytes) -> bytes:
    """The last text of a hello reply: the name of the Unix socket."""
    size = int.from_bytes(hello_reply[-34:-32], "little")
    assert size == 32, "the reply has no name of a Unix socket"
    return hello_reply[-32:]


@contextmanager
def met(port: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A control socket with a session, and a socket at which the listener takes memory."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as control,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as local,
    ):
        number = next(NUMBERS)
        control.sendall(frames.hello(node=number, session=number))
        ((kind, body),) = frames.read_frames(control, 1)
        assert kind == frames.HELLO_REPLY
        local.connect(b"\0" + unix_name(body))
        yield control, local


def open_with(token: bytes) -> bytes:
    """An open frame that proposes memory."""
    body = frames.open_frame(1)[frames.HEADER.size :]
    return frames.frame(frames.OPEN, body[:-2] + len(token).to_bytes(2, "little") + token)


def propose(local: socket.socket, token: bytes, descriptors: list[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    local.sendmsg([token], rights if descriptors else [])
    for one in descriptors:
        os.close(one)


def answered(control: socket.socket) -> bytes:
    """What an open reply says of the proposed memory."""
    ((kind, body),) = frames.read_frames(control, 1)
    assert kind == frames.OPEN_REPLY
    return body[-len(TOKEN) :] if body.endswith(TOKEN) else b""


def exchanged(peer: Endpoint, listener: Listener) -> None:
    """Asserts that a genuine peer's messages pass through shared memory."""
    with (
        peer.connect(listener.handle, timeout_s=PATIENCE_S) as here,
        listener.accept(timeout_s=PATIENCE_S) as there,
    ):
        here.isend(b"genuine")
        assert there.recv(100, timeout_s=PATIENCE_S) == b"genuine"
        assert is_local(here)


@pytest.mark.parametrize("name", PROPOSALS)
def test_proposal__of_unusable_memory_is_not_kept(name: str) -> None:
    with (
        Endpoint(**words("auto"), handshake_timeout_ns="1s") as endpoint,
        Endpoint(**words("auto")) as peer,
        endpoint.listen(open=True) as listener,
    ):
        exchanged(peer, listener)
        until(lambda: mappings() == 0, "a connection's memory is kept")
        before = held()
        for _ in range(FEW):
            with met(listener.port) as (control, local):
                propose(local, TOKEN, PROPOSALS[name]())
                control.sendall(open_with(TOKEN))
                assert answered(control) == b""
                assert mappings() == 0
        exchanged(peer, listener)
        returns_to(before)


@pytest.mark.parametrize("named", [TOKEN, TOKEN[::-1]])
def test_proposal__of_usable_memory_is_taken_if_the_open_frame_names_it(named: bytes) -> None:
    """The frames and the memory of these tests are what a peer sends, but for what they spoil."""
    with (
        Endpoint(**words("auto")) as endpoint,
        endpoint.listen(open=True) as listener,
        met(listener.port) as (control, local),
    ):
        propose(local, TOKEN, [usable()])
        control.sendall(open_with(named))
        assert answered(control) == (TOKEN if named == TOKEN else b"")
        assert mappings() == (named == TOKEN)


@pytest.mark.parametrize("sends", [False, True])
def test_proposal__that_no_open_frame_names_is_dropped_in_time(sends: bool) -> None:
    with (
        Endpoint(**words("auto"), handshake_timeout_ns="1s") as endpoint,
        endpoint.listen(open=True) as listener,
        met(listener.port) as (_, idle),
        met(listener.port) as (control, local),
    ):
        if sends:
            propose(idle, TOKEN[::-1], [memory(WHOLE, SEALS)])
        propose(local, TOKEN, [pipe()])
        control.sendall(open_with(TOKEN))
        assert answered(control) == b""  # by then the listener knows both processes
        idle.settimeout(PATIENCE_S)
        assert idle.recv(1) == b"", "the listener keeps a socket although nothing is to come"
