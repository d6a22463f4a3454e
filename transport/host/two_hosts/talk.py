"""Messages of the two ends of a test over a weft connection, each within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transport import Connection
from transport.errors import TimedOutError, WeftError
from transport.host.two_hosts.facts import TEXT_BYTES_MAX, Fact, decode, encode

STEP_S = 0.2
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


def say(connection: Connection, fact: Any, timeout_s: float) -> None:
    """Sends the fact. TimedOutError if it does not arrive in time."""
    connection.send(encode(fact), timeout_s=timeout_s)


def hear(
    connection: Connection,
    *kinds: type[Fact],
    timeout_s: float,
    goes_on: Callable[[], bool] = lambda: True,
) -> Fact:
    """Receives a fact. TimedOutError if none arrives in time, or once goes_on() is false."""
    request = connection.irecv(TEXT_BYTES_MAX)
    end_s = time.monotonic() + timeout_s
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
    return decode(request.data, *kinds)


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
