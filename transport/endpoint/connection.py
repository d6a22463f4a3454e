"""Connections, and sends and receives on them: blocking, with requests, or as coroutines."""

from __future__ import annotations

import asyncio
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from transport import native
from transport.endpoint.buffers import Buffer
from transport.endpoint.closing import AsyncCloses
from transport.endpoint.device import stream_handle
from transport.endpoint.memory import Memory, Part, part_of
from transport.endpoint.reactor import Reactor
from transport.endpoint.timeouts import deadline, patience
from transport.errors import (
    OK,
    TIMED_OUT,
    WOULD_BLOCK,
    ConnectionClosedError,
    InvalidArgumentError,
    TimedOutError,
    WeftError,
    WouldBlockError,
    error_for,
)
from transport.policies.choice import (
    Parameter,
    PolicyName,
    PolicyState,
    params_text,
    policy_text,
    state_of,
)

# Types of buffers that are always host memory; other objects may be arrays on a GPU.
_PLAIN = frozenset((bytes, bytearray, memoryview))


class Request:
    """A send or receive in progress.

    The buffer is kept alive until the operation is done, even if the request is dropped.
    """

    __slots__ = ("_connection", "_memory", "_name", "_request")

    def __init__(
        self, connection: Connection, name: str, request: native.Request | native.DeviceRequest
    ) -> None:
        # Keeps the connection open: it would close when garbage-collected.
        self._connection = connection
        self._memory: bytearray | None = None  # the buffer that irecv() allocated
        self._name = name
        self._request = request

    @property
    def done(self) -> bool:
        """True once the operation succeeded or failed."""
        return self._request.done

    @property
    def nbytes(self) -> int:
        """Bytes sent or received; 0 until done. May be less than a receive's buffer holds."""
        return self._request.nbytes if self._request.done else 0

    @property
    def data(self) -> bytes:
        """The message received by Connection.irecv().

        Raises WouldBlockError until done, and the operation's error if it failed. Raises
        InvalidArgumentError on requests of other calls, whose bytes are in the caller's buffer.
        """
        if self._memory is None:
            raise InvalidArgumentError("data: only requests that irecv() returns hold the message")
        if not self.done:
            raise WouldBlockError(f"{self._name}: not done; call wait() first")
        return bytes(memoryview(self._memory)[: self._result()])

    def wait(self, timeout_s: float | None = None) -> int:
        """Blocks until done and returns the bytes sent or received; raises the error if it failed.

        Raises TimedOutError after `timeout_s` seconds (None: no limit); the operation continues.
        """
        until = None if timeout_s is None else deadline(timeout_s)
        bytes_moved = self._request.outcome()
        if bytes_moved >= 0:
            return bytes_moved
        left_ns = -1 if until is None else int(max(until - time.monotonic(), 0.0) * 1e9)
        status = self._request.wait(left_ns)
        if status == TIMED_OUT:
            raise TimedOutError(f"{self._name}: not done within {timeout_s} s")
        if status != OK:
            raise error_for(status, self._name)
        return self._result()

    def wait_on(self, stream: object) -> None:
        """Orders later work on `stream` after this message; returns at once.

        Only for GPU memory. The stream continues even if the message fails: call wait() before
        relying on the bytes.
        """
        handle = stream_handle(stream)
        if not isinstance(self._request, native.DeviceRequest):
            raise InvalidArgumentError("stream: this message is in host memory; use wait() instead")
        status, error = self._request.wait_on(handle)
        if status != OK:
            raise error_for(status, "stream", error)

    def _result(self) -> int:
        if self._request.status != OK:
            text = getattr(self._request, "error", "")  # the GPU driver's message
            raise error_for(self._request.status, self._name, text)
        return self._request.nbytes


class _Names(NamedTuple):
    """A peer's address, and what errors of its messages begin with."""

    peer: str
    send: str
    receive: str


# Connections to the same peer share the texts, which are made once rather than for each message.
@lru_cache(maxsize=256)
def _names_of(peer: str) -> _Names:
    return _Names(peer, f"send to {peer}", f"receive from {peer}")


class Connection(AsyncCloses):
    """A reliable, ordered, bidirectional channel of messages to one peer.

    Messages match in order: the n-th send of one end fills the n-th receive of the other. A
    receive may be larger than its message; a send larger than its receive fails at both ends with
    MessageTooLongError.

    A buffer is an object with the buffer protocol (bytes, bytearray, memoryview, NumPy arrays),
    DLPack or `__cuda_array_interface__` (PyTorch, CuPy, JAX, Numba). It is contiguous, of any
    length from 0 bytes, in host or GPU memory. A list of buffers is one message; all of them lie
    in host memory, which costs a copy, or all on one GPU.

    Any operation may raise ConnectionClosedError, PeerDeadError, PeerSilentError,
    PeerStalledError, NoProgressError and OperationCancelledError; with GPU memory also
    DeviceMissingError and DeviceError.

    `stream`: the stream that an operation on GPU memory is ordered after, as a stream of CuPy,
    PyTorch, Numba or CUDA, or its handle. None: the stream that the array reports.
    """

    __slots__ = ("__weakref__", "_closed", "_names", "_native", "_owner", "_reactor", "_runtime")

    def __init__(
        self,
        connection: native.Connection,
        runtime: native.Runtime,
        reactor: Reactor,
        owner: Any,
    ) -> None:
        self._native = connection
        self._runtime = runtime
        self._reactor = reactor
        self._owner = owner  # kept alive: an endpoint that is destroyed closes its connections
        self._names = _names_of(connection.peer_address())
        self._closed = False

    # Asynchronous calls, which return a request.

    def isend(self, buf: Buffer, *, memory: Memory | None = None, stream: object = None) -> Request:
        """Starts a send and returns at once. `buf` must not change until it is done.

        Operations that the engines cannot take yet wait in the connection's backlog and are
        posted in order. Raises WouldBlockError if the backlog already holds posts_max operations.
        `memory`: the registration (Endpoint.register) that contains `buf`; the NIC then reads `buf`
        without a copy.
        """
        request = self._start_plain(buf, memory, stream, receive=False)
        if request is not None:
            return request
        return self._start(self._part(buf, False, memory, stream), receive=False)

    def irecv_into(
        self, buf: Buffer, *, memory: Memory | None = None, stream: object = None
    ) -> Request:
        """Starts a receive into the writable `buf` and returns at once. `memory`: as for isend."""
        request = self._start_plain(buf, memory, stream, receive=True)
        if request is not None:
            return request
        return self._start(self._part(buf, True, memory, stream), receive=True)

    def irecv(self, max_bytes: int) -> Request:
        """Starts a receive of at most `max_bytes` bytes; Request.data is the message once done."""
        memory = self._memory(max_bytes)
        request = self.irecv_into(memory)
        request._memory = memory
        return request

    # Blocking calls.

    def send(
        self,
        buf: Buffer,
        *,
        timeout_s: float | None = None,
        memory: Memory | None = None,
        stream: object = None,
    ) -> None:
        """Sends one message; returns when the peer has received all of it.

        After a timeout or Ctrl-C the message may still be delivered, and `buf` is read until then:
        do not change it. To learn when, use isend() and Request.wait().
        """
        deadline(timeout_s)  # refuses an invalid timeout before anything is sent
        self.isend(buf, memory=memory, stream=stream).wait(timeout_s)

    def recv_into(
        self,
        buf: Buffer,
        *,
        timeout_s: float | None = None,
        memory: Memory | None = None,
        stream: object = None,
    ) -> int:
        """Receives one message into the writable `buf` and returns its length in bytes.

        A timeout or Ctrl-C withdraws `buf`, so that nothing writes to it afterwards, which ends the
        connection. A message that arrives just then is returned, late. To wait in steps, use
        irecv_into() and Request.wait().
        """
        deadline(timeout_s)  # refuses an invalid timeout before anything is posted
        request = self._start_plain(buf, memory, stream, receive=True)
        if request is None:
            request = self._start(self._part(buf, True, memory, stream), receive=True)
        try:
            return request.wait(timeout_s)
        except BaseException as error:
            if self._arrived_late(request, error):
                return request._result()
            del buf, request  # the traceback keeps this frame alive: do not keep the buffer, too
            raise

    def recv(self, max_bytes: int, *, timeout_s: float | None = None) -> bytes:
        """Receives one message of at most `max_bytes` bytes.

        As with recv_into(), a timeout ends the connection.
        """
        memory = self._memory(max_bytes)
        count = self.recv_into(memory, timeout_s=timeout_s)
        return bytes(memoryview(memory)[:count])

    # Coroutines.

    async def asend(
        self,
        buf: Buffer,
        *,
        timeout_s: float | None = None,
        memory: Memory | None = None,
        stream: object = None,
    ) -> None:
        """Like send(), as a coroutine. The message may be delivered even after a timeout."""
        seconds = patience(timeout_s)
        request = self.isend(buf, memory=memory, stream=stream)
        await self._until(request, seconds)
        request._result()

    async def arecv_into(
        self,
        buf: Buffer,
        *,
        timeout_s: float | None = None,
        memory: Memory | None = None,
        stream: object = None,
    ) -> int:
        """Like recv_into(), as a coroutine.

        A timeout or cancellation withdraws `buf`, which ends the connection.
        """
        seconds = patience(timeout_s)
        request = self._start(self._part(buf, True, memory, stream), receive=True)
        try:
            await self._until(request, seconds)
        except BaseException as error:
            if self._arrived_late(request, error):
                return request._result()
            del buf, request  # the traceback keeps this frame alive: do not keep the buffer, too
            raise
        return request._result()

    async def arecv(self, max_bytes: int, *, timeout_s: float | None = None) -> bytes:
        """Like recv(), as a coroutine. A timeout or cancellation ends the connection."""
        memory = self._memory(max_bytes)
        count = await self.arecv_into(memory, timeout_s=timeout_s)
        return bytes(memoryview(memory)[:count])

    async def _until(self, request: Request, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._reactor.until(lambda: request.done)
        except TimeoutError as error:
            if isinstance(error, WeftError):
                raise
            raise TimedOutError(f"{request._name}: not done within {seconds} s") from None

    # State of the connection.

    @property
    def telemetry_page(self) -> Path | None:
        """The file with the live counters of the endpoint; None if WEFT_TELEMETRY is off."""
        path = self._runtime.telemetry_page()
        return Path(path) if path else None

    @property
    def peer_address(self) -> str:
        """The peer's address, as text."""
        return self._names.peer

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def check(self) -> None:
        """Raises the connection's error if it is closed or failed; otherwise does nothing."""
        status = ConnectionClosedError(self._gone) if self._closed else None
        if status is not None:
            raise status
        code = self._native.health()
        if code != OK:
            raise error_for(code, f"connection to {self._names.peer}")

    @property
    def _checked(self) -> native.Connection:
        self.check()
        return self._native

    def set_policy(self, family: str, policy: PolicyName, **params: Parameter) -> None:
        """Replaces this connection's policy of one family at once; nothing in flight is lost.

        The arguments are those of Endpoint.set_policy(). A path policy belongs to the peer, so it
        changes for every connection that shares this connection's paths. InvalidArgumentError if
        the messages of the connection pass through shared memory (WEFT_LOCAL).
        """
        text = policy_text(family, policy, params)
        status, error = self._checked.change_policy(family, text, False)
        if status != OK:
            raise error_for(status, f"set_policy {family}", error)

    def set_params(self, family: str, engine: int | None = None, /, **params: Parameter) -> None:
        """Changes parameters of this connection's policy; its state is kept.

        engine: changes them on this engine only (0, 1, ...); each engine has its own paths. Nothing
        changes if the connection has no flow on that engine.
        """
        only = -1 if engine is None else engine
        status, error = self._checked.change_policy(family, params_text(params), True, only)
        if status != OK:
            raise error_for(status, f"set_params {family}", error)

    @property
    def policies(self) -> dict[str, PolicyState]:
        """The policies of this connection, by family."""
        return {info.family: state_of(info) for info in self._checked.policies()}

    def counters(self) -> native.ConnectionCounters:
        """Bytes, segments, losses and retransmissions so far, and round-trip times by path.

        After close(): the last values.
        """
        return self._native.counters()

    def close(self) -> None:
        """Closes the connection and tells the peer; may be called more than once.

        Operations in progress fail with OperationCancelledError.
        """
        if self._closed:
            return
        self._closed = True
        self._native.close()
        self._reactor.poke()

    def __repr__(self) -> str:
        return f"<Connection {self._names.peer}{' closed' if self._closed else ''}>"

    @property
    def _gone(self) -> str:
        return f"the connection to {self._names.peer} is closed"

    @staticmethod
    def _memory(max_bytes: int) -> bytearray:
        if max_bytes < 0:
            raise InvalidArgumentError(f"max_bytes: must be 0 or more, not {max_bytes}")
        return bytearray(max_bytes)

    def _part(self, buf: Buffer, writable: bool, memory: Memory | None, stream: object) -> Part:
        if self._closed:
            raise ConnectionClosedError(self._gone)
        return part_of(self._runtime, buf, writable, memory, stream)

    def _start_plain(
        self, buf: object, memory: object, stream: object, *, receive: bool
    ) -> Request | None:
        """Starts a message of a plain buffer in one call of the extension.

        Returns None if the buffer is not plain (bytes, bytearray, memoryview), or if the extension
        cannot use it; _part() then converts it, or raises the error that says why it cannot.
        """
        if memory is not None or stream is not None or type(buf) not in _PLAIN:
            return None
        if self._closed:
            raise ConnectionClosedError(self._gone)
        request = self._native.post_plain(buf, receive)
        if request is None:
            return None
        name = self._names.receive if receive else self._names.send
        if isinstance(request, int):
            raise self._refused(name, request)
        return Request(self, name, request)

    @staticmethod
    def _refused(name: str, status: int) -> WeftError:
        if status == WOULD_BLOCK:
            text = f"{name}: the backlog is full (WEFT_POSTS_MAX); wait for a request first"
            return WouldBlockError(text)
        return error_for(status, name)

    def _start(self, part: Part, *, receive: bool) -> Request:
        if self._closed:
            raise ConnectionClosedError(self._gone)
        name = self._names.receive if receive else self._names.send
        post = self._native.post_receive if receive else self._native.post_send
        try:
            if part.pieces:
                status, request = self._native.post_receive(part.buffer, part.memory, part.pieces)
            else:
                status, request = post(part.buffer, part.memory)
        except ValueError as error:  # the registration belongs to another endpoint
            raise InvalidArgumentError(str(error)) from None
        if request is None:
            raise self._refused(name, status)
        return Request(self, name, request)

    def _arrived_late(self, request: Request, error: BaseException) -> bool:
        """Withdraws a receive whose wait ended with `error`. True: its message has arrived instead.

        No engine and no copy operation touches the receive's memory afterwards. Unless the message
        has arrived, the connection ends. It also ends if the message has arrived but `error` is no
        timeout: the caller gets the error, so the message would be lost.
        """
        if not request.done:
            self._native.withdraw(request._request)
        arrived = request.done and request._request.status == OK
        if not arrived or isinstance(error, TimedOutError):
            return arrived
        self.close()
        return False
