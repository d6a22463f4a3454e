"""Buffers as the engines take them, and registered memory, which a NIC reads and writes itself.

Owns no byte: the buffer is the caller's, and stays held while it is in use or registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from transport import native
from transport.closing import Closes
from transport.device import device_buffer, host_buffer, is_array, stream_handle, view_of
from transport.errors import InvalidArgumentError

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

    def of(self, part: native.Buffer) -> native.Memory:
        """The registration for a buffer inside it; ValueError for any other."""
        if self._native is None:
            raise ValueError("memory: it is closed, register the buffer again")
        if not self._native.holds(part):
            raise ValueError("memory: the buffer does not lie inside this registered memory")
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
    found = _buffer_of(runtime, buf, writable, whose)
    if isinstance(found, native.Buffer):
        if stream is not None:
            raise InvalidArgumentError("stream: `buf` is host memory, which no stream works on")
        return Part(found, None if memory is None else memory.of(found))
    if memory is not None:
        raise InvalidArgumentError("memory: `buf` is memory of a GPU, which is not registered")
    return Part(found, None)


def _buffer_of(
    runtime: native.Runtime, buf: Any, writable: bool, stream: int | None
) -> native.Buffer | native.DeviceBuffer:
    if isinstance(buf, list | tuple):
        for i, piece in enumerate(buf):
            if not is_array(piece):
                kind = type(piece).__name__
                raise TypeError(f"buf[{i}]: a list takes arrays in a GPU's memory, not {kind}")
        views = [
            view_of(piece, f"buf[{i}]", writable=writable, stream=stream)
            for i, piece in enumerate(buf)
        ]
        for i, view in enumerate(views):
            if not view.on_gpu:
                raise TypeError(f"buf[{i}]: is host memory; a list takes arrays in a GPU's memory")
        if not views:
            return native.Buffer(bytearray(), "buf", writable)
        return device_buffer(runtime, views, "buf", stream)
    try:
        return native.Buffer(buf, "buf", writable)
    except (TypeError, ValueError):
        if not is_array(buf):
            raise
    view = view_of(buf, "buf", writable=writable, stream=stream)
    if view.on_gpu:
        return device_buffer(runtime, [view], "buf", stream)
    return host_buffer(view, "buf", writable=writable)
