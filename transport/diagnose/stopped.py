"""Distinguishes a process that did not run from one whose NIC failed, by the process's own work.

Peers can reach neither, and neither records anything while it only waits for them. But a process
that runs behind a dead NIC has timeouts of its messages, and makes the calls that are due. And a
process that was stopped for more than 0.2 s notices this when it resumes, and records it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.measures import input_ns

Array = NDArray[Any]

# Work of a process is missing if it was due in the first half of the time without a record.
DUE_SHARE = 0.5
# Losses that a process finds within this share of the gap after it resumed are due to the gap.
FOUND_SHARE = 0.1


class Stalls:
    """When processes did not run, from the records that they wrote after they had resumed."""

    def __init__(self, facts: Facts) -> None:
        downs = facts.downs
        rows = downs["what"] == "process_stalled"
        self._process, self._until_ns = downs["source"][rows], downs["time_ns"][rows]
        lasted = downs["value"][rows] if rows.any() else np.zeros(0)
        self._since_ns = self._until_ns - lasted.astype(np.int64)
        self.processes = np.unique(self._process)

    def longest_ns(self, process: int, from_ns: int, to_ns: int) -> int:
        """The longest overlap of a stall of the process with the time from from_ns to to_ns."""
        mine = self._process == process
        inside = np.minimum(self._until_ns[mine], to_ns) - np.maximum(self._since_ns[mine], from_ns)
        return int(inside.clip(0).max(initial=0))

    def covers(self, process: int, when_ns: int) -> bool:
        """Whether the process did not run at this time, and resumed later."""
        mine = self._process == process
        covers = (self._since_ns[mine] <= when_ns) & (when_ns <= self._until_ns[mine])
        return bool(covers.any())


def had_work(facts: Facts, process: int, from_ns: int, to_ns: int) -> bool:
    """Whether the process, which recorded nothing in this time, would have done so if it had run.

    Either it waited for acknowledgments of messages, and had no timeouts, or it had to begin a call
    or a send that depends on nothing from its peers.
    """
    # Timeouts of a message come at growing intervals: behind a dead NIC, such gaps are usual.
    times = _timeouts(facts, process)
    if ((times >= 2 * from_ns - to_ns) & (times <= from_ns)).any():
        return False
    return _in_flight(facts, process, from_ns, to_ns) or _was_due(facts, process, from_ns, to_ns)


def _timeouts(facts: Facts, process: int) -> Array:
    """When the process had timeouts."""
    downs = facts.downs
    found: Array = downs["time_ns"][(downs["source"] == process) & (downs["what"] == "timeout")]
    return found


def _in_flight(facts: Facts, process: int, from_ns: int, to_ns: int) -> bool:
    """Whether messages of the process waited for acknowledgments during this time.

    A row of `edges` has the time that all messages of an operation waited, and some of them may
    have been sent after to_ns, as they depend on messages of others. So that time is compared with
    the usual one. Rows in which the process lost segments before or after this time are left out,
    as resending took time, too.
    """
    edges = facts.edges
    mine = np.flatnonzero(edges["source"] == process)
    first_ns, end_ns = edges["first_ns"][mine], edges["end_ns"][mine]
    losses_ns = facts.losses["time_ns"][facts.losses["source"] == process]
    lost_ns = np.concatenate([losses_ns, _timeouts(facts, process)])
    found_ns = to_ns + FOUND_SHARE * (to_ns - from_ns)
    lost_ns = lost_ns[(lost_ns <= from_ns) | (lost_ns > found_ns)]
    took_ns = edges["busy_ns"][mine].astype(np.float64)
    alike = np.stack([edges[name][mine] for name in ("target", "messages", "bytes")], axis=1)
    for at in np.flatnonzero((first_ns <= from_ns) & (end_ns >= to_ns)).tolist():
        like = (alike == alike[at]).all(axis=1)
        lost = ((lost_ns >= first_ns[at]) & (lost_ns <= end_ns[at])).any()
        if not lost and _is_longer(took_ns, at, like, from_ns, to_ns):
            return True
    return False


def _is_longer(took_ns: Array, at: int, like: Array, from_ns: int, to_ns: int) -> bool:
    """Whether `at` took longer than the median of `like`, by DUE_SHARE of the gap at least."""
    like = like & (np.arange(len(took_ns)) != at)
    if not like.any():
        return False
    more_ns = float(took_ns[at]) - float(np.median(took_ns[like]))
    return more_ns >= DUE_SHARE * (to_ns - from_ns)


def _was_due(facts: Facts, process: int, from_ns: int, to_ns: int) -> bool:
    """Whether the next thing that the process did on its own was due early in this time.

    That is the next call or the first message of a call, if no operation that the process may have
    waited for ended between the begin of this time and that call or message.
    """
    calls = facts.calls
    mine = np.flatnonzero(calls["process"] == process)
    begin_ns, sent_ns, end_ns = (calls[name][mine] for name in ("begin_ns", "arrival_ns", "end_ns"))
    if ((begin_ns <= from_ns) & (end_ns < 0)).any():
        return False  # a call from before from_ns is still open
    # A relaying rank, as in a tree, sends only after it has received, which a dead NIC delays, too.
    # So its first send is not counted (-1) as something that it did on its own.
    own_ns = np.where(calls["relays"][mine] & (input_ns(facts)[mine] > 0), -1, sent_ns)
    kinds = facts.kinds[mine]
    moments = np.concatenate([[-1], np.sort(np.concatenate([begin_ns, sent_ns, end_ns]))])
    for times in (begin_ns, own_ns):
        after = np.flatnonzero(times >= to_ns)
        if not len(after):
            continue
        at = int(after[times[after].argmin()])
        before = moments[np.searchsorted(moments, times) - 1]
        waited = ((end_ns >= to_ns) & (end_ns <= times[at])).any()
        if waited or not 0 <= before[at] <= from_ns:
            continue
        like = (kinds == kinds[at]) & (times >= 0) & (before >= 0)
        if _is_longer(times - before, at, like, from_ns, to_ns):
            return True
    return False
