"""The exceptions of weft: one tree, one class for each outcome of the native table.

`error_for` makes the exception of a status that the native side has returned.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from transport import native


class WeftError(Exception):
    """Base of every error that an operation of weft ends with.

    `status` is the stable name of the outcome. Each subclass is also the built-in exception that
    code which knows nothing of weft would expect (ConnectionError, TimeoutError, ValueError, ...).
    """

    status: ClassVar[str] = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)

    def __reduce__(self) -> tuple[type[WeftError], tuple[str]]:
        """Said in full, as libraries that carry exceptions to other processes guess otherwise."""
        return type(self), (str(self),)


class WouldBlockError(WeftError, BlockingIOError):
    """Not now: try again."""

    status = "would_block"


class InvalidArgumentError(WeftError, ValueError):
    """An argument is out of range or of the wrong kind."""

    status = "invalid_argument"


class MessageTooLongError(WeftError, ValueError):
    """The message is longer than the receive posted for it; both ends get this."""

    status = "message_too_long"


class ConnectionLostError(WeftError, ConnectionError):
    """Base of the ways in which a connection ends."""


class ConnectionClosedError(ConnectionLostError, ConnectionAbortedError):
    """The connection was closed, by this end or by the peer."""

    status = "connection_closed"


class PeerDeadError(ConnectionLostError, ConnectionResetError):
    """The peer process is gone."""

    status = "peer_dead"


class PeerSilentError(ConnectionLostError, TimeoutError):
    """The peer runs, and no data path carried anything for longer than the knob peer_silence_ns."""

    status = "peer_silent"


class PeerStalledError(ConnectionLostError, TimeoutError):
    """The peer process did not run for longer than the knob peer_stall_ns."""

    status = "peer_stalled"


class RefusedError(WeftError, ConnectionRefusedError):
    """Nobody listens there, or the peer refused the connection."""

    status = "refused"


class VersionMismatchError(RefusedError):
    """The peer speaks another version of the protocol."""

    status = "version_mismatch"


class AuthenticationError(RefusedError):
    """The peer does not hold the same secret."""

    status = "authentication_failed"


class AddressError(WeftError, OSError):
    """The address, port or interface cannot be used."""

    status = "address_unavailable"


class OutOfMemoryError(WeftError, MemoryError):
    """Out of memory, or over a configured limit."""

    status = "out_of_memory"


class OutOfDescriptorsError(WeftError, OSError):
    """Out of file descriptors: raise `ulimit -n`."""

    status = "out_of_descriptors"


class SystemCallError(WeftError, OSError):
    """A system call failed; the text names it."""

    status = "system_error"


class OperationCancelledError(WeftError):
    """Cancelled by the caller, who closed the connection or withdrew the buffer."""

    status = "cancelled"


class TimedOutError(WeftError, TimeoutError):
    """The time given by the caller is over."""

    status = "timed_out"


class ForkedChildError(WeftError, RuntimeError):
    """Used in a forked child; the transport lives in the parent."""

    status = "forked_child"


class InternalError(WeftError, RuntimeError):
    """A defect in weft: please report it."""

    status = "internal_error"


class DeviceMissingError(WeftError, RuntimeError):
    """No such GPU here, or no driver for one; host memory needs none."""

    status = "device_unavailable"


class DeviceError(WeftError, RuntimeError):
    """A call to the GPU's driver failed; the text names it. It ends the connection."""

    status = "device_error"


class NoProgressError(ConnectionLostError, TimeoutError):
    """The network carries too little for the connection to make progress, though the peer lives."""

    status = "no_progress"


# One class for each outcome but ok; a test walks this against the native table.
ERRORS: tuple[type[WeftError], ...] = (
    *(WouldBlockError, InvalidArgumentError, MessageTooLongError, ConnectionClosedError),
    *(
        PeerDeadError,
        PeerSilentError,
        PeerStalledError,
        RefusedError,
        VersionMismatchError,
        AuthenticationError,
    ),
    *(AddressError, OutOfMemoryError, OutOfDescriptorsError, SystemCallError),
    *(OperationCancelledError, TimedOutError, ForkedChildError, InternalError),
    *(DeviceMissingError, DeviceError, NoProgressError),
)

OK = 0
WOULD_BLOCK = 1
TIMED_OUT = 15


@cache
def _by_code() -> dict[int, tuple[type[WeftError], str]]:
    classes = {error.status: error for error in ERRORS}
    return {code: (classes[name], text) for name, code, text in native.status_table() if code != OK}


def error_for(code: int, what: str, detail: str = "") -> WeftError:
    """The exception of a status code; its text is `what: detail`, or the table's words."""
    known = _by_code().get(code)
    kind, text = known if known is not None else (InternalError, f"unknown status {code}")
    return kind(f"{what}: {detail or text}")
