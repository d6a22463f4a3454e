"""Finds processes that were killed or crashed: their traces have no end, and they run no more.

A launcher that loses one rank ends the others within milliseconds. Then no peer is left to report
the death of the first one, and the traces just stop, as those of a job that Ctrl-C ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from transport.diagnose import alive
from transport.diagnose.evidence import Lack, text_of
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.ground.units import time_text
from transport.trace.store import Store

WRITTEN_NS = 100_000_000  # the last records of a killed process, which it may not have written
# What a suspicion is seen by: peers that end make paths fail, in the last of the judged windows.
MOMENTS_NS = 1_000_000_000
OF_NETWORKS = ("network_loss", "congestion", "communication_slow", "communication_hang")
QUERY = "SELECT rank, host, pid, ended, last_ns FROM processes ORDER BY last_ns"
REMEDY = "read what its launcher wrote, and the kernel log (out of memory, a signal, a failed GPU)"
RUNS_ELSEWHERE = "diagnose on a host of the job, which sees whether it runs, or when it has ended"


@dataclass(frozen=True)
class Killed:
    """lack: why the job is not healthy. gone: whether processes certainly run no more; False: they
    may run on other hosts. first: the one whose records stop first. since_ns: when they stop.
    """

    lack: Lack
    gone: bool
    first: Finding | None
    since_ns: int

    def explains(self, one: Finding) -> bool:
        """Whether a suspicion of the network may follow from processes that ended."""
        late = one.from_ns >= self.since_ns - MOMENTS_NS
        return self.gone and late and not one.certain and one.kind in OF_NETWORKS


def killed(store: Store, facts: Facts, numbers: dict[int, int]) -> Killed | None:
    """What traces without an end say; None: each process closed its trace, or still runs here.

    numbers: number of a process in the trace -> its index in the facts.
    """
    open_ = {at for at, one in enumerate(facts.processes) if one.ended is False}
    gone = sorted(open_ & {numbers[one] for one in alive.gone(store) if one in numbers})
    every = len(open_) == len(facts.processes)
    if gone:
        since_ns = min(facts.processes[one].last_ns for one in gone)
        ranks = text_of(sorted(facts.processes[one].rank for one in gone))
        what = (
            "the job was killed or crashed: no rank's trace has an end, and no process of it runs "
            "on this host any more"
            if every and not facts.states
            else f"{ranks} was killed or crashed: its trace has no end, and its process is gone"
            if len(gone) == 1
            else f"{ranks} were killed or crashed: their traces have no end, and they run no more"
        )
        return Killed(Lack(what, REMEDY), True, _first(store, facts, numbers, gone), since_ns)
    if open_ and every and not facts.states:
        what = "no rank's trace has an end: the job was killed or crashed, or runs on other hosts"
        return Killed(Lack(what, RUNS_ELSEWHERE), False, None, facts.end_ns)
    return None


def _first(
    store: Store, facts: Facts, numbers: dict[int, int], gone: Sequence[int]
) -> Finding | None:
    """The process that stopped first, if clocks and unwritten records leave no doubt of that."""
    rows = store.rows("SELECT process, coalesce(clock_error_ns, 0) FROM processes")
    error_ns = {numbers[process]: int(error) for process, error in rows if process in numbers}
    order = sorted(gone, key=lambda each: facts.processes[each].last_ns)
    one, process = order[0], facts.processes[order[0]]
    others = [each for each in range(len(facts.processes)) if each != one]
    for other in others:
        ahead_ns = facts.processes[other].last_ns - process.last_ns
        if ahead_ns <= WRITTEN_NS + error_ns[one] + error_ns[other]:
            return None
    if not others:
        return None
    later_ns = min(facts.processes[each].last_ns for each in others) - process.last_ns
    name = facts.name(one)
    return Finding(
        "crash",
        Place("rank", name, (process.rank,)),
        process.last_ns,
        facts.end_ns,
        0.6,
        False,
        f"The records of {name} stop {time_text(later_ns)} or more before those of all others, its "
        "trace has no end, and its process is gone.",
        QUERY,
        f"Look for the reason on {process.host}: its output, and the kernel log (out of memory, a "
        "signal, a failed GPU).",
        more={"process": {"host": process.host, "pid": process.pid}},
    )
