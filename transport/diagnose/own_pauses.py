"""Cuts a program without collectives into iterations, by the pauses in which it computes.

Its messages may all be alike, so that they do not tell how many of them an iteration has. What it
does between its messages recurs once in each iteration, and takes longer than what is between two
messages of one iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MESSAGES_MIN = 16  # a window has about so many calls at least, if the program has no collectives
PAUSES_MIN = 6  # fewer pauses show no period
LONG = 0.5  # a pause has at least this part of the length that holds half of all idle time
IDLE_MIN = 0.1  # a process that is idle for a smaller share of its time has no pauses that matter
TURNS_MAX = 16  # maximum number of pauses in an iteration
REGULAR = 0.8  # share of the iterations that have the usual number of calls


@dataclass(frozen=True, eq=False)
class OwnPauses:
    """starts_ns: when windows begin. operations: calls of a window."""

    starts_ns: Array
    operations: int


def own_pauses(begun_ns: Array, end_ns: Array) -> OwnPauses | None:
    """The windows of a process by its pauses; None: it has none, or they do not tell it.

    begun_ns, end_ns: [call] of one process, end -1 for one that has not ended. A window begins with
    a pause: peers that exchange data have then all had their pause before, and none the next one.
    """
    order = np.argsort(begun_ns, kind="stable")
    begun = begun_ns[order]
    done = np.maximum.accumulate(np.maximum(end_ns[order], begun))
    # A receive that is called before the pause and ends after it hides the pause, but not that
    # nothing is called meanwhile.
    return _by_pauses(begun, done) or _by_pauses(begun, begun)


def _by_pauses(begun: Array, done: Array) -> OwnPauses | None:
    """The windows by the times between done[at] and begun[at + 1]."""
    after = _after_pauses(begun, done)
    if len(after) < PAUSES_MIN:
        return None
    apart = np.diff(after)
    turns = _turns_of(apart)
    sums = np.convolve(apart, np.ones(turns, np.int64), mode="valid")
    calls = int(np.median(sums))
    # A pause before each call does not tell how many calls an iteration has.
    if calls < 2 or float((sums == calls).mean()) < REGULAR:
        return None
    calls *= max(MESSAGES_MIN // calls, 1)
    kept = _at_least_apart(after, calls)
    starts_ns = np.unique(np.concatenate([begun[:1], done[kept - 1] + 1]))
    return OwnPauses(starts_ns, calls)


def _after_pauses(begun: Array, done: Array) -> Array:
    """The calls that come long after those before were done."""
    idle = np.maximum(begun[1:] - done[:-1], 0)
    total = int(idle.sum())
    if total <= 0 or total < IDLE_MIN * float(begun[-1] - begun[0]):
        return np.zeros(0, np.int64)
    ranked = np.sort(idle)[::-1]
    holds_half = int(ranked[np.searchsorted(np.cumsum(ranked), total / 2)])
    return np.flatnonzero(idle >= LONG * holds_half) + 1


def _turns_of(apart: Array) -> int:
    """After how many pauses the numbers of calls between them repeat."""
    most = min(len(apart) // 2, TURNS_MAX)
    alike = np.array([np.mean(apart[at:] == apart[:-at]) for at in range(1, most + 1)])
    return int(np.flatnonzero(alike >= REGULAR * alike.max())[0]) + 1


def _at_least_apart(after: Array, calls: int) -> Array:
    """Those of the pauses that begin a window; a delay of the host within one begins none."""
    kept, last = [], -calls
    for at in after.tolist():
        if at - last >= calls:
            kept.append(at)
            last = at
    return np.array(kept)
