"""Messages of the two ends of a test over a weft connection, each within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transport import Connection
from transport.errors import TimedOutError, WeftError
from transport.host.two_hosts.facts import TEXT_BYTES_MAX, Fact, FactError, decode, encode

STEP_S = 0.2
PIECE_BYTES, PIECE_S = 512, 0.1  # shorter than any link's packets; PIECE_S: a long round trip
TOO_LONG = "the test took too long"


class Budget:
    """The time that a whole test may take."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def left_s(self, most_s: float) -> float:
        """At most this many seconds, and what is left; TimedOutError if nothing is."""
        left = self._end_s - time.monotonic()
        if left <= 0:
            raise TimedOutError(TOO_LONG)
        return min(left, most_s)


def pieces(fact: Any) -> list[bytes]:
    """The fact as messages that each fit into one short datagram; the last one ends in a newline.

    So the ends also talk over a network that drops long packets, which is a finding of the test.
    """
    data = encode(fact) + b"\n"
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


def say(connection: Connection, fact: Any, timeout_s: float) -> None:
    """Sends the fact. TimedOutError if it does not arrive in time."""
    parts = pieces(fact)
    end_s = time.monotonic() + timeout_s + PIECE_S * len(parts)
    for part in parts:  # in turn: GSO would make one long packet of several
        connection.send(part, timeout_s=max(0.0, end_s - time.monotonic()))


def hear(
    connection: Connection,
    *kinds: type[Fact],
    timeout_s: float,
    goes_on: Callable[[], bool] = lambda: True,
) -> Fact:
    """Receives a fact. TimedOutError if none arrives in time, or once goes_on() is false."""
    end_s = time.monotonic() + timeout_s
    data, is_whole = b"", False
    while not is_whole:
        request = connection.irecv(TEXT_BYTES_MAX)
        while not request.done:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not goes_on():
                names = " or ".join(kind.__name__ for kind in kinds)
                raise TimedOutError(f"no message {names} arrived from the other host")
            try:
                request.wait(min(left_s, STEP_S))
            except TimedOutError:
                continue
        request.wait()
        data += request.data
        # A host with another version of weft may send it as one message, without a newline.
        is_whole = len(request.data) != PIECE_BYTES or data.endswith(b"\n")
        if len(data) > TEXT_BYTES_MAX:
            raise FactError(f"expected text of at most {TEXT_BYTES_MAX} bytes")
    return decode(data, *kinds)


def alive(connection: Connection) -> bool:
    """Whether the connection has neither failed nor been closed."""
    try:
        connection.check()
    except WeftError:
        return False
    return True


def host_of(connection: Connection) -> str:
    """The numeric address of the other end, without its port."""
    return connection.peer_address.rpartition(" port ")[0].strip("[]")
