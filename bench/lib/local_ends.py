"""Ends of a connection between two processes of one host, weft or TCP, for `bench local`.

Both kinds send from and receive into the caller's buffers, which are reused.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from bench.lib.common import Config
from bench.p2p import CONGESTION
from transport import Connection, Endpoint, Request

WAIT_S = 60.0
ONE = b"\1"
CALL_BYTES = 1 << 20  # of one call of TCP
BACKLOG = 4_096  # more than are opened: a SYN that finds the queue full is sent again after 1 s
FLIGHT_BYTES, FLIGHT_MIN, FLIGHT_MAX = 32 << 20, 4, 32  # messages of weft that are under way
# Linux's SO_SNDBUFFORCE and SO_RCVBUFFORCE, which Python does not name: as root, without a limit.
FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}


class End(Protocol):
    """One end. `rows`: the buffers of a stream's messages, used in turns."""

    def send(self, rows: Sequence[memoryview], count: int) -> None: ...
    def receive(self, rows: Sequence[memoryview], count: int) -> None: ...
    def exchange(self, data: Any, answer: Any) -> None:
        """Sends `data` and receives `answer`."""

    def meet(self) -> None:
        """Returns once both ends have called it, and nothing is under way between them."""

    def echo(self, room: memoryview, count: int) -> None:
        """Sends each of `count` messages back."""

    def network_bytes(self) -> int | None:
        """Bytes that this end has sent over network paths; None: not known."""


@dataclass(frozen=True)
class Kind:
    """A contender: weft with knobs, or a TCP socket. `buffer_bytes` 0: as the kernel chooses."""

    name: str
    knobs: Config | None = None
    spins: bool = False
    buffer_bytes: int = 0

    @property
    def is_local(self) -> bool:
        return self.knobs is not None and self.knobs["local"] != "off"


class WeftEnd:
    """Messages of weft. A wake-up of the caller serves half of those that are under way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, rows: Sequence[memoryview], count: int) -> None:
        self._stream(self._connection.isend, rows, count)

    def receive(self, rows: Sequence[memoryview], count: int) -> None:
        self._stream(self._connection.irecv_into, rows, count)

    def exchange(self, data: Any, answer: Any) -> None:
        request = self._connection.irecv_into(answer)
        self._connection.isend(data)
        request.wait(WAIT_S)

    def meet(self) -> None:
        both = [self._connection.irecv_into(bytearray(1)), self._connection.isend(ONE)]
        for request in both:
            request.wait(WAIT_S)

    def echo(self, room: memoryview, count: int) -> None:
        receive, send = self._connection.irecv_into, self._connection.isend
        for _ in range(count):
            receive(room).wait(WAIT_S)
            send(room)

    def network_bytes(self) -> int | None:
        return sum(path.bytes_sent for path in self._connection.counters().paths)

    def _stream(
        self, start: Callable[[Any], Request], rows: Sequence[memoryview], count: int
    ) -> None:
        flight = min(max(FLIGHT_BYTES // rows[0].nbytes, FLIGHT_MIN), FLIGHT_MAX)
        pending: deque[Request] = deque()
        for index in range(count):
            if len(pending) == flight:
                pending[flight // 2 - 1].wait(WAIT_S)
                for _ in range(flight // 2):
                    pending.popleft().wait(WAIT_S)
            pending.append(start(rows[index % len(rows)]))
        while pending:
            pending.popleft().wait(WAIT_S)


class TcpEnd:
    """A byte stream. With `spins` the receiver tries again at once instead of sleeping."""

    def __init__(self, stream: socket.socket, spins: bool) -> None:
        stream.settimeout(None)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = stream
        self._take = self._spin if spins else self._block

    def send(self, rows: Sequence[memoryview], count: int) -> None:
        for index in range(count):
            row = rows[index % len(rows)]
            for at in range(0, row.nbytes, CALL_BYTES):
                self._stream.sendall(row[at : at + CALL_BYTES])

    def receive(self, rows: Sequence[memoryview], count: int) -> None:
        for index in range(count):
            self._take(rows[index % len(rows)])

    def exchange(self, data: Any, answer: Any) -> None:
        self._stream.sendall(data)
        self._take(memoryview(answer))

    def meet(self) -> None:
        self.exchange(ONE, bytearray(1))

    def echo(self, room: memoryview, count: int) -> None:
        for _ in range(count):
            self._take(room)
            self._stream.sendall(room)

    def network_bytes(self) -> int | None:
        return None

    def _block(self, room: memoryview) -> None:
        while room:
            room = room[self._some(self._stream.recv_into(room, min(room.nbytes, CALL_BYTES))) :]

    def _spin(self, room: memoryview) -> None:
        while room:
            try:
                got = self._stream.recv_into(
                    room, min(room.nbytes, CALL_BYTES), socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                continue
            room = room[self._some(got) :]

    @staticmethod
    def _some(got: int) -> int:
        if got == 0:
            raise ConnectionError("the peer closed the connection")
        return got


class Server:
    """What accepts connections of a kind; `address` is for dial()."""

    def __init__(self, kind: Kind, stack: ExitStack) -> None:
        self._kind, self._stack = kind, stack
        self._listener: Any
        if kind.knobs is not None:
            endpoint = stack.enter_context(Endpoint(**kind.knobs))
            self._listener = stack.enter_context(endpoint.listen())
            self.address: Any = self._listener.handle
        else:
            self._listener = stack.enter_context(_tcp_socket(kind))
            self._listener.bind(("127.0.0.1", 0))
            self._listener.listen(BACKLOG)
            self._listener.settimeout(WAIT_S)
            self.address = self._listener.getsockname()

    def accept(self) -> End:
        if self._kind.knobs is not None:
            return WeftEnd(self._stack.enter_context(self._listener.accept(timeout_s=WAIT_S)))
        taken, _ = self._listener.accept()
        return TcpEnd(self._stack.enter_context(taken), self._kind.spins)


class Dialler:
    """What opens connections of a kind to the server at `address`."""

    def __init__(self, kind: Kind, address: Any, stack: ExitStack) -> None:
        self._kind, self._address, self._stack = kind, address, stack
        self._endpoint = (
            stack.enter_context(Endpoint(**kind.knobs)) if kind.knobs is not None else None
        )

    def dial(self) -> End:
        if self._endpoint is not None:
            made = self._endpoint.connect(self._address, timeout_s=WAIT_S)
            return WeftEnd(self._stack.enter_context(made))
        stream = self._stack.enter_context(_tcp_socket(self._kind))
        stream.connect(self._address)
        return TcpEnd(stream, self._kind.spins)


def _tcp_socket(kind: Kind) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION)
    if kind.buffer_bytes:
        for option, forced in FORCED.items():
            try:
                made.setsockopt(socket.SOL_SOCKET, forced, kind.buffer_bytes)
            except PermissionError:
                made.setsockopt(socket.SOL_SOCKET, option, kind.buffer_bytes)
    return made
