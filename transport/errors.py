"""The exceptions of weft: one class for each status code of the native library.

`error_for` makes the exception for a status code.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

from transport import native


class WeftError(Exception):
    """Base of all errors of weft's operations.

    `status` is the stable name of the outcome. Each subclass also derives from the matching
    built-in exception (ConnectionError, TimeoutError, ValueError, ...).
    """

    status: ClassVar[str] = ""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)

    def __reduce__(self) -> tuple[type[WeftError], tuple[str]]:
        """Pickles the exception as (class, message)."""
        return type(self), (str(self),)


class WouldBlockError(WeftError, BlockingIOError):
    """The operation would block; try again later."""

    status = "would_block"


class InvalidArgumentError(WeftError, ValueError):
    """An argument is out of range or of the wrong kind."""

    status = "invalid_argument"


class MessageTooLongError(WeftError, ValueError):
    """The message is longer than the receive posted for it; raised at both ends."""

    status = "message_too_long"


class ConnectionLostError(WeftError, ConnectionError):
    """Base of all errors that end a connection."""


class ConnectionClosedError(ConnectionLostError, ConnectionAbortedError):
    """The connection was closed, by this end or by the peer."""

    status = "connection_closed"


class PeerDeadError(ConnectionLostError, ConnectionResetError):
    """The peer process has ended."""

    status = "peer_dead"


class PeerSilentError(ConnectionLostError, TimeoutError):
    """The peer runs, but no path delivered anything for the time `silence` (WEFT_PEER_TIMEOUT)."""

    status = "peer_silent"


class PeerStalledError(ConnectionLostError, TimeoutError):
    """The peer process did not run for the time `stall` (WEFT_PEER_TIMEOUT)."""

    status = "peer_stalled"


class RefusedError(WeftError, ConnectionRefusedError):
    """No process listens at the address, or the peer refused the connection."""

    status = "refused"


class VersionMismatchError(RefusedError):
    """The peer speaks another version of the protocol."""

    status = "version_mismatch"


class AuthenticationError(RefusedError):
    """The peer does not have the same secret."""

    status = "authentication_failed"


class AddressError(WeftError, OSError):
    """The address, port or interface cannot be used."""

    status = "address_unavailable"


class OutOfMemoryError(WeftError, MemoryError):
    """Out of memory, or above a configured limit."""

    status = "out_of_memory"


class OutOfDescriptorsError(WeftError, OSError):
    """Out of file descriptors: raise `ulimit -n`."""

    status = "out_of_descriptors"


class SystemCallError(WeftError, OSError):
    """A system call failed; the message names the call."""

    status = "system_error"


class OperationCancelledError(WeftError):
    """Cancelled, because the caller closed the connection or withdrew the buffer."""

    status = "cancelled"


class TimedOutError(WeftError, TimeoutError):
    """The caller's timeout expired."""

    status = "timed_out"


class ForkedChildError(WeftError, RuntimeError):
    """The object was used in a forked child; it works only in the process that created it."""

    status = "forked_child"


class InternalError(WeftError, RuntimeError):
    """A defect in weft: please report it."""

    status = "internal_error"


class DeviceMissingError(WeftError, RuntimeError):
    """The GPU or its driver is missing; neither is needed for host memory."""

    status = "device_unavailable"


class DeviceError(WeftError, RuntimeError):
    """A call to the GPU's driver failed; the message names the call. The connection has ended."""

    status = "device_error"


class NoProgressError(ConnectionLostError, TimeoutError):
    """The peer lives, but the network delivers too little for the connection to make progress."""

    status = "no_progress"


# One class for each status except ok; a test compares the list with native.status_table().
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
    """The exception for a status code.

    Its message is `what: detail`; without `detail`, `what:` and the text of native.status_table().
    """
    known = _by_code().get(code)
    kind, text = known if known is not None else (InternalError, f"unknown status {code}")
    return kind(f"{what}: {detail or text}")
