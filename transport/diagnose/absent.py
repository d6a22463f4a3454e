"""Reconstructs when ranks without a trace came to collectives, from when their data came to peers.

A rank that comes late makes all others wait, and its own trace may be the one that is missing. The
first data that a peer receives from it in an operation tells when it came: the time of that, minus
the time that first data usually takes from a rank that has come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts, Process
from transport.diagnose.finding import Finding
from transport.diagnose.windows import medians
from transport.trace.store import Store

Array = NDArray[Any]

CONFIDENCE_MAX = 0.9  # of what is said of a rank without a trace
# If a peer had the data sooner than this many times the usual time after it came itself, it was the
# peer that came late, and the data had been there.
WAITED_TIMES = 1.5

# The first data that each operation received from each peer.
FIRST = """
SELECT c.process, c.operation, m.comm_id, c.peer, min(g.end_ns) AS first_ns
FROM messages g JOIN channels c ON c.process = g.process AND c.id = g.channel_id
JOIN comms m ON m.process = c.process AND m.id = c.comm
WHERE NOT g.sends AND g.bytes > 0 AND g.end_ns IS NOT NULL AND c.operation IS NOT NULL
  AND m.comm_id IS NOT NULL
GROUP BY ALL
"""
COPIED = ("comm_id", "ranks", "function", "kind", "sequence", "count", "datatype", "root", "relays")


@dataclass(frozen=True)
class Absent:
    """The facts with calls of absent ranks, as processes behind the others. ranks: theirs."""

    facts: Facts
    ranks: tuple[int, ...] = ()


def with_absent(store: Store, facts: Facts, numbers: dict[int, int], ranks: list[int]) -> Absent:
    """Adds the calls of ranks without a trace, as far as peers received from them.

    numbers: number of a process in the trace -> its index in the facts. ranks: the absent ones.
    """
    if not ranks or not facts.has_operations or not len(facts.calls["process"]):
        return Absent(facts)
    first = store.arrays(FIRST)
    rows = _Rows(facts, first, numbers)
    made: list[dict[str, Array]] = []
    of_rank: dict[int, int] = {}
    members = _members(facts, set(ranks))
    for (comm, place), rank in members.items():
        number = len(facts.processes) + of_rank.setdefault(rank, len(of_rank))
        calls = rows.calls_of(comm, place, number)
        if calls is not None:
            made.append(calls)
    if not made:
        return Absent(facts)
    absent = tuple(Process(rank, "", 0, None, 0, facts.end_ns) for rank in of_rank)
    joined = {
        name: np.concatenate([column, *(one[name] for one in made)])
        for name, column in facts.calls.items()
    }
    order = np.lexsort((joined["begin_ns"], joined["process"]))
    joined = {name: column[order] for name, column in joined.items()}
    wider = replace(facts, processes=facts.processes + absent, calls=joined)
    return Absent(wider, tuple(of_rank))


def _members(facts: Facts, absent: set[int]) -> dict[tuple[int, int], int]:
    """(communicator, rank in it) -> the absent rank of the job that has this place.

    The ranks of a communicator are a sequence with a constant step, as parallel groups are; or only
    one rank is absent, which then has every place without a trace.
    """
    found: dict[tuple[int, int], int] = {}
    sizes: dict[int, int] = {}
    pairs = zip(facts.calls["comm_id"].tolist(), facts.calls["ranks"].tolist(), strict=True)
    for comm, size in set(pairs):
        sizes[comm] = max(size, sizes.get(comm, 0))
    for comm, size in sizes.items():
        known = {
            place: facts.processes[process].rank
            for (one, place), process in facts.members.items()
            if one == comm
        }
        holes = [place for place in range(size) if place not in known]
        if not known or not holes or len(known) < 2:
            continue
        low, high = min(known), max(known)
        step, rest = divmod(known[high] - known[low], high - low)
        regular = rest == 0 and all(
            rank == known[low] + step * (place - low) for place, rank in known.items()
        )
        for place in holes:
            rank = known[low] + step * (place - low) if regular else min(absent)
            if rank in absent and (regular or len(absent) == 1):
                found[comm, place] = rank
    return found


class _Rows:
    """First receptions, joined with the calls that made them."""

    def __init__(self, facts: Facts, first: dict[str, Array], numbers: dict[int, int]) -> None:
        self._facts = facts
        calls = facts.calls
        of_call = {
            ends: at
            for at, ends in enumerate(
                zip(calls["process"].tolist(), calls["id"].tolist(), strict=True)
            )
        }
        ends = zip(first["process"].tolist(), first["operation"].tolist(), strict=True)
        call = np.array([of_call.get((numbers.get(a, -1), b), -1) for a, b in ends], np.int64)
        kept = call >= 0
        self.call = call[kept]
        self.comm = first["comm_id"][kept]
        self.peer = first["peer"][kept].astype(np.int64)
        self.first_ns = first["first_ns"][kept].astype(np.int64)
        self.kind = facts.kinds[self.call] if len(self.call) else self.call
        self.usual_ns = self._usual_ns()

    def _usual_ns(self) -> Array:
        """[row]: how long first data of this kind of call takes, from when its sender came."""
        calls, members = self._facts.calls, self._facts.members
        arrival = {
            ends: int(ns)
            for *ends_, ns in zip(
                calls["instance"].tolist(),
                calls["process"].tolist(),
                calls["arrival_ns"].tolist(),
                strict=True,
            )
            for ends in (tuple(ends_),)
        }
        source = [
            members.get((int(comm), int(peer)), -1)
            for comm, peer in zip(self.comm.tolist(), self.peer.tolist(), strict=True)
        ]
        instance = calls["instance"][self.call].tolist()
        sent = np.array(
            [arrival.get((one, by), -1) for one, by in zip(instance, source, strict=True)], np.int64
        )
        # A receiver that came after its sender has the data at once.
        came = np.maximum(sent, calls["arrival_ns"][self.call])
        took = np.where(sent >= 0, self.first_ns - came, -1)
        known = took >= 0
        made = np.full(len(self.call), -1.0)
        if known.any():
            usual = medians(self.kind[known], took[known])
            each = dict(zip(self.kind[known].tolist(), usual.tolist(), strict=True))
            made = np.array([each.get(one, -1.0) for one in self.kind.tolist()])
        return made

    def calls_of(self, comm: int, place: int, number: int) -> dict[str, Array] | None:
        """The calls of the rank at this place of a communicator, as process `number`."""
        calls = self._facts.calls
        mine = (self.comm == comm) & (self.peer == place) & (self.usual_ns >= 0)
        mine &= ~calls["relays"][self.call].astype(bool) & (
            calls["kind"][self.call] == "collective"
        )
        rows = np.flatnonzero(mine)
        if not len(rows):
            return None
        call, usual_ns = self.call[rows], self.usual_ns[rows]
        own = calls["arrival_ns"][call]
        waited = self.first_ns[rows] - own > WAITED_TIMES * usual_ns + 1
        middle = medians(calls["instance"], calls["arrival_ns"])[call]
        came = np.where(waited, self.first_ns[rows] - usual_ns, np.minimum(own, middle))
        # Of several peers, the one that had its data first tells when the rank came.
        instance = calls["instance"][call]
        order = np.lexsort((came, instance))
        _, at = np.unique(instance[order], return_index=True)
        call, came = call[order][at], came[order][at].astype(np.int64)
        ends = medians(calls["instance"], calls["end_ns"])[call].astype(np.int64)
        count = len(call)
        made = {name: calls[name][call] for name in COPIED}
        made |= {
            "process": np.full(count, number, np.int64),
            "id": np.arange(count),
            "rank": np.full(count, place),
            "begin_ns": came,
            "arrival_ns": came,
            "end_ns": np.maximum(ends, came),
            "gpu_wait_ns": np.zeros(count, np.int64),
            "instance": calls["instance"][call],
        }
        return {name: made[name].astype(column.dtype) for name, column in calls.items()}


def said_of(one: Finding, ranks: tuple[int, ...]) -> Finding:
    """The finding; if it is about a rank without a trace, it says how that is known."""
    mine = [rank for rank in one.place.ranks if rank in ranks]
    if not mine:
        return one
    text = (
        f" Rank {mine[0]} has no trace: when it came is told by when its peers had its first data."
    )
    return replace(
        one,
        evidence=one.evidence + text,
        confidence_of_all=min(one.confidence_of_all, CONFIDENCE_MAX),
        more={**one.more, "without_trace": True},
    )
