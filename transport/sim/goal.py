"""Reads a schedule in GOAL's text form, and makes transfers of it.

What it does not know is an error with its line. GOAL (T. Hoefler, C. Siebert and A.
Lumsdaine, Group Operation Assembly Language, ICPP 2009) is what LogGOPSim and ATLAHS read; there
is no reader of it on PyPI. Taken are num_ranks, rank blocks, send, recv, calc, requires and
irequires, with tag, cpu and nic; cpu and nic change nothing here, so that operations of a rank run
side by side unless one requires another. A wildcard (-1) as source or tag is refused: which message
it takes is decided at run time. Chakra traces are not read: their format needs protobuf and
a reader that is not on PyPI.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

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


class GoalError(ValueError):
    """What is wrong with a schedule, with its line."""


@dataclass
class Operation:
    """One operation of a rank; `needs` and `begun` are indices of others of the rank."""

    kind: str
    line: int
    size: int
    peer: int = -1
    tag: int = 0
    needs: list[int] = field(default_factory=list)  # are over before it begins
    begun: list[int] = field(default_factory=list)  # have begun before it begins


@dataclass
class Schedule:
    """Operations of each rank, in the file's order."""

    ranks: list[list[Operation]]


def parse(text: str) -> Schedule:
    """The schedule, or GoalError."""
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
            if not 2 <= int(match[1]) <= RANKS_MAX:
                raise GoalError(f"line {number}: num_ranks {match[1]}: from 2 to {RANKS_MAX}")
            ranks = [[] for _ in range(int(match[1]))]
        elif (match := _RANK.fullmatch(words)) is not None and current is None:
            rank = int(match[1])
            if rank >= len(ranks) or rank in seen:
                what = "comes twice" if rank in seen else f"num_ranks says {len(ranks)}"
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
    """One line of a rank's block."""
    if (match := _NEEDS.fullmatch(words)) is not None:
        for label in (match[1], match[3]):
            if label not in labels:
                raise GoalError(f"line {number}: no operation is called {label} above")
        one = operations[labels[match[1]]]
        (one.begun if match[2] else one.needs).append(labels[match[3]])
        return
    if (match := _SEND.fullmatch(words)) is not None:
        label, kind, size, way, peer, tag = match.groups()
        if (kind == "send") != (way == "to"):
            raise GoalError(f"line {number}: {kind} goes with {'to' if way == 'from' else 'from'}")
        if int(peer) < 0 or (tag or "").startswith("-"):
            raise GoalError(f"line {number}: a wildcard is not taken: name the rank and the tag")
        if int(peer) >= ranks:
            raise GoalError(f"line {number}: rank {peer}: num_ranks says {ranks}")
        made = Operation(kind, number, int(size), int(peer), int(tag or 0))
    elif (match := _CALC.fullmatch(words)) is not None:
        label, made = match[1], Operation("calc", number, int(match[2]))
    else:
        raise GoalError(f"line {number}: {words[:40]!r} is no send, recv, calc or requires")
    if label is not None:
        if label in labels:
            raise GoalError(f"line {number}: there are two operations {label}")
        labels[label] = len(operations)
    operations.append(made)


# What an operation waits for: a time, and transfers with what must pass after each.
Wait = tuple[int, dict[int, int]]


def job_of(schedule: Schedule, ns_per_calc: float = 1.0) -> Job:
    """Every send with its recv is a transfer; calcs are delays between them.

    A recv is over when its message is there and what it requires is over, a send when the
    receiver has it. What is computed after a rank's last message is in no transfer.
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
                # Messages of one connection come in order: the last is enough.
                kept = {
                    k: v for k, v in wait[1].items() if v or sends[k] != sends[mine] or k > mine
                }
                over[index] = (wait[0], {**kept, mine: 0})
            else:
                over[index] = (0, {mine: 0})
                made["start_ns"][mine] = wait[0]
                for before, delay in wait[1].items():
                    found[before, mine] = max(found.get((before, mine), 0), delay)
                    if len(found) > DEPENDENCIES_MAX:
                        raise GoalError(f"more than {DEPENDENCIES_MAX:,} dependencies")
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
    """The transfer of each send and recv by rank and index, and each transfer's connection.

    The n-th send of (from, to, tag) goes to the n-th recv of it, as in MPI.
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
                    f"line {one.line}: rank {one.peer} sends nothing more to {rank} with tag "
                    f"{one.tag}"
                )
            mine = there.popleft()
            if sizes[mine] > one.size:
                raise GoalError(f"line {one.line}: the message has {sizes[mine]} bytes: too long")
            numbers[rank, index] = mine
    for (rank, to, tag), left in waiting.items():
        if left:
            raise GoalError(f"rank {to} never receives what {rank} sends it with tag {tag}")
    return numbers, sends


def _order(rank: int, operations: list[Operation]) -> list[int]:
    """Each after what it needs."""
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
        raise GoalError(f"line {stuck.line}: rank {rank}'s operations require each other in a ring")
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
    """A schedule from its file."""
    try:
        schedule = parse(file.read_text())
        return schedule, job_of(schedule, ns_per_calc)
    except OSError as error:
        raise GoalError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GoalError(f"{file}: a binary GOAL file is not read: keep its text") from None
    except GoalError as error:
        raise GoalError(f"{file}: {error}") from None
