"""Buffers as the engines take them, and registered memory, which a NIC reads and writes itself.

Owns no byte: the buffer is the caller's, and stays held while it is in use or registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from transport import native
from transport.closing import Closes
from transport.device import (
    Intakes,
    View,
    device_buffer,
    host_bytes,
    is_array,
    is_on_gpu,
    stream_handle,
    view_of,
)
from transport.errors import OK, InvalidArgumentError, error_for

if TYPE_CHECKING:
    from transport.connection import Buffer


class Memory(Closes):
    """A buffer that Endpoint.register() told the engines of; give it along with its parts.

    Over queue pairs a registered part is sent without a copy and, with
    WEFT_RDMA_PLACEMENT=direct, received without one. Over sockets it changes nothing, and a NIC
    that refuses (a locked-memory limit) costs a copy, never a message: see `used`.
    """

    def __init__(self, registered: native.Memory) -> None:
        self._native: native.Memory | None = registered
        self._nbytes = registered.nbytes
        self._used = registered.used

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self._nbytes

    @property
    def used(self) -> bool:
        """True if a datapath has a use for it; False: its bytes are copied as any others."""
        return self._used

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._native is None

    def of(self, part: native.Buffer | native.DeviceBuffer) -> native.Memory:
        """The registration for a buffer inside it; InvalidArgumentError for any other."""
        if self._native is None:
            raise InvalidArgumentError("memory: it is closed, register the buffer again")
        if not self._native.holds(part):
            raise InvalidArgumentError(
                "memory: the buffer does not lie inside this registered memory"
            )
        return self._native

    def close(self) -> None:
        """Takes the registration back, once the requests that use it are done. Idempotent."""
        self._native = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else "in use" if self.used else "of no use here"
        return f"<Memory {self.nbytes} bytes, {state}>"


class Part(NamedTuple):
    """A buffer on its way, with its registration."""

    buffer: native.Buffer | native.DeviceBuffer
    memory: native.Memory | None
    pieces: tuple[native.Buffer, ...] = ()  # where a receive into `buffer` is copied to


def part_of(
    runtime: native.Runtime,
    buf: Buffer,
    writable: bool,
    memory: object = None,
    stream: object = None,
) -> Part:
    """The argument `buf` as the engines take it, with what `memory` and `stream` say of it.

    `memory`: the Memory that it lies in, or None. `stream`: whose work comes first, for memory of
    a GPU; None: what the array itself says.
    """
    if memory is not None and not isinstance(memory, Memory):
        kind = type(memory).__name__
        raise TypeError(f"memory: needs what Endpoint.register() returned, not {kind}")
    whose = None if stream is None else stream_handle(stream)
    many = isinstance(buf, list | tuple)
    part = (_list_part if many else _single_part)(runtime, buf, writable, whose)
    if stream is not None and not isinstance(part.buffer, native.DeviceBuffer):
        raise InvalidArgumentError("stream: `buf` is host memory, which no stream works on")
    if memory is None:
        return part
    if isinstance(part.buffer, native.DeviceBuffer) and not writable:
        # A NIC asks no stream.
        status, error = part.buffer.await_stream()
        if status != OK:
            raise error_for(status, "stream", error)
    if many:
        raise InvalidArgumentError("memory: `buf` is a list, of whose pieces no NIC knows")
    return part._replace(memory=memory.of(part.buffer))


def _single_part(runtime: native.Runtime, buf: Any, writable: bool, stream: int | None) -> Part:
    intakes = Intakes(runtime)
    found = _found(buf, "buf", writable, stream, intakes)
    if isinstance(found, native.Buffer):
        return Part(found, None)
    if found.on_gpu:
        return Part(device_buffer(runtime, [found], "buf", stream, intakes), None)
    return Part(native.Buffer(host_bytes(found), "buf", writable), None)


def _list_part(runtime: native.Runtime, buf: Any, writable: bool, stream: int | None) -> Part:
    """Pieces that are one message: of one GPU as they are, of the host through a copy."""
    views, pieces = [], []
    intakes = Intakes(runtime)
    for i, piece in enumerate(buf):
        found = _found(piece, f"buf[{i}]", writable, stream, intakes)
        if isinstance(found, View) and found.on_gpu:
            views.append(found)
        else:
            host = host_bytes(found) if isinstance(found, View) else piece
            pieces.append(_flat(host, f"buf[{i}]"))
        if views and pieces:
            text = "a list lies in a GPU's memory or in the host's, not in both"
            raise InvalidArgumentError(f"buf[{i}]: {text}")
    if views:
        return Part(device_buffer(runtime, views, "buf", stream, intakes), None)
    whole = bytearray(sum(piece.nbytes for piece in pieces)) if writable else b"".join(pieces)
    targets = tuple(native.Buffer(piece, "buf", True) for piece in pieces) if writable else ()
    return Part(native.Buffer(whole, "buf", writable), None, targets)


def _flat(obj: Any, argument: str) -> memoryview:
    try:
        flat = memoryview(obj)
        return flat.cast("B") if flat.nbytes else memoryview(bytearray())
    except (TypeError, ValueError) as error:  # of dates, say: NumPy gives no view of them
        kind = type(obj).__name__
        raise InvalidArgumentError(f"{argument}: this {kind} in a list: {error}") from None


def _found(
    obj: Any, argument: str, writable: bool, stream: int | None, intakes: Intakes
) -> native.Buffer | View:
    """A view of what has no buffer protocol, or, as a GPU's arrays, has it in name alone."""
    if getattr(getattr(obj, "dtype", None), "hasobject", False):
        raise InvalidArgumentError(f"{argument}: holds Python objects, whose bytes mean nothing")
    try:
        return native.Buffer(obj, argument, writable)
    except TypeError:
        if not is_array(obj):
            raise
    except ValueError as error:
        if not is_on_gpu(obj):
            raise InvalidArgumentError(str(error)) from None
    return view_of(obj, argument, writable=writable, stream=stream, intakes=intakes)
