"""Two rules to compare with: C4D's (arXiv 2406.04594, section 4), and "twice the median".

Both get what a collective library knows: which rank called and finished which operation, and how
long the messages between two ranks took. The paper gives no thresholds; here, median and MAD
(median absolute deviation) give them, as for weft. Neither rule sees paths, losses or the
transport's timeouts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.measures import Delays, delays_of
from transport.diagnose.windows import begun_ns, windows_of

Array = NDArray[Any]

HEALTHY = ("healthy", "", -1)
DEVIATIONS = 6.0  # an outlier is further from the median than this many times 1.4826 MAD
TWICE = 2.0
LEAST = 0.5  # an outlier exceeds the median by at least this share of the median


@dataclass(frozen=True)
class Said:
    """A verdict: class of fault, kind of place, and the rank of the place; -1: none."""

    verdict: str
    place: str
    rank: int


def _hang(facts: Facts) -> Said | None:
    """An operation that some ranks did not start, or that does not end anywhere."""
    calls = facts.calls
    windows = windows_of(facts)
    progress = np.concatenate([calls["end_ns"], facts.edges["end_ns"]])
    if not (calls["end_ns"] < 0).any() or facts.end_ns - progress.max() < windows.usual_ns:
        return None
    members: dict[int, set[int]] = {}
    for comm, process in zip(calls["comm_id"].tolist(), calls["process"].tolist(), strict=True):
        members.setdefault(comm, set()).add(process)
    open_ = np.flatnonzero(calls["end_ns"] < 0)
    first = open_[np.argmin(calls["begin_ns"][open_])]
    here = calls["instance"] == calls["instance"][first]
    absent = members[int(calls["comm_id"][first])] - set(calls["process"][here].tolist())
    if absent:
        return Said("non_communication_hang", "rank", facts.processes[min(absent)].rank)
    mine = facts.edges["instance"] == calls["instance"][first]
    if not mine.any():
        return Said("communication_hang", "", -1)
    least = int(np.flatnonzero(mine)[facts.edges["end_ns"][mine].argmin()])
    return Said("communication_hang", "nic", facts.processes[facts.edges["source"][least]].rank)


def _outlier(values: Array, twice: bool) -> int | None:
    """The index of the largest value if it is an outlier; `twice`: if above twice the median."""
    if values.size < 3:
        return None
    middle = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(values - middle)))
    limit = TWICE * middle if twice else middle + max(DEVIATIONS * spread, LEAST * middle)
    at = int(values.argmax())
    return at if values[at] > limit else None


def _matrix(facts: Facts, delays: Delays, at: int, twice: bool) -> Said | None:
    """C4D's rule over the matrix of delays (row: sender, column: receiver) of one time window.

    It names the NIC of an outlying row or column, else the pair of an outlying cell. Delays are
    ratios to what is usual for the pair; one that weft does not find slow counts as 1, so that the
    rule has the same history and the same limits as weft.
    """
    ratio = np.where(delays.slow[at], np.exp(delays.excess[at]), 1.0)
    source, target = delays.pairs[:, 0], delays.pairs[:, 1]
    ranks = len(facts.processes)
    rows, columns = (
        np.bincount(ends, ratio, ranks) / np.maximum(np.bincount(ends, minlength=ranks), 1)
        for ends in (source, target)
    )
    best: tuple[float, int] | None = None
    for values in (rows, columns):
        found = _outlier(np.where(values > 0, values, 1.0), twice)
        if found is not None and (best is None or values[found] > best[0]):
            best = float(values[found]), found
    if best is not None:
        return Said("communication_slow", "nic", facts.processes[best[1]].rank)
    found = _outlier(ratio, twice)
    if found is not None:
        return Said("communication_slow", "pair", facts.processes[int(source[found])].rank)
    return None


def _waits(facts: Facts, at: int, twice: bool) -> Said | None:
    """The straggler is the rank that others wait for: it comes last to operations."""
    calls, windows = facts.calls, windows_of(facts)
    begun = begun_ns(calls)
    mine = windows.of(begun) == at
    late = np.zeros(len(facts.processes))
    _, group = np.unique(calls["instance"], return_inverse=True)
    last = np.full(int(group.max(initial=0)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, group[mine], begun[mine])
    wait = (last[group] - begun)[mine]
    np.add.at(late, calls["process"][mine], wait)
    # The straggler waits least: subtract from the longest wait, so that its value is the largest.
    values = late.max(initial=0) - late
    found = _outlier(values[values > 0], twice)
    if found is None:
        return None
    rank = int(np.flatnonzero(values > 0)[found])
    return Said("non_communication_slow", "rank", facts.processes[rank].rank)


def judge(facts: Facts, *, twice: bool = False) -> Said:
    """The verdict of C4D's rule, or of "twice the median", over all complete time windows.

    A verdict must be the same in two consecutive time windows.
    """
    found = _hang(facts)
    if found is not None:
        return found
    windows = windows_of(facts)
    delays = delays_of(facts, windows)
    before: Said | None = None
    for at in range(max(windows.count - 1, 0)):
        said = _matrix(facts, delays, at, twice) or _waits(facts, at, twice)
        if said is not None and said == before:
            return said
        before = said
    return Said(*HEALTHY)
