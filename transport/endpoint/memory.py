"""Registered memory, and the conversion of the argument `buf` to native buffers.

Memory belongs to the caller; weft keeps buffers alive while they are in use or registered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transport import native
from transport.endpoint.buffers import Buffer
from transport.endpoint.closing import Closes
from transport.endpoint.device import (
    LentStreams,
    View,
    device_buffer,
    host_bytes,
    is_array,
    is_on_gpu,
    stream_handle,
    view_of,
)
from transport.errors import OK, InvalidArgumentError, error_for


class Memory(Closes):
    """A buffer registered by Endpoint.register(); pass it to operations on parts of the buffer.

    Over queue pairs, registered parts are sent without a copy and, with
    WEFT_RDMA=placement=direct, received without one. Over sockets registration has no effect. If
    a NIC refuses the registration, as under a locked-memory limit, the bytes are copied: see
    `used`.
    """

    def __init__(self, registered: native.Memory) -> None:
        self._native: native.Memory | None = registered
        self._nbytes = registered.nbytes
        self._used = registered.used

    @property
    def nbytes(self) -> int:
        """The length of the registered buffer in bytes."""
        return self._nbytes

    @property
    def used(self) -> bool:
        """True if a datapath uses the registration; False if the bytes are copied anyway."""
        return self._used

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._native is None

    def of(self, part: native.Buffer | native.DeviceBuffer) -> native.Memory:
        """The native registration; InvalidArgumentError if `part` lies outside the buffer."""
        if self._native is None:
            raise InvalidArgumentError(
                "memory: this registration is closed: register the buffer again"
            )
        if not self._native.holds(part):
            raise InvalidArgumentError(
                "memory: the buffer does not lie inside this registered memory"
            )
        return self._native

    def close(self) -> None:
        """Releases the registration once no operation uses it; may be called more than once."""
        self._native = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "in use" if self.used else "not used"
        return f"<Memory {self.nbytes} bytes, {state}>"


class Part(NamedTuple):
    """The native buffer of an operation, with its registration if it has one."""

    buffer: native.Buffer | native.DeviceBuffer
    memory: native.Memory | None
    pieces: tuple[native.Buffer, ...] = ()  # buffers to which the received message is copied


def part_of(
    runtime: native.Runtime,
    buf: Buffer,
    writable: bool,
    memory: object = None,
    stream: object = None,
) -> Part:
    """Converts the argument `buf` to native buffers and checks `memory` and `stream`.

    `memory`: the Memory that contains `buf`, or None. `stream`, for GPU memory: the stream that
    the operation is ordered after; None: the stream that the array reports.
    """
    if memory is not None and not isinstance(memory, Memory):
        kind = type(memory).__name__
        raise TypeError(f"memory: must be a Memory of Endpoint.register(), not {kind}")
    whose = None if stream is None else stream_handle(stream)
    many = isinstance(buf, list | tuple)
    part = (_list_part if many else _single_part)(runtime, buf, writable, whose)
    if stream is not None and not isinstance(part.buffer, native.DeviceBuffer):
        raise InvalidArgumentError("stream: `buf` is host memory; leave the argument out")
    if memory is None:
        return part
    if isinstance(part.buffer, native.DeviceBuffer) and not writable:
        # The NIC does not wait for streams, so wait until the stream's work has written the buffer.
        status, error = part.buffer.await_stream()
        if status != OK:
            raise error_for(status, "stream", error)
    if many:
        raise InvalidArgumentError("memory: `buf` is a list; give one buffer")
    return part._replace(memory=memory.of(part.buffer))


def _single_part(runtime: native.Runtime, buf: Any, writable: bool, stream: int | None) -> Part:
    lent_streams = LentStreams(runtime)
    found = _found(buf, "buf", writable, stream, lent_streams)
    if isinstance(found, native.Buffer):
        return Part(found, None)
    if found.on_gpu:
        return Part(device_buffer(runtime, [found], "buf", stream, lent_streams), None)
    return Part(native.Buffer(host_bytes(found), "buf", writable), None)


def _list_part(runtime: native.Runtime, buf: Any, writable: bool, stream: int | None) -> Part:
    """Makes one message from a list: arrays of one GPU are not copied, host buffers are."""
    views, pieces = [], []
    lent_streams = LentStreams(runtime)
    for i, piece in enumerate(buf):
        found = _found(piece, f"buf[{i}]", writable, stream, lent_streams)
        if isinstance(found, View) and found.on_gpu:
            views.append(found)
        else:
            host = host_bytes(found) if isinstance(found, View) else piece
            pieces.append(_flat(host, f"buf[{i}]"))
        if views and pieces:
            text = "a list must lie in GPU memory or in host memory, not in both"
            raise InvalidArgumentError(f"buf[{i}]: {text}")
    if views:
        return Part(device_buffer(runtime, views, "buf", stream, lent_streams), None)
    whole = bytearray(sum(piece.nbytes for piece in pieces)) if writable else b"".join(pieces)
    targets = tuple(native.Buffer(piece, "buf", True) for piece in pieces) if writable else ()
    return Part(native.Buffer(whole, "buf", writable), None, targets)


def _flat(obj: Any, argument: str) -> memoryview:
    try:
        flat = memoryview(obj)
        return flat.cast("B") if flat.nbytes else memoryview(bytearray())
    except (TypeError, ValueError) as error:  # for example, NumPy cannot export dates
        kind = type(obj).__name__
        raise InvalidArgumentError(f"{argument}: cannot use this {kind}: {error}") from None


def _found(
    obj: Any, argument: str, writable: bool, stream: int | None, lent_streams: LentStreams
) -> native.Buffer | View:
    """A native buffer, or a View of an array without a usable buffer protocol, as on a GPU."""
    if getattr(getattr(obj, "dtype", None), "hasobject", False):
        raise InvalidArgumentError(f"{argument}: an array of Python objects cannot be sent")
    if not is_on_gpu(obj):  # else the attempt would fail, and an exception takes 20 us
        try:
            return native.Buffer(obj, argument, writable)
        except TypeError:
            if not is_array(obj):
                raise
        except ValueError as error:
            raise InvalidArgumentError(str(error)) from None
    return view_of(obj, argument, writable=writable, stream=stream, lent_streams=lent_streams)
