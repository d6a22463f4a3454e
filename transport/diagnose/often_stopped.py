"""Finds a process that did not run again and again, and says where a NIC may be such a process.

A debugger, a quota of its cgroup or a virtual machine stops a process for tens of milliseconds at a
time. To its peers its NIC seems to be slow. The thread that writes the trace notices when it wakes
up more than 0.1 s late, and records it (process_stalled).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place, graded
from transport.ground.units import percent, time_text

TIMES_MIN = 3
SHARE_MIN = 0.05  # of the time of the trace in which the process did not run
# A host that is short of CPU stops all of its processes. One is stopped by itself if it did not run
# this many times as long as any other of the job.
ALONE_TIMES = 4.0
SHORT_OF_CPU = "the process behind it, short of CPU"
CPU_ADVICE = "See first whether its process has a core (nr_throttled in cpu.stat, weft doctor)."
FOLLOWING = ("communication_slow", "congestion", "network_loss")
QUERY = (
    "SELECT process, count(*) AS times, sum(value) AS not_run_ns, max(value) AS longest_ns FROM "
    "events WHERE what = 'process_stalled' GROUP BY ALL ORDER BY not_run_ns DESC"
)


def often_stopped(facts: Facts) -> Finding | None:
    """The process that did not run most, if that is much, and much more than others did not."""
    rows = facts.downs["what"] == "process_stalled"
    source = facts.downs["source"][rows]
    stopped_ns = facts.downs["value"][rows].astype(np.int64)
    if len(source) < TIMES_MIN or len(facts.processes) < 2:
        return None
    every_ns = np.bincount(source, stopped_ns, len(facts.processes))
    one = int(every_ns.argmax())
    mine, process = source == one, facts.processes[one]
    lasted_ns = max(process.last_ns - process.first_ns, 1)
    next_ns = float(np.delete(every_ns, one).max())
    share = float(every_ns[one]) / lasted_ns
    if mine.sum() < TIMES_MIN or share < SHARE_MIN or every_ns[one] < ALONE_TIMES * next_ns:
        return None
    times_ns, name = facts.downs["time_ns"][rows][mine], facts.name(one)
    median_ns = int(np.median(stopped_ns[mine]))
    return Finding(
        "non_communication_slow",
        Place("rank", name, (process.rank,)),
        int(times_ns.min()) - median_ns,
        int(times_ns.max()),
        0.95,
        True,
        f"The process of {name} did not run {int(mine.sum())} times, for {time_text(median_ns)} "
        f"each (median) and {time_text(int(every_ns[one]))} in all, {percent(min(share, 1.0))} of "
        f"its time; no other did so for more than {time_text(int(next_ns))}.",
        QUERY,
        f"See what stops it on {process.host}: the quota of its cgroup (nr_throttled in cpu.stat), "
        "a debugger or a signal, swapping, a virtual machine.",
        lost_ns=int(every_ns[one]),
        weight=float(every_ns[one]),
        more={"gpu": False},
    )


def with_often_stopped(facts: Facts, found: Sequence[Finding]) -> list[Finding]:
    """The findings after that of such a process; what its NIC seems to do follows from it."""
    stopped = often_stopped(facts)
    if stopped is None:
        return list(found)
    ranks = set(stopped.place.ranks)
    return [
        stopped,
        *(
            graded(replace(one, indirect=True), False)
            if one.kind in FOLLOWING and ranks & set(one.place.ranks)
            else one
            for one in found
            if (one.kind, one.place.ranks) != (stopped.kind, stopped.place.ranks)
        ),
    ]


def or_short_of_cpu(facts: Facts, one: Finding) -> Finding:
    """The finding; that of a slow NIC of a real job with its process as another place.

    The process sends and acknowledges the packets, so if it lacks CPU its NIC seems to be slow.
    """
    if facts.simulated or one.kind != "communication_slow" or one.place.kind != "nic":
        return one
    place = replace(one.place, candidates=(*one.place.candidates, SHORT_OF_CPU))
    return replace(one, place=place, advice=f"{CPU_ADVICE} {one.advice}")
