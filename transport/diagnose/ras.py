"""Judges the statuses of NCCL's RAS: processes that do not answer, and ranks that launched less.

RAS tells how many operations each rank has launched, not when. So one status shows a moment, in
which ranks of a running job are a few operations apart; only what is the same in a later one is
certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.evidence import Evidence, Lack
from transport.diagnose.finding import Finding, Place, graded
from transport.diagnose.ras_finding import IN_PROGRESS, REMOTE, RESULTS, STILL_NS, SURE_NS, made
from transport.diagnose.ras_missing import missing_processes
from transport.diagnose.ras_statuses import Behind, Differs, Statuses, identity, title
from transport.ground.units import time_text
from transport.trace.nccl_ras import RasRank, RasStatus

STARTING_NS = SURE_NS  # initialisations of large jobs take a while
NOT_TIMED = Lack(
    "NCCL RAS counts what ranks launched, and tells no times and no sends and receives",
    "record the job with WEFT_TRACE to judge its speed",
)
ONCE = Lack("one status of RAS shows a moment", "ask again some seconds later, and give both")


def judged(each: Sequence[RasStatus]) -> Diagnosis:
    """The diagnosis by statuses of one job, in the order of their times."""
    statuses = Statuses(each)
    missing, left = missing_processes(statuses)
    found = [*missing, *_errors(statuses, remote=not missing)]
    if not missing:
        found = [*_initialising(statuses), *found]
    if not found:
        found = [*_mismatches(statuses), *_late(statuses)]
    found += left
    if not found:
        found = _standing(statuses)
    every = {identity(comm, one) for comm in statuses.last.comms for one in comm.ranks}
    lacks = (NOT_TIMED,) if len(each) > 1 else (NOT_TIMED, ONCE)
    size = statuses.last.world_size or len(statuses.last.processes)
    return Diagnosis(
        tuple(sorted(found, key=lambda one: not one.certain)),
        0,
        0,
        len(every),
        (),
        missing=max(size - len(every), 0),
        evidence=Evidence(lacks=lacks),
    )


def _late(statuses: Statuses) -> list[Finding]:
    """Ranks that launched less than others in a communicator, and more in none, in which they would
    wait themselves."""
    every = statuses.behind()
    waiting = {identity(each.comm, one) for each in every for one in each.waiting}
    found = []
    for each in every:
        late, still_ns = [], statuses.still_ns(each.comm)
        for one in each.least:
            idle_ns = statuses.idle_ns(identity(each.comm, one))
            # Ranks that go on are not at the same place.
            goes_on = len(statuses.each) > 1 and not idle_ns
            if identity(each.comm, one) not in waiting and not goes_on:
                late.append(one)
                still_ns = min(still_ns, idle_ns)
        if late and (still_ns or len(statuses.each) == 1):
            found.append((still_ns, _is_late(statuses, each, late, still_ns)))
    least = [identity(each.comm, one) for each in every for one in each.least]
    idle = all(statuses.idle_ns(one) >= STILL_NS for one in least)
    if every and idle and waiting.issuperset(least):
        return [_in_a_circle(statuses, every)]
    # A rank that is behind in its communicators of two and of all is one finding.
    best: dict[str, tuple[int, Finding]] = {}
    for ns, finding in found:
        known = best.get(finding.place.name)
        if known is None or _weight(ns, finding) > _weight(*known):
            best[finding.place.name] = (ns, finding)
    return [finding for _, finding in best.values()]


def _weight(still_ns: int, one: Finding) -> tuple[bool, float, int]:
    return one.certain, one.weight, still_ns


def _is_late(statuses: Statuses, each: Behind, late: Sequence[RasRank], still_ns: int) -> Finding:
    name, comm = statuses.named(each.comm, late), each.comm
    others = statuses.named(comm, each.waiting)
    what = " and ".join(f"{function} {number}" for function, number in each.next_ones.items())
    text = f"{name} did not launch {what} of {title(comm)} of {comm.size} ranks, and {others} did."
    if still_ns:
        text += f" None of its ranks launched anything for {time_text(still_ns, 2)}."
        text += " A rank that is slow, or saves a checkpoint meanwhile, looks the same."
    else:
        text += " Ranks of a running job are some operations apart: ask RAS again to tell."
    function, number = next(iter(each.next_ones.items()))
    operation = {
        "comm": comm.comm_id,
        "function": function,
        "kind": "collective",
        "number": number,
        "called": list(statuses.ranks_of(comm, each.waiting)),
        "absent": list(statuses.ranks_of(comm, late)),
    }
    found = made(
        statuses,
        "non_communication_hang",
        Place("rank" if len(late) == 1 else "ranks", name, statuses.ranks_of(comm, late)),
        still_ns,
        still_ns >= STILL_NS,
        text,
        f"See what {name} does: py-spy dump on its host shows its stack. Dumps of the Flight "
        "Recorder show the calls of all ranks.",
        operation=operation,
    )
    return replace(found, weight=float(len(each.waiting)))


def _in_a_circle(statuses: Statuses, every: Sequence[Behind]) -> Finding:
    """Each rank that is behind in a communicator waits in another one."""
    first, still_ns = every[0], min(statuses.still_ns(one.comm) for one in every)
    parts = [
        f"{statuses.named(one.comm, one.least)} launched less than "
        f"{statuses.named(one.comm, one.waiting)} in {title(one.comm)}"
        for one in every[:4]
    ]
    ranks = statuses.ranks_of(first.comm, first.least)
    text = f"Ranks wait for each other: {'; '.join(parts)}. Nothing moved for "
    text += f"{time_text(still_ns, 2)}. They may call communicators in different orders."
    return made(
        statuses,
        "mismatch",
        Place("rank", statuses.named(first.comm, first.least), ranks),
        still_ns,
        False,
        text,
        "Compare the order in which the program calls its communicators on these ranks: py-spy "
        "dump on each, or dumps of the Flight Recorder.",
    )


def _mismatches(statuses: Statuses) -> list[Finding]:
    return [_mismatch(statuses, one) for one in statuses.differing()]


def _mismatch(statuses: Statuses, each: Differs) -> Finding:
    comm, still_ns = each.comm, statuses.still_ns(each.comm)
    # With two ranks, or halves, either side may be the wrong one.
    tied = len(each.odd) >= len(each.usual)
    wrong = (*each.usual, *each.odd) if tied else each.odd
    name, odd, usual = statuses.named(comm, wrong), each.odd[0].counts, each.usual[0].counts
    every = {key: odd.get(key, 0) - usual.get(key, 0) for key in [*odd, *usual]}
    more = " and ".join(f"{n} more {key}" for key, n in every.items() if n > 0)
    less = " and ".join(f"{-n} less {key}" for key, n in every.items() if n < 0)
    text = f"{statuses.named(comm, each.odd[:1])} launched {more} and {less} in {title(comm)} than "
    text += f"{statuses.named(comm, each.usual)}. All ranks of it have to call the same."
    if still_ns:
        text += f" Nothing moved there for {time_text(still_ns, 2)}."
    else:
        text += " Counts that change while RAS reads them may look so: ask RAS again to tell."
    return made(
        statuses,
        "mismatch",
        Place("rank" if len(wrong) == 1 else "ranks", name, statuses.ranks_of(comm, wrong)),
        still_ns,
        still_ns >= STILL_NS,
        text,
        "Compare what the program calls on these ranks: a branch that depends on the rank or on "
        "data. Dumps of the Flight Recorder show sizes and stacks.",
    )


def _initialising(statuses: Statuses) -> list[Finding]:
    """Communicators that are not made yet although all of their ranks have come."""
    found = []
    for comm in statuses.comms:
        begun = [one for one in comm.ranks if one.init_state == IN_PROGRESS]
        if not begun:
            continue
        still_ns = statuses.still_ns(comm)
        text = f"{statuses.named(comm, begun)} did not finish making {title(comm)} of {comm.size} "
        text += "ranks. All came; they may not reach each other."
        text += f" This lasted for {time_text(still_ns, 2)}." if still_ns else ""
        found.append(
            made(
                statuses,
                "initialization_hang",
                Place("network", title(comm), statuses.ranks_of(comm, begun)),
                still_ns,
                still_ns >= STARTING_NS,
                text,
                "See the log of each rank (NCCL_DEBUG=INFO); weft doctor --peer tests the network "
                "between two hosts.",
            )
        )
    return found


def _errors(statuses: Statuses, *, remote: bool) -> list[Finding]:
    """The error that NCCL of a rank reported. remote: also that a peer of it failed."""
    found = []
    for comm in statuses.comms:
        for one in comm.ranks:
            state = one.init_state if one.init_state != IN_PROGRESS else 0
            error = one.error or state
            if error in (0, IN_PROGRESS) or (error == REMOTE and not remote):
                continue
            name = statuses.named(comm, [one])
            said = RESULTS.get(error, "an error that weft does not know")
            text = f"NCCL of {name} reported error {error} ({said}) of {title(comm)}."
            place = Place("rank", name, statuses.ranks_of(comm, [one]))
            if error == REMOTE:
                text += " One of its peers ended, or a connection broke; RAS does not tell which."
                place = Place("network", f"{title(comm)} of {comm.size} ranks")
            one_found = made(
                statuses,
                "communication_hang",
                place,
                0,
                False,
                text,
                f"See the log of {name} (NCCL_DEBUG=WARN), which says what failed.",
                status=error,
            )
            found.append(replace(one_found, certain=True, confidence_of_all=0.9))
    return sorted(found, key=lambda one: one.more["status"] == REMOTE)[:1]


def _standing(statuses: Statuses) -> list[Finding]:
    """The suspicion that all ranks wait in operations that do not end."""
    used = [one for one in statuses.comms if any(rank.launched for rank in one.ranks)]
    still_ns = min((statuses.still_ns(one) for one in used), default=0)
    if still_ns < STILL_NS:
        return []
    size = max(one.size for one in used)
    text = f"No rank launched a collective for {time_text(still_ns, 2)}, and in each communicator "
    text += "all launched as many. Either the last ones do not end, or the program does something "
    text += "else, such as sends and receives, which RAS does not count."
    place = Place("network", f"{len(used)} communicators of up to {size} ranks")
    found = made(
        statuses,
        "communication_hang",
        place,
        still_ns,
        False,
        text,
        "See what the ranks do: py-spy dump on their hosts. Dumps of the Flight Recorder tell "
        "whether the last operation ended.",
    )
    return [graded(found, False)]
