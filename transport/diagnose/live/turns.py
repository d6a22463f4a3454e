"""Numbers the sends and receives of NCCL, so that those that belong together have one number.

NCCL does not number them: the n-th send of a rank to another one belongs to the n-th receive of
that one. A summary has only the last calls, so each host counts from the begin of its traces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import distinct
from transport.diagnose.live.columns import Table, rows_of

Array = NDArray[Any]
Stream = tuple[int, int, bool, int]


@dataclass
class Turns:
    """Numbers the sends and receives of each stream.

    A stream is all sends, or all receives, of a process with one peer in one communicator.
    """

    _next: dict[Stream, int] = field(default_factory=dict)
    _open: dict[tuple[int, int], int] = field(default_factory=dict)

    def of(self, calls: Table) -> Array:
        """The number of each send and receive in its stream; 0 for collectives."""
        made = np.zeros(rows_of(calls), np.int64)
        rows = np.flatnonzero(calls["kind"] == "p2p")
        rows = rows[np.lexsort([calls[one][rows] for one in ("id", "begin_ns", "process")])]
        for at in rows.tolist():
            process, operation = int(calls["process"][at]), int(calls["id"][at])
            turn = self._open.get((process, operation))
            if turn is None:
                sends = calls["function"][at] == "Send"
                stream = (process, int(calls["comm_id"][at]), bool(sends), int(calls["root"][at]))
                turn = self._next.get(stream, 0)
                self._next[stream] = turn + 1
                self._open[process, operation] = turn
            made[at] = turn
        return made

    def settle(self, done: Table) -> None:
        """Forgets the numbers of calls that have ended and will not be passed to of() again."""
        rows = np.flatnonzero(done["kind"] == "p2p")
        for end in zip(done["process"][rows].tolist(), done["id"][rows].tolist(), strict=True):
            self._open.pop((int(end[0]), int(end[1])), None)

    def forget(self, processes: set[int]) -> None:
        self._next = {key: one for key, one in self._next.items() if key[0] not in processes}
        self._open = {key: one for key, one in self._open.items() if key[0] not in processes}


def aligned(calls: Table, whole: Array) -> Array:
    """The numbers of sends and receives, shifted so that a send and its receive have the same one.

    whole: [process] whether its calls were counted from its start. If those of one end were not,
    its receives are renumbered so that each ends when the send of the same number does.
    """
    turn = calls["turn"].copy()
    rows = np.flatnonzero(calls["kind"] == "p2p")
    if not len(rows) or whole[calls["process"][rows]].all():
        return turn
    sends = calls["function"][rows] == "Send"
    rank, root = calls["rank"][rows], calls["root"][rows]
    stream = distinct(
        calls["comm_id"][rows].view(np.int64),
        np.where(sends, rank, root),
        np.where(sends, root, rank),
    )[1]
    order = np.lexsort((turn[rows], stream))
    for mine in np.split(rows[order], np.flatnonzero(np.diff(stream[order])) + 1):
        out = calls["function"][mine] == "Send"
        if out.any() and not out.all() and not whole[calls["process"][mine]].all():
            turn[mine[~out]] += _shift(calls, mine[out], mine[~out])
    return turn


def _shift(calls: Table, sends: Array, receives: Array) -> int:
    """What to add to the numbers of receives, so that they match those of their sends.

    sends, receives: rows of the calls between two ranks, in order of their numbers.
    """
    turn, end_ns = calls["turn"], calls["end_ns"]
    sent, got = sends[end_ns[sends] >= 0], receives[end_ns[receives] >= 0]
    if not len(sent) or not len(got):
        return int(turn[sends].max() - turn[receives].max())
    times = np.maximum.accumulate(end_ns[sent])
    after = np.clip(np.searchsorted(times, end_ns[got]), 1, max(len(sent) - 1, 1))
    after = np.minimum(after, len(sent) - 1)
    before = np.maximum(after - 1, 0)
    nearer = times[after] - end_ns[got] < end_ns[got] - times[before]
    difference = turn[sent[np.where(nearer, after, before)]] - turn[got]
    return int(np.sort(difference)[len(difference) // 2])
