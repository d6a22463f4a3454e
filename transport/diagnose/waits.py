"""Sums, over the whole job, what waiting for each rank at collectives cost the other ranks.

While some ranks of a collective wait and others have not come, the wait is caused by those that are
still missing, in equal parts. That is the Shapley value of a game whose cost is the latest arrival
(Littlechild and Owen, 1973, on runways of airports). A rank that came late because it was itself
kept waiting causes nothing: at most the time counts by which it took longer, on its own, than the
faster quarter of its peers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import distinct
from transport.diagnose.facts import Facts, kinds_of
from transport.diagnose.measures import apart, own_ns
from transport.diagnose.recurring import Period, period_of
from transport.diagnose.windows import Windows, moments

Array = NDArray[Any]

FAST = 0.25  # the part of the ranks of a collective whose own time is the usual one
LATE_SHARE = 0.06  # a rank is late in an iteration if others waited this share of it for the rank


@dataclass(frozen=True)
class Waited:
    """What others waited for one process. rank: in the job, -1 if unknown; host: "" if unknown.

    waited_ns: GPU time, the sum over the ranks that waited. last: collectives in which it came
    last, of `collectives`. late: iterations in which it was late. period: of these.
    """

    name: str
    rank: int
    host: str
    waited_ns: int
    last: int
    collectives: int
    late: int
    period: Period


@dataclass(frozen=True)
class Waits:
    """each: by process, the costliest first. job_ns: ranks times the time that was judged."""

    each: tuple[Waited, ...]
    job_ns: int
    iterations: int

    @property
    def waited_ns(self) -> int:
        return sum(one.waited_ns for one in self.each)

    @property
    def hosts(self) -> dict[str, int]:
        """What others waited for the ranks of each host, the costliest first."""
        found: dict[str, int] = {}
        for one in self.each:
            found[one.host] = found.get(one.host, 0) + one.waited_ns
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def waits_of(facts: Facts, windows: Windows) -> Waits:
    """The waits of a job. windows: its iterations."""
    processes = len(facts.processes)
    calls = facts.calls
    rows = np.flatnonzero(
        (calls["kind"] == "collective") & (calls["arrival_ns"] >= 0) & ~calls["relays"].astype(bool)
    )
    begin_ns = int(windows.starts_ns[0]) if windows.count else facts.end_ns
    job_ns = processes * max(facts.end_ns - begin_ns, 1)
    if not len(rows):
        return Waits((), job_ns, windows.count)
    caused, last = _caused_ns(calls, rows)
    window = windows.of(moments(calls))[rows]
    process = calls["process"][rows]
    table = np.zeros((max(windows.count, 1), processes))
    np.add.at(table, (window, process), caused)
    count = np.bincount(process, minlength=processes)
    lasts = np.bincount(process[last], minlength=processes)
    made = []
    for one in range(processes):
        share = table[:, one] / max(processes - 1, 1)
        late = np.flatnonzero(share > LATE_SHARE * windows.usual_ns)
        period = period_of(late, windows.starts_ns[late])
        total = int(table[:, one].sum())
        of = facts.processes[one]
        collectives = int(lasts[one]), int(count[one])
        made.append(
            Waited(facts.name(one), of.rank, of.host, total, *collectives, len(late), period)
        )
    made.sort(key=lambda each: (-each.waited_ns, each.rank))
    return Waits(tuple(made), job_ns, windows.count)


def _caused_ns(calls: dict[str, Array], rows: Array) -> tuple[Array, Array]:
    """Of each row, the time that others waited for it; and whether it was the last of its
    collective. rows: calls of collectives whose arrival is known."""
    instance, arrival = calls["instance"][rows], calls["arrival_ns"][rows].astype(np.int64)
    order = np.lexsort((arrival, instance))
    instance, arrival = instance[order], arrival[order]
    fresh = np.concatenate([[True], instance[1:] != instance[:-1]])
    group = np.cumsum(fresh) - 1
    starts = np.flatnonzero(fresh)
    size = np.diff([*starts, len(rows)])[group]
    place = np.arange(len(rows)) - starts[group]
    gap = np.where(fresh, 0, np.diff(arrival, prepend=arrival[:1]))
    # Until the gap ends, `place` ranks have waited, and size - place had not come.
    part = gap * place / np.maximum(size - place, 1)
    total = np.cumsum(part)
    caused = total - total[starts][group]
    late = arrival - arrival[starts][group]
    allowed = np.minimum(_slower_ns(calls, rows)[order], late)
    # Lateness to collectives that begin together, as of buckets of gradients, counts once.
    allowed = np.minimum(allowed, apart(calls["process"][rows][order], arrival, late))
    share = np.where(late > 0, allowed / np.maximum(late, 1), 0.0)
    made, last = np.zeros(len(rows)), np.zeros(len(rows), bool)
    made[order] = caused * share
    last[order] = (place == size - 1) & (size > 1)
    return made, last


def _slower_ns(calls: dict[str, Array], rows: Array) -> Array:
    """Of each row, by how much its rank took longer on its own than the faster ranks of the same
    collective; the rest of its lateness was waiting for others."""
    own = own_ns(calls)[rows].astype(np.float64)
    group = distinct(calls["instance"][rows], kinds_of(calls)[rows])[1]
    known = own >= 0
    order = np.lexsort((own, group, ~known))
    usual = np.full(int(group.max()) + 1, np.inf)
    ranked = order[: int(known.sum())]
    of, first, count = np.unique(group[ranked], return_index=True, return_counts=True)
    usual[of] = own[ranked][first + (FAST * (count - 1)).astype(np.int64)]
    return np.where(known, np.maximum(own - usual[group], 0), 0.0)
