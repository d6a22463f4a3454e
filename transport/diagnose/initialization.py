"""Finds jobs that do not get past their start: some ranks wait for others that never come.

NCCL makes a communicator only when all of its ranks have come. A rank that does not come, because
its process died, is elsewhere in the program or cannot reach the others, makes all others wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.diagnose.hang import LAST_QUERY
from transport.ground.units import time_text
from transport.trace.notes import ranges
from transport.trace.store import Store

# What was recorded for a shorter time may be of a job that is starting.
PATIENCE_S = 60
NAMED_MAX = 4
STARTED = (
    "SELECT m.comm_id, m.ranks, m.rank, e.process, e.status, e.time_ns FROM events e JOIN comms m "
    "ON m.process = e.process AND m.id = e.value WHERE e.what = 'init_started' "
    "AND m.ranks IS NOT NULL AND m.rank IS NOT NULL ORDER BY ALL"
)
COMMS = "SELECT comm_id, rank, process FROM comms WHERE ranks IS NOT NULL AND rank IS NOT NULL"
WHOLE = "SELECT process, begin_ns FROM comms WHERE ranks = ?"
BOOTSTRAP = (
    "SELECT p.host, p.pid FROM events e JOIN processes p USING (process) "
    "WHERE e.what = 'bootstrap' ORDER BY ALL"
)
OPEN_QUERY = "SELECT process, what, time_ns, value FROM events WHERE what = 'init_started'"
ADVICE = (
    "See whether {who} runs, and where it is: py-spy dump on its host, and its own log. Compare "
    "WORLD_SIZE, MASTER_ADDR and NCCL_SOCKET_IFNAME of all hosts; weft doctor --peer tests the "
    "network between two of them."
)


@dataclass
class _Init:
    """A communicator whose initialisation has not ended. started: rank in it -> process.

    age_s: for how long no log of it had been written when they were read.
    """

    ranks: int
    started: dict[int, int] = field(default_factory=dict)
    complete: set[int] = field(default_factory=set)
    age_s: int = 1 << 16
    since_ns: int = -1

    @property
    def absent(self) -> list[int]:
        return sorted(set(range(self.ranks)) - self.started.keys() - self.complete)


def initialization_hangs(
    store: Store, facts: Facts, numbers: dict[int, int], missing: Sequence[int]
) -> list[Finding]:
    """The finding that a job hangs at its start, if it does.

    numbers: number of a process in the trace -> its index in the facts. missing: ranks of the job
    without a trace.
    """
    for find in (_by_logs, _by_dumps, _by_traces):
        found = find(store, facts, numbers, missing)
        if found is not None:
            return [found]
    return []


def _by_logs(
    store: Store, facts: Facts, numbers: dict[int, int], missing: Sequence[int]
) -> Finding | None:
    """NCCL's log tells which ranks began to make a communicator, and which have made it."""
    inits = _inits(store, numbers)
    if not inits:
        return _in_bootstrap(store, facts)
    one = max(inits, key=lambda each: (each.ranks, len(each.started)))
    named = sum(each.rank >= 0 for each in facts.processes)
    whole = one.ranks >= named + len(missing)
    began, done = _named(one.started, whole), f"{len(one.complete)} of them finished"
    text = f"{len(one.started) + len(one.complete)} of {one.ranks} ranks began to initialise a "
    text += f"communicator of NCCL (Init START), and {done if one.complete else 'none finished'}"
    old = one.age_s >= PATIENCE_S
    # If some finished, all came: the log may lack lines of the others.
    certain = old and not one.complete
    ranks: Iterable[int] = one.started if one.complete else one.absent or one.started
    if one.complete:
        who = began
        text += f": {who} did not finish, although all came, or its line is missing."
    elif one.absent:
        who = _named(one.absent, whole)
        text += f": {who} never came; no line names it."
        text += _bootstrapped(store)
        # Each rank may have a log of its own, and that of the absent one may be elsewhere.
        certain = old and _log_files(store) < max(len(facts.processes), 2)
        if old and not certain:
            text += " Its log may be elsewhere, as each rank here has a log of its own."
    else:
        who = "each of its processes"
        text += ", although all came: they may not reach each other."
    text += f" Nothing was written to the log for {time_text(one.age_s * 1e9, 2)}." if old else ""
    place = Place("rank", _named(ranks, whole), tuple(sorted(ranks)) if whole else ())
    if not one.absent and not one.complete:
        place = Place("network", f"a communicator of {one.ranks} ranks", place.ranks)
    since_ns = one.since_ns if one.since_ns >= 0 else facts.end_ns
    return _finding(facts, place, since_ns, certain, text, ADVICE.format(who=who), OPEN_QUERY)


def _in_bootstrap(store: Store, facts: Facts) -> Finding | None:
    """Processes that came to the bootstrap, where NCCL names no rank before all have come."""
    came = _bootstrapped(store)
    if not came:
        return None
    text = f"No communicator of NCCL was begun.{came} The log does not tell who is missing."
    place = Place("network", "NCCL's bootstrap")
    advice = ADVICE.format(who="each rank of the job")
    return _finding(facts, place, facts.end_ns, False, text, advice, OPEN_QUERY)


def _inits(store: Store, numbers: dict[int, int]) -> list[_Init]:
    """The communicators whose initialisation has not ended."""
    found: dict[int, _Init] = {}
    for comm, size, rank, process, age_s, at_ns in store.rows(STARTED):
        one = found.setdefault(comm, _Init(size))
        one.started[rank] = numbers.get(process, -1)
        one.age_s = min(one.age_s, int(age_s or 0))
        if at_ns is not None:
            one.since_ns = max(one.since_ns, at_ns)
    for comm, rank, _ in store.rows(COMMS):
        if comm in found and rank not in found[comm].started:
            found[comm].complete.add(rank)
    # Old versions of NCCL do not tell the id of a communicator that they begin to make.
    alone = [one for one in found.values() if len(one.started) == 1 and not one.complete]
    joined = [one for one in found.values() if one not in alone]
    of_size: dict[int, list[_Init]] = {}
    for one in alone:
        same = of_size.setdefault(one.ranks, [])
        (rank,) = one.started
        fits = [each for each in same if rank not in each.started]
        if not fits:
            same.append(one)
            continue
        fits[0].started |= one.started
        fits[0].age_s = min(fits[0].age_s, one.age_s)
        fits[0].since_ns = max(fits[0].since_ns, one.since_ns)
    return [*joined, *(one for same in of_size.values() for one in same)]


def _log_files(store: Store) -> int:
    ((count,),) = store.rows("SELECT count(DISTINCT trace) FROM processes")
    return int(count)


def _bootstrapped(store: Store) -> str:
    """A sentence on processes that came to NCCL's bootstrap and made no communicator."""
    rows = store.rows(BOOTSTRAP)
    if not rows:
        return ""
    named = ", ".join(f"{pid} on {host}" for host, pid in rows[:NAMED_MAX])
    more = f" and {len(rows) - NAMED_MAX} more" if rows[NAMED_MAX:] else ""
    return f" These processes came to the bootstrap only: {named}{more}."


def _by_dumps(
    store: Store, facts: Facts, numbers: dict[int, int], missing: Sequence[int]
) -> Finding | None:
    """Dumps of the Flight Recorder in which no call has ended, and the first one waits."""
    ((others,),) = store.rows("SELECT count(*) FROM processes WHERE trace NOT LIKE 'flight %'")
    calls = facts.calls
    if others or not missing or not len(calls["process"]):
        return None
    first = (calls["sequence"].astype(np.int64) <= 1).all() and (calls["end_ns"] < 0).all()
    if not first:
        return None
    who = _named(missing, True)
    text = (
        f"{len(facts.processes)} of {len(facts.processes) + len(missing)} ranks wait in the first "
        f"call of a communicator, {calls['function'][0]}, and no call has ended. {who} left no "
        "dump: it never came, or its dump is elsewhere."
    )
    place = Place("rank", who, tuple(missing))
    since_ns = int(calls["begin_ns"].max(initial=-1))
    return _finding(facts, place, since_ns, False, text, ADVICE.format(who=who), LAST_QUERY)


def _by_traces(
    store: Store, facts: Facts, numbers: dict[int, int], missing: Sequence[int]
) -> Finding | None:
    """Traces of weft with processes that run, and made no operation and no message."""
    ((others,),) = store.rows("SELECT count(*) FROM processes WHERE trace LIKE '% %'")
    running = [one for one in facts.processes if one.ended is False]
    if others or not running or len(facts.calls["process"]) or len(facts.edges["source"]):
        return None
    traced = {one.rank for one in running}
    # Only a communicator of all ranks tells who is missing.
    size = len(facts.processes) + len(missing)
    made = store.rows(WHOLE, size)
    if not made and store.rows(COMMS):
        return None
    came = {facts.processes[numbers[one]].rank for one, _ in made if one in numbers}
    since_ns = max((at_ns for _, at_ns in made if at_ns is not None), default=-1)
    if since_ns < 0:
        since_ns = min((one.first_ns for one in running if one.first_ns > 0), default=facts.end_ns)
    waited_ns = facts.end_ns - since_ns
    late = sorted(traced - came) if came else []
    absent = [*late, *missing]
    if not absent or -1 in absent:
        return None
    who = _named(absent, True)
    text = f"{len(running)} processes have recorded no operation and no message"
    text += f" for {time_text(waited_ns)}" if waited_ns > 0 else ""
    if came:
        text += f". {_named(came, True)} made a communicator, {who} did not."
    else:
        text += ", and made no communicator."
    if missing:
        text += f" {_named(missing, True)} left no trace: it never came, or it writes elsewhere."
    certain = bool(late) and not missing and waited_ns >= PATIENCE_S * 10**9
    place = Place("rank", who, tuple(sorted(absent)))
    return _finding(facts, place, since_ns, certain, text, ADVICE.format(who=who), LAST_QUERY)


def _named(ranks: Iterable[int], whole: bool) -> str:
    """Ranks as text. whole: of the job; otherwise of a communicator."""
    known = sorted(ranks)
    of = "" if whole else " of it"
    return f"rank{'s' * (len(known) != 1)} {ranges(known)}{of}"


def _finding(
    facts: Facts, place: Place, since_ns: int, certain: bool, text: str, advice: str, query: str
) -> Finding:
    return Finding(
        "initialization_hang",
        place,
        since_ns,
        max(facts.end_ns, since_ns),
        0.9 if certain else 0.6,
        certain,
        text,
        query,
        advice,
    )
