"""What statuses of NCCL's RAS say of another source's verdict, and other sources of theirs.

RAS counts the operations of each function. So it tells whether ranks launched as many as others,
and not which call of another source is meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from transport.diagnose.finding import Finding
from transport.diagnose.opinion import AGREES, DISAGREES, UNKNOWN, Opinion
from transport.diagnose.ras_finding import STILL_NS
from transport.diagnose.ras_statuses import Statuses
from transport.diagnose.told import Group, Told
from transport.ground.units import time_text
from transport.trace.nccl_ras import RasComm
from transport.trace.notes import ranges

WAITED_FOR = ("crash", "non_communication_hang", "initialization_hang")


def of_ras(main: Finding, ras: Told) -> Opinion | None:
    """What RAS says of a verdict beside its own findings; None: nothing."""
    statuses = ras.statuses
    if statuses is None or main.kind not in WAITED_FOR or not main.place.ranks:
        return None
    silent = sorted(set(main.place.ranks) & _silent(statuses))
    if silent:
        return Opinion(ras.name, AGREES, f"{_named(silent)} did not answer it")
    if main.kind == "initialization_hang":
        return _of_start(statuses, main, ras.name)
    operation = main.more.get("operation")
    if operation is None or operation["kind"] != "collective" or not operation["absent"]:
        return None
    return _of_operation(statuses, operation, ras)


def of_calls(operation: dict[str, Any], other: Told) -> Opinion | None:
    """What the calls that another source has tell of an operation that, as RAS says, some ranks did
    not launch; None: nothing."""
    absent, called = set(operation["absent"]), set(operation["called"])
    group = _group(operation, other)
    if group is None:
        return None
    late = sorted(rank for rank in absent if rank in group.calls and group.calls[rank].keys)
    more = sorted(rank for rank in called if rank in group.calls and group.calls[rank].keys)
    if not late or not more:
        return None
    own = max(group.calls[rank].last for rank in late)
    most = min(group.calls[rank].last for rank in more)
    if own >= most:
        return None
    text = f"{_named(late)} called number {own} last there, and {_named(more)} number {most}"
    return Opinion(other.name, AGREES, f"{text} or more")


def _group(operation: dict[str, Any], other: Told) -> Group | None:
    """The communicator of an operation in another source: by its id, or by its ranks."""
    same = other.groups.get(operation["comm"])
    if same is not None:
        return same
    ranks = {*operation["absent"], *operation["called"]}
    fits = [
        one
        for one in other.groups.values()
        if one.members and one.members <= ranks and one.size in (0, len(ranks))
    ]
    return fits[0] if len(fits) == 1 else None


def _of_start(statuses: Statuses, main: Finding, name: str) -> Opinion:
    launched = {
        statuses.rank_of(comm, one)
        for comm in statuses.last.comms
        for one in comm.ranks
        if one.launched
    }
    came = sorted(launched & set(main.place.ranks))
    if came:
        return Opinion(name, DISAGREES, f"{_named(came)} launched operations")
    return Opinion(name, AGREES, f"{_named(main.place.ranks)} launched nothing")


def _of_operation(statuses: Statuses, operation: dict[str, Any], ras: Told) -> Opinion | None:
    comm, function = _comm(statuses, operation), operation["function"]
    if comm is None:
        return None
    counts = {
        statuses.rank_of(comm, one): one.counts[function]
        for one in comm.ranks
        if function in one.counts
    }
    late = sorted(set(operation["absent"]) & counts.keys())
    others = sorted(counts.keys() - set(late))
    if not late or not others:
        return None
    own, most = max(counts[rank] for rank in late), max(counts[rank] for rank in others)
    ahead = [rank for rank in others if counts[rank] > own]
    what = f"{_named(late)} launched {own} {function}s there"
    if ahead:
        least = min(counts[rank] for rank in ahead)
        more = f"{least}" if least == most else f"{least} to {most}"
        return Opinion(ras.name, AGREES, f"{what}, and {_named(ahead)} {more}")
    still_ns = statuses.still_ns(comm)
    if still_ns >= STILL_NS:
        text = f"{what}, as many as the others, and nothing moved for {time_text(still_ns, 2)}"
        return Opinion(ras.name, DISAGREES, text)
    text = f"{what}, as many as the others, at a moment that may have been before"
    return Opinion(ras.name, UNKNOWN, text)


def _comm(statuses: Statuses, operation: dict[str, Any]) -> RasComm | None:
    """The communicator of another source's operation: by its id, or by its ranks."""
    same = [one for one in statuses.last.comms if one.comm_id == operation["comm"]]
    if not same:
        ranks = {*operation["absent"], *operation["called"]}
        same = [one for one in statuses.last.comms if _ranks(statuses, one) == ranks]
    return same[0] if len(same) == 1 else None


def _ranks(statuses: Statuses, comm: RasComm) -> set[int]:
    return {statuses.rank_of(comm, one) for one in comm.every}


def _silent(statuses: Statuses) -> set[int]:
    """The ranks whose process does not answer."""
    return {
        statuses.rank_of(comm, one)
        for comm in statuses.last.comms
        for one in comm.missing
        if not one.answers
    }


def _named(ranks: Iterable[int]) -> str:
    known = sorted(ranks)
    return f"rank{'s' * (len(known) != 1)} {ranges(known)}"
