"""Reads a schedule in GOAL's text form and turns it into transfers.

GOAL (T. Hoefler, C. Siebert and A. Lumsdaine, Group Operation Assembly Language, ICPP 2009) is the
format of LogGOPSim and ATLAHS; PyPI has no reader of it. Supported are num_ranks, rank blocks,
send, recv, calc, requires and irequires, with tag, cpu and nic. Anything else is an error with its
line. cpu and nic are ignored: operations of a rank run in parallel unless one requires another. A
wildcard (-1) as source or tag is refused, because the message that it matches is known only at run
time.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from transport.sim.key import BYTES_MAX, NS_MAX
from transport.sim.work import DEPENDENCIES_MAX, DEPENDENCY, Job, transfers

_LABEL = r"(?:([A-Za-z]\w*)\s*:\s*)?"
_PLACE = r"(?:\s+cpu\s+[0-9]+)?(?:\s+nic\s+[0-9]+)?"
_SEND = re.compile(
    _LABEL + r"(send|recv)\s+([0-9]+)b\s+(to|from)\s+(-?[0-9]+)(?:\s+tag\s+(-?[0-9]+))?" + _PLACE
)
_CALC = re.compile(_LABEL + r"calc\s+([0-9]+)" + _PLACE)
_NEEDS = re.compile(r"([A-Za-z]\w*)\s+(i?)requires\s+([A-Za-z]\w*)")
_RANK = re.compile(r"rank\s+([0-9]+)\s*\{")
_RANKS = re.compile(r"num_ranks\s+([0-9]+)")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
RANKS_MAX = 65_536
TAG_MAX = 0x7FFF_FFFF
CALC_MAX = 10**17


class GoalError(ValueError):
    """A schedule is wrong; the message names the line."""


@dataclass
class Operation:
    """One operation of a rank; `needs` and `begun` are indices of this rank's other operations."""

    kind: str
    line: int
    size: int
    peer: int = -1
    tag: int = 0
    # Operations that must end (requires), or begin (irequires), before this operation begins.
    needs: list[int] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)


@dataclass
class Schedule:
    """The operations of each rank, in the order of the file."""

    ranks: list[list[Operation]]


def _whole(text: str, line: int, most: int) -> int:
    """A number of the schedule; GoalError if it is larger than `most`."""
    if len(text) > 18 or int(text) > most:  # longer texts may be too long for int()
        shown = text if len(text) <= 24 else f"{text[:20]}..."
        raise GoalError(f"line {line}: {shown}: at most {most:,}")
    return int(text)


def parse(text: str) -> Schedule:
    """Parses a schedule; raises GoalError if it is wrong."""
    bare = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    ranks: list[list[Operation]] = []
    labels: dict[str, int] = {}
    current: list[Operation] | None = None
    seen: set[int] = set()
    for number, line in enumerate(bare.splitlines(), 1):
        words = line.strip()
        if not words:
            continue
        if (match := _RANKS.fullmatch(words)) is not None and current is None and not ranks:
            if (count := _whole(match[1], number, RANKS_MAX)) < 2:
                raise GoalError(f"line {number}: num_ranks {count}: give from 2 to {RANKS_MAX:,}")
            ranks = [[] for _ in range(count)]
        elif (match := _RANK.fullmatch(words)) is not None and current is None:
            rank = _whole(match[1], number, RANKS_MAX)
            if rank >= len(ranks) or rank in seen:
                what = "has two blocks" if rank in seen else f"num_ranks is {len(ranks)}"
                raise GoalError(f"line {number}: rank {rank}: {what}")
            seen.add(rank)
            current, labels = ranks[rank], {}
        elif words == "}" and current is not None:
            current = None
        elif current is None:
            raise GoalError(f'line {number}: {words[:40]!r}: expected num_ranks or "rank N {{"')
        else:
            _statement(words, number, current, labels, len(ranks))
    if current is not None:
        raise GoalError("the file ends within a rank: close it with }")
    if not ranks:
        raise GoalError("no num_ranks: begin the file with it")
    return Schedule(ranks)


def _statement(
    words: str, number: int, operations: list[Operation], labels: dict[str, int], ranks: int
) -> None:
    """Parses one line of a rank's block."""
    if (match := _NEEDS.fullmatch(words)) is not None:
        for label in (match[1], match[3]):
            if label not in labels:
                raise GoalError(f"line {number}: no operation {label} is defined above this line")
        one = operations[labels[match[1]]]
        (one.begun if match[2] else one.needs).append(labels[match[3]])
        return
    if (match := _SEND.fullmatch(words)) is not None:
        label, kind, size, way, peer, tag = match.groups()
        if (kind == "send") != (way == "to"):
            wanted = "to" if way == "from" else "from"
            raise GoalError(f"line {number}: {kind} needs '{wanted}' before its rank, not '{way}'")
        if peer.startswith("-") or (tag or "").startswith("-"):
            raise GoalError(f"line {number}: wildcards are not supported: give the rank and tag")
        if (other := _whole(peer, number, RANKS_MAX)) >= ranks:
            raise GoalError(f"line {number}: rank {peer}: must be less than num_ranks, {ranks}")
        bytes_, tagged = _whole(size, number, BYTES_MAX), _whole(tag or "0", number, TAG_MAX)
        made = Operation(kind, number, bytes_, other, tagged)
    elif (match := _CALC.fullmatch(words)) is not None:
        label, made = match[1], Operation("calc", number, _whole(match[2], number, CALC_MAX))
    else:
        raise GoalError(
            f"line {number}: {words[:40]!r}: expected send, recv, calc, requires or irequires"
        )
    if label is not None:
        if label in labels:
            raise GoalError(f"line {number}: operation {label} is defined twice: rename one")
        labels[label] = len(operations)
    operations.append(made)


# When an operation may begin: at this time in ns or later, and for each transfer (key) at least so
# many ns (value) after the transfer has ended.
Wait = tuple[int, dict[int, int]]


def job_of(schedule: Schedule, ns_per_calc: float = 1.0) -> Job:
    """Turns every send and its recv into a transfer, and calc operations (computation) into delays.

    A recv ends when its message has arrived and the operations that it requires have ended; a send
    ends when the receiver has the message. A calc after a rank's last message has no effect.
    """
    numbers, sends = _matched(schedule)
    made = transfers(len(sends))
    found: dict[tuple[int, int], int] = {}
    for rank, operations in enumerate(schedule.ranks):
        over: dict[int, Wait] = {}
        ready: dict[int, Wait] = {}
        for index in _order(rank, operations):
            one = operations[index]
            wait = _merged([over[i] for i in one.needs] + [ready[i] for i in one.begun])
            ready[index] = wait
            mine = numbers.get((rank, index), -1)
            if one.kind == "calc":
                spent = round(one.size * ns_per_calc)
                over[index] = (wait[0] + spent, {k: v + spent for k, v in wait[1].items()})
            elif one.kind == "recv":
                # Messages of a connection arrive in order, so wait only for its last one.
                kept = {
                    k: v for k, v in wait[1].items() if v or sends[k] != sends[mine] or k > mine
                }
                over[index] = (wait[0], {**kept, mine: 0})
            else:
                over[index] = (0, {mine: 0})
                if max(wait[0], *wait[1].values(), 0) > NS_MAX:
                    text = f"the operations before it take more than {NS_MAX:,} ns"
                    raise GoalError(f"line {one.line}: {text}")
                made["start_ns"][mine] = wait[0]
                for before, delay in wait[1].items():
                    found[before, mine] = max(found.get((before, mine), 0), delay)
                    if len(found) > DEPENDENCIES_MAX:
                        raise GoalError(
                            f"more than {DEPENDENCIES_MAX:,} dependencies: use a smaller schedule"
                        )
    for mine, (source, target, size, tag) in enumerate(_ends(schedule, numbers, len(sends))):
        made[mine] = (source, target, size, made["start_ns"][mine], tag, 0)
    _, made["stream"] = np.unique(made["stream"], return_inverse=True)
    waiting = np.array([(b, a, delay) for (b, a), delay in found.items()], DEPENDENCY)
    return Job(made, waiting)


def _ends(
    schedule: Schedule, numbers: dict[tuple[int, int], int], count: int
) -> list[tuple[int, int, int, int]]:
    ends = [(0, 0, 0, 0)] * count
    for (rank, index), mine in numbers.items():
        one = schedule.ranks[rank][index]
        if one.kind == "send":
            ends[mine] = (rank, one.peer, one.size, one.tag)
    return ends


def _matched(
    schedule: Schedule,
) -> tuple[dict[tuple[int, int], int], list[tuple[int, int, int]]]:
    """(rank, index) of each send and recv -> its transfer; and the connection of each transfer.

    The n-th send of (from, to, tag) matches the n-th recv of (from, to, tag), as in MPI.
    """
    numbers: dict[tuple[int, int], int] = {}
    waiting: dict[tuple[int, int, int], deque[int]] = defaultdict(deque)
    sends: list[tuple[int, int, int]] = []
    for rank, operations in enumerate(schedule.ranks):
        for index, one in enumerate(operations):
            if one.kind != "send":
                continue
            if one.peer == rank:
                raise GoalError(f"line {one.line}: rank {rank} sends to itself")
            numbers[rank, index] = len(sends)
            waiting[rank, one.peer, one.tag].append(len(sends))
            sends.append((rank, one.peer, one.tag))
    sizes = {mine: schedule.ranks[rank][index].size for (rank, index), mine in numbers.items()}
    for rank, operations in enumerate(schedule.ranks):
        for index, one in enumerate(operations):
            if one.kind != "recv":
                continue
            there = waiting[one.peer, rank, one.tag]
            if not there:
                raise GoalError(
                    f"line {one.line}: recv without a send: rank {one.peer} sends no more messages "
                    f"to {rank} with tag {one.tag}"
                )
            mine = there.popleft()
            if sizes[mine] > one.size:
                raise GoalError(
                    f"line {one.line}: the message has {sizes[mine]} bytes, more than recv takes"
                )
            numbers[rank, index] = mine
    for (rank, to, tag), left in waiting.items():
        if left:
            raise GoalError(f"send without a recv: from rank {rank} to rank {to} with tag {tag}")
    return numbers, sends


def _order(rank: int, operations: list[Operation]) -> list[int]:
    """Indices of the operations in topological order of their requirements."""
    missing = [len(one.needs) + len(one.begun) for one in operations]
    after: dict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(operations):
        for other in one.needs + one.begun:
            after[other].append(index)
    ready = deque(index for index, count in enumerate(missing) if count == 0)
    found = []
    while ready:
        index = ready.popleft()
        found.append(index)
        for other in after[index]:
            missing[other] -= 1
            if missing[other] == 0:
                ready.append(other)
    if len(found) < len(operations):
        stuck = operations[next(i for i, count in enumerate(missing) if count)]
        raise GoalError(
            f"line {stuck.line}: rank {rank}'s operations require each other in a cycle"
        )
    return found


def _merged(waits: list[Wait]) -> Wait:
    start = 0
    all_of: dict[int, int] = {}
    for since, many in waits:
        start = max(start, since)
        for before, delay in many.items():
            all_of[before] = max(all_of.get(before, 0), delay)
    return start, all_of


def load(file: Path, ns_per_calc: float = 1.0) -> tuple[Schedule, Job]:
    """Reads a schedule file; returns the schedule and its transfers."""
    try:
        schedule = parse(file.read_text())
        return schedule, job_of(schedule, ns_per_calc)
    except OSError as error:
        raise GoalError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GoalError(f"{file}: not text; binary GOAL files are not supported") from None
    except GoalError as error:
        raise GoalError(f"{file}: {error}") from None
