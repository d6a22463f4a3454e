"""Waits for events in tests: a time limit only catches a hang, so that no load can turn a test."""

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

# Far longer than anything takes beside other work: it only ends a hang. A process of low priority
# gets a twentieth of a core beside busy loops.
PATIENCE_S = 240.0
POLL_S = 0.005
Found = TypeVar("Found")


def until(
    holds: Callable[[], Found | None],
    failure: str | Callable[[], str] = "",
    *,
    patience_s: float = PATIENCE_S,
) -> Found:
    """Waits until a call returns something true, and returns it; `failure` says what is missing."""
    end = time.monotonic() + patience_s
    while True:
        if found := holds():
            return found
        if time.monotonic() > end:
            said = failure() if callable(failure) else failure
            raise AssertionError(f"waited {patience_s:g} s in vain: {said or holds}")
        time.sleep(POLL_S)


async def auntil(holds: Callable[[], bool], failure: str = "") -> None:
    """Waits in an event loop until a call returns true; other tasks of the loop run meanwhile."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE_S:g} s in vain: {failure or holds}")
        await asyncio.sleep(POLL_S)


def in_order(*moments: Any) -> bool:
    """Whether moments that one clock stamped come in this order. Load changes no such order."""
    return all(bool(first <= second) for first, second in pairwise(moments))
