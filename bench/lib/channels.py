"""Gives all contenders the same message interface: weft, TCP with any congestion control, MPTCP."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from bench.lib.placement import Placement
from transport import Connection, Endpoint, Listener
from transport.endpoint.knobs import merged

IPPROTO_MPTCP = 262
TOTAL_RETRANS_OFFSET = 100  # byte offset of tcpi_total_retrans in struct tcp_info
DIRECT_BYTES = 16 << 10  # messages up to this size fit a socket buffer, so a send hardly blocks
PATIENCE_S = 60.0
DIAL_S = 20.0


class Waitable(Protocol):
    """A send or receive in progress."""

    def wait(self, timeout_s: float | None = None) -> int: ...


class Channel(Protocol):
    """Messages to and from one peer, each direction in order."""

    def isend(self, buf: Any) -> Waitable: ...
    def irecv_into(self, buf: Any) -> Waitable: ...
    def finish(self, messages: int) -> None:
        """Sends empty messages that complete at least the next `messages` receives of the peer."""

    def facts(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class Station(Protocol):
    """Opens and accepts channels of one transport, in one process."""

    @property
    def address(self) -> Any: ...
    def connect(self, address: Any) -> Channel: ...
    def accept(self) -> Channel: ...
    def close(self) -> None: ...


class WeftChannel:
    """A channel over a weft connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.isend = connection.isend
        self.irecv_into = connection.irecv_into

    def finish(self, messages: int) -> None:
        for handle in [self._connection.isend(b"") for _ in range(messages)]:
            handle.wait(PATIENCE_S)

    def facts(self) -> dict[str, int]:
        counters = self._connection.counters()
        return {
            "lost_segments": counters.segments_lost,
            "retransmitted_segments": counters.segments_resent,
        }

    def path_rtts_ns(self) -> list[int]:
        """The smoothed RTTs of the measured paths."""
        return [one.rtt_ns for one in self._connection.counters().paths if one.rtt_ns > 0]

    def close(self) -> None:
        self._connection.close()


class WeftStation:
    """An endpoint of weft and its listener."""

    def __init__(self, place: Placement, **knobs: Any) -> None:
        settings = {"interfaces": place.interfaces, **knobs}
        self._endpoint = Endpoint(**settings)
        self._listener: Listener = self._endpoint.listen()

    @property
    def address(self) -> bytes:
        return self._listener.handle

    def connect(self, address: bytes) -> WeftChannel:
        return WeftChannel(self._endpoint.connect(address, timeout_s=DIAL_S))

    def accept(self) -> WeftChannel:
        return WeftChannel(self._listener.accept(timeout_s=DIAL_S))

    def close(self) -> None:
        self._endpoint.close()


class _Done:
    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def wait(self, timeout_s: float | None = None) -> int:
        return self._nbytes


class _Promise:
    def __init__(self, future: Future[int]) -> None:
        self._future = future

    def wait(self, timeout_s: float | None = None) -> int:
        return self._future.result(timeout_s)


class _Receive:
    """A receive that wait() executes in the caller's thread, after all earlier receives."""

    def __init__(self, channel: TcpChannel, view: memoryview) -> None:
        self._channel, self.view, self.nbytes = channel, view, -1

    def wait(self, timeout_s: float | None = None) -> int:
        self._channel.receive_until(self)
        return self.nbytes


class TcpChannel:
    """Messages over a byte stream, without a header: both ends know the size of each message.

    With `threads`, one thread per direction moves large messages in the background, as
    collectives need it. Without it, the calling thread moves them, which costs the least.
    """

    def __init__(self, stream: socket.socket, *, threads: bool) -> None:
        self._stream = stream
        self._pending: deque[_Receive] = deque()
        self._pools = [ThreadPoolExecutor(1) for _ in range(2 if threads else 0)]
        # The timeout is a socket option, because Python's own timeout would cost a poll() per call.
        stream.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            stream.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(PATIENCE_S), 0))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def isend(self, buf: Any) -> Waitable:
        view = memoryview(buf).cast("B")
        if self._pools and view.nbytes > DIRECT_BYTES:
            return _Promise(self._pools[0].submit(self._send, view))
        return _Done(self._send(view))

    def irecv_into(self, buf: Any) -> Waitable:
        view = memoryview(buf).cast("B")
        if self._pools and view.nbytes > DIRECT_BYTES:
            return _Promise(self._pools[1].submit(self._take, view))
        made = _Receive(self, view)
        self._pending.append(made)
        return made

    def receive_until(self, wanted: _Receive) -> None:
        while wanted.nbytes < 0:
            one = self._pending.popleft()
            one.nbytes = self._take(one.view)

    def finish(self, messages: int) -> None:
        self._stream.shutdown(socket.SHUT_WR)

    def facts(self) -> dict[str, int]:
        if self._stream.proto == IPPROTO_MPTCP:
            return {}  # MPTCP has no counter of the whole connection, only of subflows
        info = self._stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return {"retransmitted_segments": struct.unpack_from("I", info, TOTAL_RETRANS_OFFSET)[0]}

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        self._stream.close()

    def _send(self, view: memoryview) -> int:
        self._stream.sendall(view)
        return view.nbytes

    def _take(self, view: memoryview) -> int:
        taken = 0
        while taken < view.nbytes:
            count = self._stream.recv_into(view[taken:])
            if count == 0:
                if taken:
                    raise ConnectionError("the stream ended inside a message")
                return 0
            taken += count
        return taken


class TcpStation:
    """A listening TCP socket; `congestion` is the kernel's name of a congestion control."""

    def __init__(
        self, place: Placement, *, congestion: str, protocol: int = 0, threads: bool = False
    ) -> None:
        self._congestion, self._protocol, self._threads = congestion, protocol, threads
        self._family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
        self._server = self._socket()
        self._server.bind((place.address, 0))
        self._server.listen(4_096)
        self._server.settimeout(DIAL_S)

    @property
    def address(self) -> Any:
        return self._server.getsockname()

    def connect(self, address: Any) -> TcpChannel:
        stream = self._socket()
        stream.settimeout(DIAL_S)
        stream.connect(address)
        return TcpChannel(stream, threads=self._threads)

    def accept(self) -> TcpChannel:
        return TcpChannel(self._server.accept()[0], threads=self._threads)

    def close(self) -> None:
        self._server.close()

    def _socket(self) -> socket.socket:
        made = socket.socket(self._family, socket.SOCK_STREAM, self._protocol)
        if self._congestion:
            # Accepted sockets inherit the listener's congestion control.
            name = self._congestion.encode()
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
        return made


def knobs_of(words: Sequence[str]) -> dict[str, str]:
    """Arguments of an endpoint from text such as `window_policy=nscc` or `fault=loss=0.01`."""
    pairs = (word.partition("=") for word in words)
    return merged(*({field: value} for field, _, value in pairs))


def station(kind: str, place: Placement, *, threads: bool = False) -> Station:
    """Opens a station: `weft`, `weft/KNOB=VALUE`, `tcp-CONTROL`, or `mptcp`."""
    name, *knobs = kind.split("/")
    if name == "weft":
        return WeftStation(place, **knobs_of(knobs))
    name, _, congestion = kind.partition("-")
    protocol = IPPROTO_MPTCP if name == "mptcp" else 0
    return TcpStation(place, congestion=congestion, protocol=protocol, threads=threads)


class Mesh:
    """The channels of one process, which accepts some and at the same time connects others."""

    def __init__(self) -> None:
        self.incoming: dict[int, Channel] = {}
        self.outgoing: dict[int, Channel] = {}
        self._accepting: list[threading.Thread] = []
        self._errors: list[Exception] = []

    def expect(self, where: Station, count: int) -> None:
        """Accepts `count` channels in the background; a channel's first message is its number."""
        thread = threading.Thread(target=self._accept, args=(where, count), daemon=True)
        thread.start()
        self._accepting.append(thread)

    def dial(self, where: Station, address: Any, number: int) -> None:
        channel = where.connect(address)
        channel.isend(number.to_bytes(8, "little")).wait(DIAL_S)
        self.outgoing[number] = channel

    def ready(self) -> None:
        """Waits until all expected peers have connected."""
        until = time.monotonic() + DIAL_S
        for thread in self._accepting:
            thread.join(max(until - time.monotonic(), 0.0))
            if thread.is_alive():
                raise TimeoutError(f"a peer did not connect within {DIAL_S:.0f} s")
        if self._errors:
            raise self._errors[0]

    def close(self) -> None:
        for channel in (*self.outgoing.values(), *self.incoming.values()):
            channel.close()

    def _accept(self, where: Station, count: int) -> None:
        try:
            for _ in range(count):
                channel = where.accept()
                name = bytearray(8)
                channel.irecv_into(name).wait(DIAL_S)
                self.incoming[int.from_bytes(name, "little")] = channel
        except Exception as error:  # ready() raises the error
            self._errors.append(error)


def raise_descriptor_limit() -> int:
    """Raises the descriptor limit to the hard limit; returns it."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def rss_bytes() -> int:
    """Resident memory of this process, in bytes."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
