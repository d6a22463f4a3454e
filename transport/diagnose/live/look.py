"""Describes what an interval judged: new windows, ranks seen in them, and the parts of the job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import distinct
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding
from transport.diagnose.live.incidents import Look
from transport.diagnose.live.merge import Job
from transport.diagnose.windows import Windows

Array = NDArray[Any]


def look_of(
    job: Job, windows: Windows, first: int, before_ns: int, findings: Sequence[Finding]
) -> Look:
    """What an interval judged.

    first: the first window that was judged. before_ns: begin of the last window that earlier
    intervals have seen.
    """
    facts = job.facts
    starts = windows.starts_ns[first:]
    new = starts[starts > before_ns]
    since_ns = int(new[0]) if len(new) else facts.end_ns
    ranks = [one.rank for one in facts.processes]
    return Look(
        facts.end_ns,
        findings,
        len(new) if windows.count else None,
        windows.usual_ns if windows.count else 0,
        frozenset(ranks[at] for at in active(facts, since_ns)),
        frozenset(ranks),
        bool(job.missing),
        dict(zip(ranks, parts(facts), strict=True)),
        pace_ns(windows, before_ns),
    )


def pace_ns(windows: Windows, before_ns: int) -> float:
    """The usual time of an operation in the windows that end after a time; 0: none has ended.

    It does not depend on how many operations make an iteration, which may be found anew.
    """
    starts = windows.starts_ns
    lasted = np.diff(starts)[starts[1:] > before_ns]
    if not len(lasted):
        return 0.0
    return float(np.median(lasted)) / (windows.operations * windows.iterations)


def active(facts: Facts, since_ns: int) -> list[int]:
    """The processes that called something, or sent or received, at or after a time."""
    calls, edges = facts.calls, facts.edges
    latest = np.full(len(facts.processes), -1, np.int64)
    for name in ("begin_ns", "arrival_ns", "end_ns"):
        np.maximum.at(latest, calls["process"], calls[name])
    for name in ("source", "target"):
        np.maximum.at(latest, edges[name], edges["end_ns"])
    return np.flatnonzero(latest >= since_ns).tolist()


def parts(facts: Facts) -> list[int]:
    """The part of the job of each process: those that share communicators or messages, also by way
    of others, have the same number."""
    root = list(range(len(facts.processes)))

    def top(one: int) -> int:
        while root[one] != one:
            root[one] = one = root[root[one]]
        return one

    for one, other in _pairs(facts):
        root[top(one)] = top(other)
    return [top(one) for one in range(len(root))]


def _pairs(facts: Facts) -> Iterable[tuple[int, int]]:
    """Pairs of processes that exchange messages, or are neighbours in a list of a communicator."""
    shared = [distinct(facts.edges["source"], facts.edges["target"])[0]]
    calls = facts.calls
    if len(calls["process"]):
        ids = np.unique(calls["comm_id"], return_inverse=True)[1].ravel()
        members = distinct(ids, calls["process"])[0]
        same = members[0][1:] == members[0][:-1]
        shared.append(np.stack([members[1][:-1][same], members[1][1:][same]]))
    for one in shared:
        yield from zip(one[0].tolist(), one[1].tolist(), strict=True)
