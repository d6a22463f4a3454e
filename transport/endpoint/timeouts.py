"""Checks of the time limits that callers pass, in seconds."""

from __future__ import annotations

import math
import time
from numbers import Real

from transport.errors import InvalidArgumentError

PATIENCE_S_MAX = 4e9  # cap of timeouts: 126 years, which in nanoseconds fit into 63 bits


def patience(timeout_s: float | None) -> float | None:
    """Checks a timeout and returns it in seconds, capped; None for no limit (None or infinity).

    Raises TypeError if it is not a number, InvalidArgumentError if it is negative or NaN.
    """
    if timeout_s is None:
        return None
    given: object = timeout_s  # a caller without a type checker may pass any object
    # Nearly all callers pass an int or a float, for which the first test is enough, and fast.
    if type(given) not in (int, float) and not isinstance(given, Real):
        kind = type(given).__name__
        raise TypeError(f"timeout_s: must be a number of seconds or None, not {kind}")
    if not timeout_s >= 0:
        raise InvalidArgumentError(f"timeout_s: must be 0 or more, not {timeout_s}")
    if timeout_s == math.inf:
        return None
    return float(min(timeout_s, PATIENCE_S_MAX))


def deadline(timeout_s: float | None) -> float | None:
    """The monotonic time at which the timeout expires, or None; same errors as patience()."""
    seconds = patience(timeout_s)
    return None if seconds is None else time.monotonic() + seconds
