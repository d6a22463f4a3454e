"""Makes programs from traces: the operations of a real or simulated job, at any scale.

A rank begins an operation as long after the end of an earlier one as it did in the trace: in the
time between, the rank computed. Operations of a communicator run in order. Which rank waits for the
network, and how long, comes from the simulation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.sim.network import Array
from transport.sim.program import MAKERS, RECEIVE, ROOTED, SEND, Operation, Program, Wait, build
from transport.sim.work import BadWorkError, Job

if TYPE_CHECKING:
    from transport.trace.store import Store

OPERATIONS_MAX = 1 << 22
# Name of a function in traces -> its name in MAKERS.
ALIASES = {"AlltoAll": "AllToAll"}
# Each operation of each rank with its time in the network. A rank begins when it posts its first
# message, or else when its kernel or its channels begin, or else when the operation is enqueued.
_OPERATIONS = """
WITH posted AS (
  SELECT c.process, c.operation, min(m.posted_ns) AS begin_ns
  FROM messages m JOIN channels c ON c.process = m.process AND c.id = m.channel_id
  WHERE m.sends AND c.operation IS NOT NULL GROUP BY ALL), {times}
SELECT p.spot, m.comm_id, o.sequence, o.function, o.bytes, o.algorithm, o.channels, o.root,
  s.spot AS peer,
  coalesce(d.begin_ns, k.begin_ns, n.begin_ns, o.begin_ns) AS begin_ns,
  greatest(coalesce(n.end_ns, k.end_ns, o.end_ns, o.begin_ns), o.begin_ns) AS end_ns
FROM operations o JOIN place p ON p.process = o.process
JOIN comms m ON m.process = o.process AND m.id = o.comm
LEFT JOIN posted d ON d.process = o.process AND d.operation = o.id
LEFT JOIN network n ON n.process = o.process AND n.operation = o.id
LEFT JOIN kernel k ON k.process = o.process AND k.operation = o.id
LEFT JOIN member s ON s.comm_id = m.comm_id AND s.rank = o.root
WHERE o.function IS NOT NULL AND m.comm_id IS NOT NULL AND o.begin_ns IS NOT NULL
ORDER BY 10, p.spot, o.id
"""
_INCOMPLETE = """
SELECT count(*) FROM operations o LEFT JOIN place p ON p.process = o.process
LEFT JOIN comms m ON m.process = o.process AND m.id = o.comm
WHERE p.spot IS NULL OR o.function IS NULL OR m.comm_id IS NULL OR o.begin_ns IS NULL
"""


@dataclass(eq=False)
class Found:
    """An operation of the trace: what it is, and when each rank that has a trace ran it."""

    comm: int  # id of the communicator
    function: str
    algorithm: str
    channels: int
    peer: int  # Send: rank that receives; Recv: rank that sends; others: the root; -1: not known
    begin_ns: dict[int, int] = field(default_factory=dict)  # rank -> time at which it began
    end_ns: dict[int, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)  # sizes in the calls of the ranks, if known

    @property
    def size_bytes(self) -> int:
        """Size in the call of one rank; the mean if ranks give different sizes, as for experts."""
        return round(sum(self.sizes) / len(self.sizes))


@dataclass(eq=False)
class Recorded:
    """The operations of a trace in the order in which they began."""

    ranks: int
    members: dict[int, Array]  # communicator -> its ranks, in order
    operations: list[Found]
    notes: list[str]


def job(folder: Path, hosts: int, keys: Mapping[str, Any]) -> Job:
    """The job of a [[workload]] of pattern "trace"; BadWorkError if it cannot be made."""
    from transport.errors import WeftError
    from transport.trace.layout import TraceError
    from transport.trace.store import open_store

    try:
        with open_store(folder, job=keys["job"]) as store:
            jobs = store.jobs()
            if len(jobs) > 1:
                names = ", ".join(name or "(unnamed)" for name, _ in jobs[:8])
                raise BadWorkError("job", f"{folder} has several jobs, choose one: {names}")
            recorded = read(store)
            lacking = store.notes()
    except (TraceError, WeftError) as error:
        raise BadWorkError("file", str(error)) from None
    whole, part = _scale(keys["scale"], recorded.ranks)
    ranks = recorded.ranks * whole // part
    if ranks > hosts:
        raise BadWorkError(
            "file",
            f"the trace has {ranks} ranks at this scale, and there are {hosts} hosts: set "
            f"network.hosts to {ranks} or more",
        )
    program, said = scaled(recorded, whole, part, keys)
    made, unmatched = build(program)
    notes = [*recorded.notes, *said]
    if unmatched:
        notes.append(
            f"{len(unmatched):,} sends or receives are left out: the trace lacks the matching call"
        )
    notes += lacking
    return Job(
        made.transfers,
        made.dependencies,
        turn=made.turn,
        program=made.program,
        received_turn=made.received_turn,
        local=made.local,
        notes=tuple(notes),
    )


def files(folder: Path, name: str) -> set[str]:
    """The files of a trace, relative to the scenario's folder."""
    found = [*(folder / name).rglob("*.trace"), *(folder / name).glob("*.parquet")]
    return {str(Path(name) / one.relative_to(folder / name)) for one in found}


def read(store: Store) -> Recorded:
    """The operations of a trace by communicator, function and sequence number."""
    from transport.trace.operation_times import OPERATION_TIMES
    from transport.trace.places import places_of

    places = places_of(store, None, False)
    places.write(store)
    grouped: dict[int, dict[int, int]] = defaultdict(dict)
    for (comm, rank), spot in places.of_member.items():
        grouped[comm][rank] = spot
    absent = places.without_trace()
    sql = "SELECT comm_id, max(ranks) FROM comms WHERE comm_id IS NOT NULL GROUP BY 1"
    members = {
        comm: _members(grouped[comm], size or 0, set(absent)) for comm, size in store.rows(sql)
    }
    found: dict[tuple[Any, ...], Found] = {}
    left_out: Counter[str] = Counter()
    ((left_out["the trace lacks their begin, communicator or rank"],),) = store.rows(_INCOMPLETE)
    for rows in store.batches(_OPERATIONS.format(times=OPERATION_TIMES)):
        for row in rows:
            _add(found, members, row, left_out)
        if len(found) > OPERATIONS_MAX:
            raise BadWorkError("file", f"the trace has more than {OPERATIONS_MAX:,} operations")
    ranks = len(places.labels)
    notes = []
    if absent:
        notes.append(
            f"{len(absent):,} of {ranks:,} ranks have no trace: they communicate without computing"
        )
    unsized = [key for key, one in found.items() if not one.sizes]
    for key in unsized:
        left_out["the trace does not tell their size"] += len(found.pop(key).begin_ns)
    why = [f"{count:,} operations are left out: {why}" for why, count in left_out.items() if count]
    if not found:
        raise BadWorkError("file", "; ".join([_nothing(store), *why]))
    of = found.values()
    notes += [*why, *_of_empty(of), *_of_algorithms(of), *_of_roots(of)]
    order = sorted(found.values(), key=lambda one: min(one.begin_ns.values()))
    return Recorded(ranks, members, order, notes)


def _nothing(store: Store) -> str:
    """Says that there is nothing to play back, and why."""
    ((operations, messages),) = store.rows(
        "SELECT (SELECT count(*) FROM operations), (SELECT count(*) FROM messages)"
    )
    if messages and not operations:
        return (
            f"the trace has {messages:,} messages and no operations of NCCL, as of a program that "
            "uses the Python API: only operations can be played back"
        )
    return "the trace has no operations that can be played back"


def _of_empty(operations: Collection[Found]) -> list[str]:
    empty = sum(not any(one.sizes) for one in operations)
    return [f"{empty:,} operations of 0 bytes are played back with 1 byte"] if empty else []


def _of_algorithms(operations: Collection[Found]) -> list[str]:
    lacking = Counter(
        one.algorithm or "not known"
        for one in operations
        if "RING" in MAKERS.get(one.function, {}) and one.algorithm not in MAKERS[one.function]
    )
    if not lacking:
        return []
    named = ", ".join(f"{name} ({count:,})" for name, count in lacking.most_common())
    text = f"{lacking.total():,} operations run as rings"
    return [
        f"{text}, because the simulator lacks their algorithms, or the trace does not record "
        f"them: {named}"
    ]


def _of_roots(operations: Collection[Found]) -> list[str]:
    unknown = sum(one.function in ROOTED and one.peer < 0 for one in operations)
    if not unknown:
        return []
    return [
        f"the trace does not tell the root of {unknown:,} Broadcasts and Reduces: the first rank "
        "of their communicator is the root"
    ]


def _members(spots: Mapping[int, int], size: int, absent: Collection[int]) -> Array:
    """The ranks of a communicator, of which some may have no trace.

    If those with a trace are evenly spaced, as in groups of parallel training, the others continue
    the spacing.
    """
    found = dict(spots)
    known = np.array(sorted(spots))
    if 2 <= len(known) < size:
        at = np.array([spots[rank] for rank in known.tolist()])
        step = (at[1] - at[0]) // (known[1] - known[0])
        first = at[0] - known[0] * step
        if (first + known * step == at).all():
            others = {rank: int(first + rank * step) for rank in range(size) if rank not in found}
            found |= {rank: spot for rank, spot in others.items() if spot in absent}
    return np.array([found[rank] for rank in sorted(found)], np.int64)


def _add(
    found: dict[tuple[Any, ...], Found],
    members: Mapping[int, Array],
    row: Mapping[str, Any],
    left_out: Counter[str],
) -> None:
    function = ALIASES.get(row["function"], row["function"])
    comm, rank = row["comm_id"], row["spot"]
    message = function in (SEND, RECEIVE)
    if message and (row["peer"] is None or row["peer"] == rank):
        left_out["their peer is the rank itself, or is not known"] += 1
        return
    if not message and (function not in MAKERS or len(members[comm]) < 2):
        single = "their communicator has one rank"
        left_out[single if function in MAKERS else f"{function} cannot be simulated"] += 1
        return
    number, replay = len(found) if message else row["sequence"], 0
    key = (comm, function, number, replay)
    # All launches of a CUDA graph have the sequence number of the captured operation.
    while key in found and rank in found[key].begin_ns:
        replay += 1
        key = (comm, function, number, replay)
    one = found.setdefault(
        key,
        Found(
            comm,
            function,
            row["algorithm"] or "",
            row["channels"] or 1,
            -1 if row["peer"] is None else row["peer"],
        ),
    )
    if row["bytes"] is not None:
        one.sizes.append(row["bytes"])
    one.begin_ns[rank] = row["begin_ns"]
    one.end_ns[rank] = max(row["end_ns"], row["begin_ns"])


def _scale(scale: float, ranks: int) -> tuple[int, int]:
    """The scale as a numerator and a denominator, of which one is 1."""
    whole = round(scale) if scale >= 1 else 1
    part = round(1 / scale) if scale < 1 else 1
    if abs(whole / part - scale) > 1e-6 * scale:
        raise BadWorkError("scale", f"{scale:g}: give a whole number or its reciprocal")
    if ranks % part:
        text = f"{scale:g}: the {ranks} ranks of the trace cannot be divided by {part}"
        raise BadWorkError("scale", text)
    if ranks // part < 2:
        text = f"{scale:g}: {ranks // part} of the {ranks} ranks of the trace would remain"
        raise BadWorkError("scale", f"{text}: a job needs at least 2 ranks")
    return whole, part


def scaled(
    recorded: Recorded, whole: int, part: int, keys: Mapping[str, Any]
) -> tuple[Program, list[str]]:
    """The program of a trace with `whole` / `part` times as many ranks, and notes on it.

    A communicator of all ranks gets all ranks of the larger job; any other one is copied, or loses
    the ranks that the smaller job does not have. The sizes in the calls do not depend on the scale.
    """
    made = _Scaled(recorded, whole, part, keys)
    program = made.program()
    notes = []
    if made.without_root:
        notes.append(
            f"{made.without_root:,} Broadcasts and Reduces have a root that the smaller job lacks: "
            "the first rank of their communicator is the root"
        )
    return program, notes


class _Scaled:
    def __init__(self, recorded: Recorded, whole: int, part: int, keys: Mapping[str, Any]) -> None:
        self.recorded, self.copies = recorded, whole
        self.ranks = recorded.ranks * whole // part
        self.sizes, self.times = keys["size_factor"], keys["compute_factor"]
        self.before, self.delays, self.first_ns = _order(recorded)
        # For each operation of the program but the start: the index of the operation of the trace,
        # which of its copies it is (0: the first), and its ranks.
        self.chosen: list[tuple[int, int, Array]] = []
        # (operation of the trace, which of its copies) -> index in the program
        self.index: dict[tuple[int, int], int] = {}
        self.communicators: dict[tuple[int, int], int] = {}
        self.without_root = 0  # operations whose root is not among their ranks

    def program(self) -> Program:
        for number, one in enumerate(self.recorded.operations):
            for copy, group in enumerate(_groups(self.recorded, one, self.ranks, self.copies)):
                if group is not None:
                    self.chosen.append((number, copy, group))
                    self.index[number, copy] = len(self.chosen)
        made = [self._start(), *(self._operation(*each) for each in self.chosen)]
        return Program(self.ranks, made, is_trace=True)

    def _start(self) -> Operation:
        """The first operation: a delay after which each rank begins, as late as in the trace."""
        begin = min(self.first_ns.values())
        late = [
            round((self.first_ns.get(rank % self.recorded.ranks, begin) - begin) * self.times)
            for rank in range(self.ranks)
        ]
        return Operation("start", np.arange(self.ranks), compute_ns=np.array(late, np.int64))

    def _operation(self, number: int, copy: int, group: Array) -> Operation:
        one, there = self.recorded.operations[number], group % self.recorded.ranks
        size = max(round(one.size_bytes * self.sizes), 1)
        message = one.function in (SEND, RECEIVE)
        key = (one.comm, copy)
        return Operation(
            one.function,
            group,
            self._waits(number, group),
            one.function,
            one.algorithm,
            size if message else _whole(one.function, size, len(group)),
            peers=np.array([one.peer + int(group[0]) - int(there[0])]) if message else None,
            root=self._root(one, copy, group),
            channels=one.channels,
            communicator=self.communicators.setdefault(key, len(self.communicators)),
        )

    def _root(self, one: Found, copy: int, group: Array) -> int:
        """The place of the root in the group; the first one if the root is not in it."""
        if one.peer < 0 or one.function not in ROOTED:
            return 0
        found = np.flatnonzero(group == one.peer + copy * self.recorded.ranks)
        self.without_root += not found.size
        return int(found[0]) if found.size else 0

    def _waits(self, number: int, group: Array) -> tuple[Wait, ...]:
        made = []
        for which in (0, 1):
            found = [self._wait(number, which, rank) for rank in group.tolist()]
            if any(earlier >= 0 for earlier, _ in found):
                earlier, delays = zip(*found, strict=True)
                made.append(Wait(np.array(earlier), np.array(delays, np.int64)))
        return tuple(made)

    def _wait(self, number: int, which: int, rank: int) -> tuple[int, int]:
        """The operation of the program that a rank waits for (-1: none), and the delay.

        An operation that the smaller job does not have is replaced by the one that it waited for.
        """
        copy, there = divmod(rank, self.recorded.ranks)
        earlier = self.before[number][which].get(there)
        if earlier is None:
            return -1, 0
        delay_ns = self.delays[number][which][there]
        while earlier >= 0:
            found = self.index.get((earlier, copy), self.index.get((earlier, 0)))
            if found is not None:
                return found, round(delay_ns * self.times)
            delay_ns += self.delays[earlier][0][there]
            earlier = self.before[earlier][0][there]
        return 0, round(delay_ns * self.times)


def _groups(recorded: Recorded, one: Found, ranks: int, copies: int) -> list[Array | None]:
    """The operation's ranks in each copy of the recorded job; None: the smaller job has too few."""
    members = recorded.members[one.comm]
    if one.function in (SEND, RECEIVE):
        (rank,) = one.begin_ns
        if rank >= ranks or one.peer >= ranks:
            return [None]
        return [np.array([rank + copy * recorded.ranks]) for copy in range(copies)]
    if len(members) == recorded.ranks:
        return [_below(members, copies, recorded.ranks, ranks)]
    kept = members[members < ranks]
    if len(kept) < 2:
        return [None]
    return [kept + copy * recorded.ranks for copy in range(copies)]


def _below(members: Array, copies: int, each: int, ranks: int) -> Array:
    """The ranks of a group in all copies of the recorded job, without numbers from `ranks` on."""
    everyone = np.concatenate([members + copy * each for copy in range(copies)])
    return everyone[everyone < ranks]


def _whole(function: str, size: int, ranks: int) -> int:
    from transport.ground.collectives import whole_bytes

    return whole_bytes(function, size, ranks)


# For each operation and rank: the operations that it waits for (the one that ended last before it
# began, and the one before it in its communicator; -1: the start of the program), and the delays.
Links = list[tuple[dict[int, int], dict[int, int]]]


def _order(recorded: Recorded) -> tuple[Links, Links, dict[int, int]]:
    """The operations that each operation waits for, the delays, and the begin of each rank."""
    before: Links = [({}, {}) for _ in recorded.operations]
    delays: Links = [({}, {}) for _ in recorded.operations]
    mine: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(recorded.operations):
        for rank in one.begin_ns:
            mine[rank].append(number)
    first_ns: dict[int, int] = {}
    for rank, numbers in mine.items():
        numbers.sort(key=lambda n: recorded.operations[n].begin_ns[rank])
        first_ns[rank] = recorded.operations[numbers[0]].begin_ns[rank]
        ends = sorted(numbers, key=lambda n: recorded.operations[n].end_ns[rank])
        done, ended = -1, 0  # operation that ended last so far; how many of `ends` have ended
        in_comm: dict[int, int] = {}
        for number in numbers:
            one = recorded.operations[number]
            begin = one.begin_ns[rank]
            while ended < len(ends):
                other = recorded.operations[ends[ended]]
                # An operation of no duration must not come before one that began earlier.
                if other.end_ns[rank] > begin or other.begin_ns[rank] >= begin:
                    break
                done = ends[ended]
                ended += 1
            since = first_ns[rank] if done < 0 else recorded.operations[done].end_ns[rank]
            before[number][0][rank], delays[number][0][rank] = done, max(begin - since, 0)
            last = in_comm.get(one.comm)
            if last is not None and not _both_messages(one, recorded.operations[last]):
                before[number][1][rank], delays[number][1][rank] = last, 0
            in_comm[one.comm] = number
    _fill_absent(recorded, before, delays, mine)
    return before, delays, first_ns


def _both_messages(one: Found, other: Found) -> bool:
    return one.function in (SEND, RECEIVE) and other.function in (SEND, RECEIVE)


def _fill_absent(recorded: Recorded, before: Links, delays: Links, mine: Mapping[int, Any]) -> None:
    """Ranks without a trace run the collectives of their communicators in order."""
    last: dict[int, int] = {}
    for number, one in enumerate(recorded.operations):
        if one.function in (SEND, RECEIVE):
            continue
        for rank in recorded.members[one.comm].tolist():
            if rank in mine:
                continue
            before[number][0][rank], delays[number][0][rank] = last.get(rank, -1), 0
            last[rank] = number
