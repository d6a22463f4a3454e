"""Finds what a job that stands still waits for: a dead process, an absent rank, a NIC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import alive
from transport.diagnose.cut_off import complaints, cut_off
from transport.diagnose.distinct import distinct
from transport.diagnose.facts import Facts, Process
from transport.diagnose.finding import Finding, Place
from transport.diagnose.windows import Windows
from transport.ground.units import time_text
from transport.trace.store import Store

Array = NDArray[Any]

# A process is silent if its trace has had no new record for the longer one of two times:
QUIET_PAUSES = 2.0  # this many times the longest pause between records that is known of it
QUIET_SHARE = 0.5  # this share of the time for which the whole job has stood still
# From this many iterations on, Standstill.later_ns leaves out the pauses of the first iteration.
STARTED = 3
# A process with less than this share of the others' messages is not behind: it has another role.
LAG_SHARE = 0.5
PAIRS_MIN = 3  # with fewer connections, it is not clear which end of the slowest one waits
PEER_DEAD = 5  # status of a connection whose peer was found dead (native/core/status.h)
DEAD_QUERY = "SELECT process, peer, end_ns FROM connections WHERE status = 5"
LAST_QUERY = "SELECT rank, host, pid, last_ns FROM processes ORDER BY last_ns"
OPEN_QUERY = (
    "SELECT o.process, o.function, o.sequence, o.begin_ns FROM operations o LEFT JOIN channels c "
    "ON c.process = o.process AND c.operation = o.id GROUP BY ALL "
    "HAVING count(c.end_ns) < count(c.id) OR count(c.id) = 0 ORDER BY o.begin_ns"
)


@dataclass(frozen=True, eq=False)
class Standstill:
    """Processes that make no progress at the end of a trace, although they are in operations.

    since_ns: when the first of them last made progress. open: their calls that have not ended, as
    rows of `calls`. longest_ns: the longest pause that a process of this job is known to have made;
    later_ns: the same without its first iteration, which opens connections.
    """

    since_ns: int
    open: Array
    longest_ns: int
    later_ns: int


def dead(store: Store, numbers: dict[int, int]) -> list[tuple[int, int, int]]:
    """For each process that peers found dead: its number, when, and how many peers found it."""
    rows = store.rows(
        "SELECT b.process, min(a.end_ns), count(DISTINCT a.process) FROM connections a "
        f"JOIN connections b ON a.pair = b.pair AND a.process <> b.process "
        f"WHERE a.status = {PEER_DEAD} GROUP BY ALL ORDER BY 2"
    )
    return [(numbers[one], int(when), peers) for one, when, peers in rows if one in numbers]


def crashes(facts: Facts, dead: Sequence[tuple[int, int, int]]) -> list[Finding]:
    """The crashes of processes that peers found dead."""
    # A process that closed its trace ended normally: peers report it only because it closed its
    # connections.
    found = [one for one in dead if facts.processes[one[0]].ended is not True]
    return [
        Finding(
            "crash",
            Place("rank", facts.name(one), (facts.processes[one].rank,)),
            when,
            facts.end_ns,
            0.99,
            True,
            f"The process of {facts.name(one)} on {facts.processes[one].host} died: "
            f"{'1 peer' if peers == 1 else f'{peers} peers'} lost the connection to it, and its "
            "trace has no end.",
            DEAD_QUERY,
            "Look for the reason on its host (out of memory, a signal, a failed GPU), "
            "and restart the job without that host if it repeats.",
        )
        for one, when, peers in found
    ]


def standstill_of(facts: Facts, windows: Windows) -> Standstill | None:
    """The standstill, if a process made no progress for longer than an iteration; else None.

    The trace of a program without NCCL has no open call. Then a process must have fallen silent
    before the others, must be out of reach of a peer, or its messages must be behind those of all
    others.
    """
    calls, edges = facts.calls, facts.edges
    # Progress: operations that begin, that end, and messages that start or arrive.
    process = np.concatenate([*[calls["process"]] * 3, edges["source"], edges["target"]])
    times = np.concatenate(
        [calls["end_ns"], calls["begin_ns"], calls["arrival_ns"], edges["end_ns"], edges["end_ns"]]
    )
    process, times = process[times >= 0], times[times >= 0]
    order = np.lexsort((times, process))
    process, times = process[order], times[order]
    if not times.size:
        return None
    usual_ns = windows.usual_ns
    begun_ns = int(windows.starts_ns[1]) if windows.count >= STARTED else 0
    same = process[1:] == process[:-1]
    later = same & (times[:-1] >= begun_ns)
    longest_ns, later_ns = (
        max(int(np.diff(times)[each].max(initial=0)), usual_ns) for each in (same, later)
    )
    last = np.full(len(facts.processes), -1, np.int64)
    np.maximum.at(last, process, times)
    open_ = np.flatnonzero(calls["end_ns"] < 0)
    open_ = open_[facts.end_ns - last[calls["process"][open_]] > usual_ns]
    stopped = [one for one, state in facts.states.items() if state in alive.STOPPED]
    if stopped:  # the kernel reports stopped processes: no minimum pause is needed
        return Standstill(int(last[stopped].min()), open_, longest_ns, later_ns)
    if open_.size:
        return Standstill(int(last[calls["process"][open_]].min()), open_, longest_ns, later_ns)
    found = Standstill(int(times.max()), open_, longest_ns, later_ns)
    shown = bool(_quiet(facts, found) or complaints(facts, found.since_ns - longest_ns))
    if not shown and facts.end_ns - found.since_ns > QUIET_PAUSES * longest_ns:
        shown = any(one.ended is False for one in facts.processes) and lagging(facts) is not None
    return found if shown else None


def _quiet(facts: Facts, stand: Standstill) -> list[int]:
    """Processes that have recorded nothing in the standstill, and have not closed their traces.

    Of a damaged trace it is not known whether it was closed, and when its process last recorded.
    """
    patience_ns = max(
        QUIET_PAUSES * stand.longest_ns, QUIET_SHARE * (facts.end_ns - stand.since_ns)
    )
    return [
        at
        for at, one in enumerate(facts.processes)
        if one.ended is False
        and one.whole
        and one.last_ns + patience_ns < facts.end_ns
        and one.last_ns <= stand.since_ns + stand.longest_ns
    ]


def hangs(facts: Facts, stand: Standstill, patience_ns: int) -> list[Finding]:
    """Finds why the job stands still. patience_ns: a shorter pause proves no hang."""
    paused_ns = facts.end_ns - stand.since_ns
    certain = paused_ns > patience_ns
    for find in (_stopped, _cut_off, _frozen, _absent, _stuck, _behind):
        found = find(facts, stand, certain, paused_ns)
        if found is not None:
            return [found]
    return []


def _stopped(facts: Facts, stand: Standstill, certain: bool, paused_ns: int) -> Finding | None:
    """A process that this host's kernel reports as stopped."""
    found = [one for one, state in sorted(facts.states.items()) if state in alive.STOPPED]
    if not found:
        return None
    name, process = facts.name(found[0]), facts.processes[found[0]]
    return Finding(
        "non_communication_hang",
        Place("rank", name, (process.rank,)),
        max(process.last_ns, stand.since_ns),
        facts.end_ns,
        0.99,
        True,
        f"The process of {name} (pid {process.pid}) is stopped (state T), and others wait for it.",
        LAST_QUERY,
        f"Resume it: kill -CONT {process.pid}; or end the debugger that stopped it.",
    )


def _cut_off(facts: Facts, stand: Standstill, certain: bool, paused_ns: int) -> Finding | None:
    """A process to which all paths fail: it is stopped, or its NIC or link is dead."""
    return cut_off(facts, stand.since_ns - stand.longest_ns, stand.since_ns)


def _frozen(facts: Facts, stand: Standstill, certain: bool, paused_ns: int) -> Finding | None:
    """A single process that records nothing any more, while all others still record something."""
    quiet = _quiet(facts, stand)
    others = [one.last_ns for at, one in enumerate(facts.processes) if at not in quiet]
    if len(quiet) != 1 or not others or max(others) <= stand.since_ns + stand.longest_ns:
        return None
    one = quiet[0]
    silent_ns = facts.end_ns - facts.processes[one].last_ns
    name, ranks = facts.name(one), (facts.processes[one].rank,)
    return Finding(
        "non_communication_hang",
        Place("rank", name, ranks),
        stand.since_ns,
        facts.end_ns,
        0.9 if certain else 0.6,
        certain,
        f"The process of {name} has recorded nothing for {time_text(silent_ns)}, and all others "
        f"make no progress since, although they run.",
        OPEN_QUERY,
        "See whether it is stopped (ps shows state T), swapping or frozen; "
        "py-spy dump shows where it is.",
        more={"paused_ns": paused_ns},
    )


def _absent(facts: Facts, stand: Standstill, certain: bool, paused_ns: int) -> Finding | None:
    """The ranks that did not call an operation in which others wait, and wait in none themselves.

    A rank that waits in another operation is a victim.
    """
    calls = facts.calls
    # A rank that still receives data may wait in a collective operation as well.
    inside = (calls["end_ns"] < 0) & (calls["kind"] == "collective")
    waiting = set(calls["process"][stand.open].tolist()) | set(calls["process"][inside].tolist())
    comms = _members(facts)
    order = stand.open[np.argsort(calls["begin_ns"][stand.open], kind="stable")]
    for instance in dict.fromkeys(calls["instance"][order].tolist()):
        here = np.flatnonzero(calls["instance"] == instance)
        there = set(calls["process"][here].tolist())
        expected = _expected(facts, int(here[0]), comms)
        absent = sorted(expected - there - waiting)
        if not absent:
            continue
        function, number = calls["function"][here[0]], int(calls["sequence"][here[0]])
        names = ", ".join(facts.name(one) for one in absent[:4])
        first = facts.processes[absent[0]]
        ranks = tuple(facts.processes[one].rank for one in absent)
        where = f" on {first.host}" if first.host and len(absent) == 1 else ""
        return Finding(
            "non_communication_hang",
            Place("rank", names, ranks),
            stand.since_ns,
            facts.end_ns,
            0.95 if certain else 0.6,
            certain,
            f"{len(there)} of {len(expected)} ranks wait in {function} number "
            f"{number}, and {names}{where} did not call it, and it waits in no other operation. "
            f"Nothing has happened for {time_text(paused_ns)}.",
            OPEN_QUERY,
            f"See what {facts.name(absent[0])} does: {_spy(first)} shows its stack.",
            more={"paused_ns": paused_ns, "operation": _operation(facts, int(here[0]), absent)},
        )
    return None


def _spy(process: Process) -> str:
    """The command that shows the stack of a process, as far as the trace knows it."""
    pid = f" --pid {process.pid}" if process.pid else ""
    return f"py-spy dump{pid} on {process.host or 'its host'}"


def _expected(facts: Facts, call: int, comms: dict[int, set[int]]) -> set[int]:
    """The processes that must call the operation that `call` belongs to."""
    comm, root = int(facts.calls["comm_id"][call]), int(facts.calls["root"][call])
    if facts.calls["kind"][call] != "p2p" or root < 0:
        return comms[comm]
    ends = ((comm, int(facts.calls["rank"][call])), (comm, root))
    return {facts.members[end] for end in ends if end in facts.members}


def _members(facts: Facts) -> dict[int, set[int]]:
    """Communicator -> the processes that have called one of its operations."""
    made: dict[int, set[int]] = {}
    pairs = zip(facts.calls["comm_id"].tolist(), facts.calls["process"].tolist(), strict=True)
    for comm, process in pairs:
        made.setdefault(comm, set()).add(process)
    return made


def _stuck(facts: Facts, stand: Standstill, certain: bool, paused_ns: int) -> Finding | None:
    """In an operation that all ranks called and that does not end, the pair furthest behind."""
    calls, edges = facts.calls, facts.edges
    if not stand.open.size:
        return None
    oldest = stand.open[np.argmin(calls["begin_ns"][stand.open])]
    instance = calls["instance"][oldest]
    here = np.flatnonzero(edges["instance"] == instance)
    function, number = calls["function"][oldest], int(calls["sequence"][oldest])
    place, kind = Place("pair", "unknown"), "communication_hang"
    behind = ""
    if here.size:
        least = here[np.lexsort((edges["end_ns"][here], edges["messages"][here]))[0]]
        source, target = int(edges["source"][least]), int(edges["target"][least])
        ranks = (facts.processes[source].rank, facts.processes[target].rank)
        place = Place("pair", f"{facts.name(source)} to {facts.name(target)}", ranks)
        behind = (
            f" The pair {place.name} is furthest behind, with {int(edges['messages'][least])} "
            "messages delivered."
        )
    return Finding(
        kind,
        place,
        stand.since_ns,
        facts.end_ns,
        0.8 if certain else 0.5,
        certain,
        f"All ranks called {function} number {number}, and it does not end: nothing has happened "
        f"for {time_text(paused_ns)}.{behind}",
        OPEN_QUERY,
        "Check the link and the NICs between these ranks.",
        more={"paused_ns": paused_ns, "operation": _operation(facts, int(oldest), [])},
    )


def _operation(facts: Facts, call: int, absent: Sequence[int]) -> dict[str, Any]:
    """The operation of a call, as JSON. absent: processes that did not call it."""
    calls = facts.calls
    there = calls["process"][calls["instance"] == calls["instance"][call]].tolist()
    return {
        "comm": int(calls["comm_id"][call]),
        "function": str(calls["function"][call]),
        "kind": str(calls["kind"][call]),
        "number": int(calls["sequence"][call]),
        "called": sorted({facts.processes[one].rank for one in there}),
        "absent": sorted(facts.processes[one].rank for one in absent),
    }


def _behind(facts: Facts, stand: Standstill, certain: bool, paused_ns: int) -> Finding | None:
    """Without NCCL: the rank whose messages, to it and from it, are behind those of all others.

    A rank that neither sends nor receives makes its neighbours wait, and one step later their
    neighbours.
    """
    if stand.open.size:
        return None
    found = lagging(facts)
    if found is None:
        return None
    one, own, others = found
    name, process = facts.name(one), facts.processes[one]
    return Finding(
        "non_communication_hang",
        Place("rank", name, (process.rank,)),
        stand.since_ns,
        facts.end_ns,
        0.9 if certain else 0.6,
        certain,
        f"Nothing has happened for {time_text(paused_ns)}. Before, {own} messages had gone over "
        f"each connection of {name}, and {others} or more over all others: they wait for it.",
        LAST_QUERY,
        f"See what {name} does: py-spy dump --pid {process.pid} on {process.host} shows its stack.",
        more={"paused_ns": paused_ns},
    )


def lagging(facts: Facts) -> tuple[int, int, int] | None:
    """The process each of whose connections carried fewer messages than every other connection.

    Also the number of messages over each of its connections, and the least number over the others.
    None if there is no such process, or if its number is below LAG_SHARE of that of the others:
    then it has another role in the program.
    """
    edges = facts.edges
    pairs, which = distinct(edges["source"], edges["target"])
    count = np.bincount(which, weights=edges["messages"])
    if len(count) < PAIRS_MIN or count.min() == count.max():
        return None
    behind = count == count.min()
    if count.min() < LAG_SHARE * count[~behind].min():
        return None
    found = [
        at
        for at in range(len(facts.processes))
        if (behind == ((pairs[0] == at) | (pairs[1] == at))).all()
    ]
    return (found[0], int(count.min()), int(count[~behind].min())) if len(found) == 1 else None
