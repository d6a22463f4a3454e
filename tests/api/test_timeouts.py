"""Tests timeout_s of every call: any length is accepted; invalid values raise errors."""

import asyncio
import math
import threading
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.api.support import LOCAL, PATIENCE_S, pair
from transport import Connection, Endpoint

# Timeouts without limit, and lengths that overflow as nanoseconds or as floats.
LONG = (math.inf, 1e10, 1e300, 10**400, Fraction(10**12), np.float64(1e12), None)
WRONG: tuple[tuple[Any, type[Exception]], ...] = (
    (math.nan, ValueError),
    (-1, ValueError),
    (-math.inf, ValueError),
    ("1", TypeError),
    (b"1", TypeError),
    ([], TypeError),
    (1j, TypeError),
)


def later(work: Callable[[], object]) -> threading.Timer:
    """Runs `work` in a thread, after the caller has begun to wait."""
    timer = threading.Timer(0.02, work)
    timer.start()
    return timer


@pytest.mark.parametrize("timeout_s", LONG, ids=repr)
def test_timeouts__long_ones_wait(timeout_s: Any) -> None:
    with pair() as (here, there):
        timer = later(lambda: here.send(b"one", timeout_s=PATIENCE_S))
        assert there.recv(10, timeout_s=timeout_s) == b"one"
        timer.join()
        received = bytearray(1 << 20)
        handle = there.irecv_into(received)
        timer = later(lambda: here.send(bytes(1 << 20), timeout_s=timeout_s))
        assert handle.wait(timeout_s) == 1 << 20
        timer.join()
        here.check()
        there.check()


@pytest.mark.parametrize("timeout_s", LONG, ids=repr)
def test_timeouts__long_ones_connect(timeout_s: Any) -> None:
    async def aconnect(endpoint: Endpoint, handle: bytes) -> Connection:
        return await endpoint.aconnect(handle, timeout_s=timeout_s)

    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:
        with (
            endpoint.connect(listener.handle, timeout_s=timeout_s) as here,
            listener.accept(timeout_s=timeout_s) as there,
        ):
            here.send(b"x", timeout_s=PATIENCE_S)
            assert there.recv(1, timeout_s=PATIENCE_S) == b"x"
        with asyncio.run(aconnect(endpoint, listener.handle)), listener.accept(timeout_s=timeout_s):
            pass


@pytest.mark.parametrize(("timeout_s", "error"), WRONG, ids=repr)
def test_timeouts__wrong_ones_are_refused_before_anything_is_posted(
    timeout_s: Any, error: type[Exception]
) -> None:
    with pair() as (here, there):
        handle = there.irecv_into(bytearray(8))
        calls: list[Callable[[], object]] = [
            lambda: here.send(b"nothing", timeout_s=timeout_s),
            lambda: there.recv(10, timeout_s=timeout_s),
            lambda: there.recv_into(bytearray(10), timeout_s=timeout_s),
            lambda: handle.wait(timeout_s),
        ]
        for call in calls:
            with pytest.raises(error, match="timeout_s: must be"):
                call()
        here.send(b"innocent", timeout_s=PATIENCE_S)
        assert handle.wait(PATIENCE_S) == 8


@pytest.mark.parametrize(("timeout_s", "error"), WRONG, ids=repr)
def test_timeouts__wrong_ones_connect_to_nobody(timeout_s: Any, error: type[Exception]) -> None:
    with Endpoint(**LOCAL) as endpoint, endpoint.listen() as listener:
        with pytest.raises(error, match="timeout_s: must be"):
            endpoint.connect(listener.handle, timeout_s=timeout_s)
        with pytest.raises(error, match="timeout_s: must be"):
            asyncio.run(endpoint.aconnect(listener.handle, timeout_s=timeout_s))
        with pytest.raises(error, match="timeout_s: must be"):
            listener.accept(timeout_s=timeout_s)
        with pytest.raises(TimeoutError):
            listener.accept(timeout_s=0.05)  # none of the calls above has connected
