"""Turns a program of operations into transfers: computations, collectives, sends and receives.

A program lists operations. Each has members (ranks), and begins at a member once the operations
that this member waits for have ended there. The begin and the end of an operation at a member are
local events (LOCAL): they take no time and move no bytes, and others may wait for them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transport.sim import collectives, trees
from transport.sim.network import Array
from transport.sim.work import (
    LOCAL,
    NO_WAITS,
    TRANSFER,
    BadWorkError,
    Job,
    bounded,
    bounded_waits,
    transfers,
    waits,
)

LAUNCH, BEGIN, END = 0, 1, 2  # kinds of local events, of an operation at one rank
SEND, RECEIVE = "Send", "Recv"
# NCCL's function -> its algorithm -> what makes its transfers. An algorithm that is not listed runs
# as the function's first one.
MAKERS: dict[str, dict[str, Callable[..., Job]]] = {
    "AllReduce": {
        "RING": collectives.all_reduce_ring,
        "TREE": trees.all_reduce_double_tree,
        collectives.BINARY_TREE: collectives.all_reduce_tree,
    },
    "AllGather": {"RING": collectives.all_gather, "PAT": trees.all_gather_pat},
    "ReduceScatter": {"RING": collectives.reduce_scatter, "PAT": trees.reduce_scatter_pat},
    "Broadcast": {"RING": trees.broadcast},
    "Reduce": {"RING": trees.reduce},
    "AllToAll": {"": collectives.all_to_all},
}
ROOTED = ("Broadcast", "Reduce")  # functions with a root
CHANNELS_MAX = 64
SLICES = 8
FOREVER_NS = 10**15  # longer than any run


@dataclass(frozen=True, eq=False)
class Wait:
    """The waits of an operation's members: for one earlier operation each, and for a delay.

    The arrays have one element for each member.
    """

    operation: Array  # index of the earlier operation in the program; -1: the member waits for none
    delay_ns: Array  # time from the end of the earlier operation until the member begins


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation. `function`: NCCL's name; empty: a computation.

    `ranks`, `compute_ns` and `peers` have one element for each member.
    """

    name: str
    ranks: Array  # its members, in the order of their ranks in the communicator
    waits: Sequence[Wait] = ()
    function: str = ""
    algorithm: str = ""
    size_bytes: int = 0  # size of the buffer, as in nccl-tests; of the message for Send and Recv
    compute_ns: Array | None = None  # duration of a computation
    peers: Array | None = None  # for Send and Recv: the rank that receives, or sends
    root: int = 0  # for functions with a root: its index in `ranks`
    channels: int = 1
    slices: int = SLICES  # pieces that are pipelined along a tree or a chain
    hop_ns: int = 0  # time from a message's arrival until what waits for it
    communicator: int = 0  # operations with equal numbers share connections, in program order
    step: int = 0  # number of the training step, for reports


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in the order of their transfers on the connections that they share."""

    ranks: int
    operations: Sequence[Operation]
    launch_ns: int = 0  # time that a host needs to launch an operation; it launches them in order
    # Whether a host waits for its GPU between two steps: it launches the first operation of a step
    # after all operations that it launched before have ended.
    sync: bool = False
    # True: it replays a trace, which has no computations, but only the times between operations.
    is_trace: bool = False
    # (operation, rank) -> time that the rank's host lets pass before it launches the operation.
    held: Mapping[tuple[int, int], int] = field(default_factory=dict)
    # (operation, rank) -> function and size that the rank calls by mistake. Its call never ends.
    wrong: Mapping[tuple[int, int], tuple[str, int]] = field(default_factory=dict)


@dataclass
class _Local:
    """Collects local events, which move no bytes: LAUNCH, BEGIN and END of operations at ranks."""

    rank: list[Array] = field(default_factory=list)
    operation: list[Array] = field(default_factory=list)
    kind: list[Array] = field(default_factory=list)
    count: int = 0

    def add(self, ranks: Array, operation: int, kind: int) -> Array:
        numbers = self.count + np.arange(len(ranks))
        self.rank.append(ranks)
        self.operation.append(np.full(len(ranks), operation))
        self.kind.append(np.full(len(ranks), kind))
        self.count += len(ranks)
        bounded(self.count)
        return numbers

    def array(self) -> Array:
        made = np.zeros(self.count, LOCAL)
        if self.count:
            made["rank"] = np.concatenate(self.rank)
            made["operation"] = np.concatenate(self.operation)
            made["kind"] = np.concatenate(self.kind)
        return made


class _Builder:
    """Builds the job of a program. Local events are numbered after all transfers."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.local = _Local()
        self.parts: list[Array] = []
        # For each array of transfers in `parts`: the operation that sends them, the operation that
        # receives them, and their number.
        self.turns: list[tuple[int, int, int]] = []
        self.count = 0  # number of transfers so far
        self.waits = 0
        # Dependencies by kind of (before, after); l: local event, t: transfer. "tl": l waits for t.
        self.found: dict[str, list[Array]] = defaultdict(list)
        self.begin: list[Array] = []  # [operation][member]: number of the BEGIN event
        self.end: list[Array] = []  # [operation][member]: number of the END event
        self.place: list[dict[int, int]] = []  # [operation]: rank -> member
        # Unmatched sends and receives by (communicator, from, to): (operation, member).
        self.sends: dict[tuple[int, int, int], deque[tuple[int, int]]] = defaultdict(deque)
        self.receives: dict[tuple[int, int, int], deque[tuple[int, int]]] = defaultdict(deque)
        self.launched = np.full(program.ranks, -1)  # [rank]: its latest LAUNCH event; -1: none
        self.step = np.full(program.ranks, -1)  # [rank]: step of its latest operation; -1: none
        self.of_step: dict[int, list[int]] = defaultdict(list)  # step -> its operations so far

    def link(self, ends: str, before: Array, after: Array, delay_ns: int = 0) -> None:
        self.waits += len(before)
        bounded_waits(self.waits)
        self.found[ends].append(waits(before, after, delay_ns))

    def begin_and_end(self, index: int, one: Operation) -> None:
        self.begin.append(self.local.add(one.ranks, index, BEGIN))
        self.end.append(self.local.add(one.ranks, index, END))
        self.place.append({int(rank): at for at, rank in enumerate(one.ranks)})

    def add(self, index: int, one: Operation) -> None:
        begin, end = self.begin[index], self.end[index]
        for wait in one.waits:
            self._wait(one, wait, begin)
        if self.program.launch_ns or self.program.sync:
            self._launch(index, one, begin)
        if one.compute_ns is not None:
            made = waits(begin, end)
            made["delay_ns"] = one.compute_ns
            self.waits += len(made)
            self.found["ll"].append(made)
        else:
            self.link("ll", begin, end)
        if one.function in (SEND, RECEIVE):
            self._messages(index, one)
        elif one.function:
            self._collective(index, one)

    def _wait(self, one: Operation, wait: Wait, begin: Array) -> None:
        for before in np.unique(wait.operation[wait.operation >= 0]).tolist():
            mine = np.flatnonzero(wait.operation == before)
            place = self.place[before]
            there = [at for at in mine.tolist() if int(one.ranks[at]) in place]
            ends = self.end[before][[place[int(one.ranks[at])] for at in there]]
            made = waits(ends, begin[there])
            made["delay_ns"] = wait.delay_ns[there]
            self.waits += len(made)
            self.found["ll"].append(made)

    def _launch(self, index: int, one: Operation, begin: Array) -> None:
        """A host launches operations one by one; an operation begins no earlier than its launch.

        If launches take no time, launch events exist only where a host first waits for its GPU.
        Later operations of the host begin no earlier than its latest launch event.
        """
        latest = self.step[one.ranks]
        waiting = (latest >= 0) & (latest < one.step) & self.program.sync
        ranks = one.ranks if self.program.launch_ns else one.ranks[waiting]
        number = self.local.add(ranks, index, LAUNCH)
        before = self.launched[ranks]
        had = before >= 0
        self._after(before[had], number[had], self._holds(index, ranks[had]))
        self.launched[ranks] = number
        for step in np.unique(latest[waiting]).tolist():
            self._sync(index, step, one.ranks[waiting & (latest == step)])
        self.step[one.ranks] = one.step
        self.of_step[one.step].append(index)
        launch = self.launched[one.ranks]
        had = launch >= 0
        stuck = [(index, rank) in self.program.wrong for rank in one.ranks[had].tolist()]
        self._after(launch[had], begin[had], np.where(stuck, FOREVER_NS, 0))

    def _holds(self, index: int, ranks: Array) -> Array:
        """The time from a host's previous launch to that of the operation, for each rank."""
        held = [self.program.held.get((index, rank), 0) for rank in ranks.tolist()]
        return np.minimum(np.array(held, np.int64) + self.program.launch_ns, FOREVER_NS)

    def _after(self, before: Array, after: Array, delay_ns: Array) -> None:
        """Makes local events wait for others; each pair has its own delay."""
        made = waits(before, after)
        made["delay_ns"] = delay_ns
        self.waits += len(made)
        bounded_waits(self.waits)
        self.found["ll"].append(made)

    def _sync(self, index: int, step: int, ranks: Array) -> None:
        """The launches of operation `index` at these ranks wait for all operations of `step`.

        `step` is the latest step that the ranks have begun. They need not wait for earlier steps
        again: their first launch of `step` has already done so.
        """
        # [rank]: its LAUNCH event; -1: it does not wait.
        launch = np.full(self.program.ranks, -1)
        launch[ranks] = self.launched[ranks]
        for earlier in self.of_step[step]:
            members = self.program.operations[earlier].ranks
            after = launch[members]
            had = after >= 0
            self._after(self.end[earlier][had], after[had], self._holds(index, members[had]))

    def _collective(self, index: int, one: Operation) -> None:
        made = _made(one)
        mine = made.transfers.copy()
        sender, receiver = mine["from"].astype(np.int64), mine["to"].astype(np.int64)
        mine["from"], mine["to"] = one.ranks[sender], one.ranks[receiver]
        mine["stream"] += one.communicator * CHANNELS_MAX
        numbers = self._put(mine, index, index)
        inner = made.dependencies
        self.waits += len(inner)
        self.link("tt", numbers[inner["before"]], numbers[inner["after"]], one.hop_ns)
        self.link("lt", self.begin[index][sender], numbers)
        self.link("tl", numbers, self.end[index][receiver], one.hop_ns)
        # A member that receives nothing ends when the messages that it sent have arrived.
        alone = ~np.isin(sender, receiver)
        self.link("tl", numbers[alone], self.end[index][sender[alone]])

    def _messages(self, index: int, one: Operation) -> None:
        """Matches the n-th send from one rank to another with the n-th receive of that pair."""
        peers = one.peers if one.peers is not None else np.zeros(len(one.ranks), np.int64)
        for member, (rank, peer) in enumerate(zip(one.ranks.tolist(), peers.tolist(), strict=True)):
            sends = one.function == SEND
            key = (one.communicator, rank, peer) if sends else (one.communicator, peer, rank)
            mine, other = (self.sends, self.receives) if sends else (self.receives, self.sends)
            if not other[key]:
                mine[key].append((index, member))
                continue
            found = other[key].popleft()
            self._message(key, *(((index, member), found) if sends else (found, (index, member))))

    def _message(
        self, key: tuple[int, int, int], out: tuple[int, int], into: tuple[int, int]
    ) -> None:
        send = self.program.operations[out[0]]
        made = transfers(1)
        made["from"], made["to"], made["bytes"] = key[1], key[2], send.size_bytes
        made["stream"] = key[0] * CHANNELS_MAX
        number = self._put(made, out[0], into[0])
        self.link("lt", self.begin[out[0]][[out[1]]], number)
        self.link("tl", number, self.end[out[0]][[out[1]]])
        hop_ns = self.program.operations[into[0]].hop_ns
        self.link("tl", number, self.end[into[0]][[into[1]]], hop_ns)

    def _put(self, made: Array, sent_by: int, received_by: int) -> Array:
        numbers = self.count + np.arange(len(made))
        self.count += len(made)
        bounded(self.count + self.local.count)
        self.parts.append(made)
        self.turns.append((sent_by, received_by, len(made)))
        return numbers

    def unmatched(self) -> list[tuple[int, int]]:
        """The sends without a receive and the receives without a send, as (operation, member)."""
        left = [*self.sends.values(), *self.receives.values()]
        return sorted(one for waiting in left for one in waiting)

    def job(self) -> Job:
        bounded(self.count + self.local.count)
        found = [NO_WAITS]
        for ends, parts in self.found.items():
            both = np.concatenate(parts)
            both["before"] += self.count if ends[0] == "l" else 0
            both["after"] += self.count if ends[1] == "l" else 0
            found.append(both)
        counts = [count for _, _, count in self.turns]
        return Job(
            np.concatenate(self.parts) if self.parts else np.zeros(0, TRANSFER),
            np.concatenate(found),
            local=self.local.array(),
            program=self.program,
            turn=np.repeat([one for one, _, _ in self.turns], counts).astype(np.int64),
            received_turn=np.repeat([one for _, one, _ in self.turns], counts).astype(np.int64),
        )


def _made(one: Operation) -> Job:
    """The transfers of a collective between its members, numbered from 0."""
    makers = MAKERS.get(one.function)
    if makers is None:
        known = ", ".join(MAKERS)
        raise BadWorkError("pattern", f"{one.function}: no such collective: choose from {known}")
    make = makers.get(one.algorithm) or next(iter(makers.values()))
    keys: Mapping[str, Any] = {
        "size_bytes": max(one.size_bytes, 1),
        "repeats": 1,
        "gap_ns": 0,
        "channels": min(max(one.channels, 1), CHANNELS_MAX),
        "slices": one.slices,
        "window": 4,
        "root": one.root,
    }
    return make(len(one.ranks), keys, None)


def build(program: Program) -> tuple[Job, list[tuple[int, int]]]:
    """The job of a program, and its sends without a receive and receives without a send.

    Each of these is an index of an operation and an index of one of its members.
    """
    builder = _Builder(program)
    for index, one in enumerate(program.operations):
        builder.begin_and_end(index, one)
    for index, one in enumerate(program.operations):
        builder.add(index, one)
    return builder.job(), builder.unmatched()
