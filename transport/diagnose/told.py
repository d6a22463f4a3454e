"""What one source tells of a job's collectives, and which communicators of two sources are one.

Sources number communicators and calls in their own ways: the Flight Recorder by process group from
1, logs by the calls that they show, weft's trace as NCCL does. So communicators are matched by id,
by their ranks, and by the order of functions and sizes, which also tells how the numbers differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.facts import SIMULATED_NS_MAX, Facts
from transport.diagnose.ras_statuses import Statuses

CALLS_MAX = 400  # of the last calls of a rank, so many are compared
OVERLAP_MIN = 3  # calls that must agree, if both sources have so many
Key = tuple[str, int, str]  # function, count, datatype


@dataclass(frozen=True)
class Calls:
    """The collectives of a rank in a communicator, by their numbers. begin_ns: -1 if unknown."""

    keys: Mapping[int, Key]
    begin_ns: Mapping[int, int]
    said: Mapping[int, int]  # number -> the number as the source says it

    @property
    def first(self) -> int:
        return min(self.keys)

    @property
    def last(self) -> int:
        return max(self.keys)


@dataclass(frozen=True)
class Group:
    """A communicator. members: its ranks of the job that the source has; calls: by rank."""

    comm_id: int
    size: int
    members: frozenset[int]
    calls: Mapping[int, Calls]


@dataclass(frozen=True, eq=False)
class Told:
    """What one source tells. stacks: Python stack of a rank's last call, the innermost first.

    statuses: of NCCL's RAS, which counts calls and does not list them; None: another source.
    """

    name: str
    facts: Facts
    diagnosis: Diagnosis
    stacks: Mapping[int, list[str]] = field(default_factory=dict)
    statuses: Statuses | None = None

    @property
    def ranks(self) -> set[int]:
        return {one.rank for one in self.facts.processes if one.rank >= 0}

    @cached_property
    def groups(self) -> dict[int, Group]:
        return groups_of(self.facts)


@dataclass(frozen=True)
class Match:
    """A communicator of another source. shift: what to add to a number to get that of the other."""

    group: Group
    shift: int
    how: str


def groups_of(facts: Facts) -> dict[int, Group]:
    """The communicators of a source by id, with the collectives of each rank."""
    ranks = [one.rank for one in facts.processes]
    members: dict[int, set[int]] = {}
    for (comm, _), process in facts.members.items():
        members.setdefault(comm, set()).add(ranks[process])
    calls, sizes = facts.calls, dict[int, int]()
    rows: dict[tuple[int, int], list[int]] = {}
    for at, (comm, process, kind, size) in enumerate(
        zip(
            *(calls[name].tolist() for name in ("comm_id", "process", "kind", "ranks")), strict=True
        )
    ):
        sizes[comm] = max(sizes.get(comm, 0), size)
        if kind == "collective" and ranks[process] >= 0:
            rows.setdefault((comm, ranks[process]), []).append(at)
    each: dict[int, dict[int, list[int]]] = {comm: {} for comm in members}
    for (comm, rank), mine in rows.items():
        each.setdefault(comm, {})[rank] = mine
    return {
        comm: Group(
            comm,
            sizes.get(comm, 0),
            frozenset(members.get(comm, set()) | of_rank.keys()),
            _calls_of(facts, of_rank),
        )
        for comm, of_rank in each.items()
    }


def _calls_of(facts: Facts, of_rank: Mapping[int, list[int]]) -> dict[int, Calls]:
    """The calls of each rank. Numbers are the source's own if they increase from call to call; NCCL
    counts each function by itself, so then the place in the order counts."""
    calls = facts.calls
    said = {rank: calls["sequence"][mine].astype(int).tolist() for rank, mine in of_rank.items()}
    steady = all(a < b for one in said.values() for a, b in pairwise(one))
    made = {}
    for rank, mine in of_rank.items():
        numbers = said[rank] if steady else list(range(len(mine)))
        at = list(zip(numbers, mine, strict=True))[-CALLS_MAX:]
        names = (calls["function"], calls["count"], calls["datatype"])
        keys = {n: (str(names[0][row]), int(names[1][row]), str(names[2][row])) for n, row in at}
        begins = {number: int(calls["begin_ns"][row]) for number, row in at}
        own = {number: int(calls["sequence"][row]) for number, row in at}
        made[rank] = Calls(keys, begins, own)
    return made


def matched(one: Told, group: Group, other: Told) -> Match | None:
    """The communicator of `other` that is `group` of `one`; None: none, or it is not clear."""
    common = one.ranks & other.ranks
    made = []
    for each in other.groups.values():
        if group.size and each.size and group.size != each.size:
            continue
        if (group.members & common) != (each.members & common):
            continue
        found = _aligned(group, each)
        if found is not None:
            made.append((found[1], Match(each, found[0], "by its ranks")))
    same = [match for _, match in made if match.group.comm_id == group.comm_id]
    if same:
        return replace(same[0], how="by its id")
    if len(made) == 1:
        return made[0][1]
    made.sort(key=lambda each: -each[0])
    if not made or made[0][0] == made[1][0]:
        return None
    return replace(made[0][1], how="by its ranks, and by the order of functions and sizes")


def _aligned(one: Group, other: Group) -> tuple[int, int] | None:
    """The shift of the numbers of two communicators, and how many calls agree with it."""
    common = sorted(one.calls.keys() & other.calls.keys())
    pairs = [(rank, rank) for rank in common]
    if not pairs:  # ranks of one communicator make the same calls
        pairs = [(a, b) for a in list(one.calls)[:1] for b in list(other.calls)[:1]]
    for a, b in pairs:
        found = _shift(one.calls[a], other.calls[b])
        if found is not None:
            return found
    return None


def _shift(one: Calls, other: Calls) -> tuple[int, int] | None:
    if not one.keys or not other.keys:
        return None
    least = min(len(one.keys), len(other.keys), OVERLAP_MIN)
    fits: dict[int, int] = {}
    for shift in range(other.first - one.last, other.last - one.first + 1):
        overlap = 0
        for number, key in one.keys.items():
            there = other.keys.get(number + shift)
            if there is not None and there != key:
                break
            overlap += there is not None
        else:
            if overlap >= least:
                fits[shift] = overlap
    if not fits:
        return None
    # Numbers begin with 0 or 1: if both sources have the first call, these are the same.
    first = other.first - one.first
    if first in fits and max(one.first, other.first) <= 1:
        return first, fits[first]
    if len(fits) > 1:
        apart = {shift: _apart_ns(one, other, shift) for shift in fits}
        known = {shift: ns for shift, ns in apart.items() if ns is not None}
        if not known:
            return None
        nearest = min(known, key=lambda shift: known[shift])
        return nearest, fits[nearest]
    return next(iter(fits.items()))


def _apart_ns(one: Calls, other: Calls, shift: int) -> float | None:
    """The usual time between the same calls of two sources; None: their times are not known."""
    times = [
        abs(ns - other.begin_ns[number + shift])
        for number, ns in one.begin_ns.items()
        if min(ns, other.begin_ns.get(number + shift, -1)) > SIMULATED_NS_MAX
    ]
    return median(times) if times else None
