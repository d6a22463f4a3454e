"""Registered memory: what a NIC may read and write itself, so that nothing is copied.

Owns no byte: the buffer is the caller's, and stays held while it is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from transport import native
from transport.closing import Closes

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

    buffer: native.Buffer
    memory: native.Memory | None


def part_of(memory: object, buffer: Buffer, argument: str, writable: bool) -> Part:
    """The buffer and, where `memory` is the Memory it lies in, its registration; None: none."""
    part = native.Buffer(buffer, argument, writable)
    if memory is None:
        return Part(part, None)
    if not isinstance(memory, Memory):
        kind = type(memory).__name__
        raise TypeError(f"memory: needs what Endpoint.register() returned, not {kind}")
    return Part(part, memory.of(part))
