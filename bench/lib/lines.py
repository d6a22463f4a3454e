"""One way to move messages over weft, TCP and plain UDP, for benches that compare them."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any, Protocol

from bench.lib.common import Config
from transport import Connection, Endpoint

IN_FLIGHT = 16
WAIT_S = 60.0
SEGMENT_BYTES, SEGMENTS = 8_948, 7  # plain UDP sends trains of datagrams, each under 64 KiB
TRAIN_BYTES = SEGMENT_BYTES * SEGMENTS
UDP_SEGMENT, UDP_GRO = 103, 104
UDP_BUFFER_BYTES = 8 << 20
HEAD = struct.Struct("<q")
Buffer = Any


class Line(Protocol):
    """A channel of two processes: first for small messages, one at a time, then for a stream."""

    def send(self, data: Buffer) -> None: ...
    def receive(self, into: Buffer) -> None: ...
    def open_stream(self, message_bytes: int) -> None: ...
    def put(self, data: Buffer) -> None: ...
    def take(self) -> int: ...
    def end(self) -> None: ...


class WeftLine:
    """Messages of weft; a stream has IN_FLIGHT of them under way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent: deque[Any] = deque()
        self._posted: deque[tuple[Any, bytearray]] = deque()

    def send(self, data: Buffer) -> None:
        self._connection.isend(data)  # complete when the reply has arrived

    def receive(self, into: Buffer) -> None:
        self._connection.recv_into(into, timeout_s=WAIT_S)

    def open_stream(self, message_bytes: int) -> None:
        for _ in range(IN_FLIGHT - len(self._posted)):
            self._post(bytearray(message_bytes))

    def _post(self, room: bytearray) -> None:
        self._posted.append((self._connection.irecv_into(room), room))

    def put(self, data: Buffer) -> None:
        if len(self._sent) == IN_FLIGHT:
            self._sent.popleft().wait(timeout_s=WAIT_S)
        self._sent.append(self._connection.isend(data))

    def take(self) -> int:
        request, room = self._posted.popleft()
        got = int(request.wait(timeout_s=WAIT_S))
        if got:  # after the last message the peer may have closed the connection
            self._post(room)
        return got

    def end(self) -> None:
        self.put(b"")
        while self._sent:
            self._sent.popleft().wait(timeout_s=WAIT_S)


class TcpLine:
    """Messages over TCP, each with its size before it."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(WAIT_S)
        self._room = bytearray()

    def send(self, data: Buffer) -> None:
        self._stream.sendall(data)

    def receive(self, into: Buffer) -> None:
        rest = memoryview(into)
        while rest:
            count = self._stream.recv_into(rest)
            if count == 0:
                raise ConnectionError("the peer closed the connection")
            rest = rest[count:]

    def open_stream(self, message_bytes: int) -> None:
        self._room = bytearray(message_bytes)

    def put(self, data: Buffer) -> None:
        self._stream.sendall(HEAD.pack(len(data)))
        self._stream.sendall(data)

    def take(self) -> int:
        head = bytearray(HEAD.size)
        self.receive(head)
        (size,) = HEAD.unpack(head)
        self.receive(memoryview(self._room)[:size])
        return int(size)

    def end(self) -> None:
        self.put(b"")


class UdpLine:
    """Trains of datagrams (UDP_SEGMENT, UDP_GRO), which may get lost, as nothing paces them."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        stream.settimeout(WAIT_S)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            stream.setsockopt(socket.SOL_SOCKET, option, UDP_BUFFER_BYTES)
        self._room = bytearray(1 << 16)

    def send(self, data: Buffer) -> None:
        self._stream.send(data)

    def receive(self, into: Buffer) -> None:
        self._stream.recv_into(into)

    def open_stream(self, message_bytes: int) -> None:
        self._stream.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)

    def put(self, data: Buffer) -> None:
        cut = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("<H", SEGMENT_BYTES))]
        view = memoryview(data).cast("B")
        for at in range(0, len(view), TRAIN_BYTES):
            self._stream.sendmsg([view[at : at + TRAIN_BYTES]], cut)

    def take(self) -> int:
        return self._stream.recv_into(self._room)

    def end(self) -> None:
        # Empty datagrams end the stream. Some may get lost; the receiver may exit after the first.
        with suppress(ConnectionRefusedError):
            for _ in range(IN_FLIGHT):
                self._stream.send(b"")


def accepted(kind: str, knobs: Config, tell: Callable[[Any], None], stack: ExitStack) -> Line:
    """The line of the side that listens; tell() gets its address."""
    if kind == "weft":
        endpoint = stack.enter_context(Endpoint(**knobs))
        listener = stack.enter_context(endpoint.listen())
        tell(listener.handle)
        return WeftLine(stack.enter_context(listener.accept(timeout_s=30)))
    if kind == "TCP":
        with socket.create_server(("127.0.0.1", 0)) as server:
            tell(server.getsockname())
            return TcpLine(stack.enter_context(server.accept()[0]))
    stream = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    stream.bind(("127.0.0.1", 0))
    tell(stream.getsockname())
    stream.settimeout(30)
    stream.connect(stream.recvfrom(1)[1])
    return UdpLine(stream)


def connected(kind: str, knobs: Config, address: Any, stack: ExitStack) -> Line:
    """The line of the side that connects to `address`."""
    if kind == "weft":
        endpoint = stack.enter_context(Endpoint(**knobs))
        return WeftLine(stack.enter_context(endpoint.connect(address)))
    if kind == "TCP":
        return TcpLine(stack.enter_context(socket.create_connection(address)))
    stream = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    stream.connect(address)
    stream.send(b"x")
    return UdpLine(stream)
