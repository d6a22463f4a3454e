"""Builds the transfers and dependencies of jobs with simple patterns.

The random choices of a job depend only on the scenario's seed and the job's index. Collectives are
in collectives.py, traces in goal.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from transport.sim import sizes
from transport.sim.network import Array

if TYPE_CHECKING:
    from transport.sim.program import Program

# Same layout as TransferPlan and DependencyPlan in native/sim/fabric/fabric_plan.h.
TRANSFER = np.dtype(
    [
        *((("from"), np.uint32), ("to", np.uint32), ("bytes", np.uint64), ("start_ns", np.int64)),
        *(("stream", np.uint32), ("job", np.uint32)),
    ]
)
# An event at one rank that moves no bytes, such as the begin of a computation. Transfers and other
# events wait for it. The fabric runs it as a transfer from a host to itself.
LOCAL = np.dtype(
    [
        *(("rank", np.uint32), ("start_ns", np.int64), ("job", np.uint32)),
        # Index of the operation in the job's program; LAUNCH, BEGIN or END of program.py.
        *(("operation", np.uint32), ("kind", np.uint8)),
    ]
)
DEPENDENCY = np.dtype([("before", np.uint32), ("after", np.uint32), ("delay_ns", np.int64)])
TRANSFERS_MAX = (1 << 23) - 1  # kTransfersMax in native/sim/fabric/fabric_checks.h
DEPENDENCIES_MAX = 1 << 26


class BadWorkError(Exception):
    """A key of a workload is wrong. The caller adds the number of the workload."""

    def __init__(self, key: str, text: str) -> None:
        super().__init__(text)
        self.key = key
        self.text = text


@dataclass(frozen=True, eq=False)
class Job:
    """The transfers of one [[workload]] between ranks.

    Dependencies number the transfers from 0, then the local events.
    """

    transfers: Array  # records of type TRANSFER; `place` turns the ranks `from` and `to` into hosts
    dependencies: Array  # records of the type DEPENDENCY
    buffer_bytes: int = 0  # as in nccl-tests; 0 if the job is not a collective
    repeats: int = 1
    # NCCL's names of the operation, for traces; empty: every transfer is a send of its own.
    function: str = ""
    algorithm: str = ""
    root: int = -1  # rank that a Broadcast sends from or a Reduce sends to; -1: none
    turn: Array | None = None  # number of each transfer's operation; None: all have number 0
    # For a job that runs a program: its operations, and each transfer's operation at the receiver,
    # which for a message is another one than at the sender.
    program: Program | None = None
    received_turn: Array | None = None
    local: Array = field(default_factory=lambda: np.zeros(0, LOCAL))
    notes: tuple[str, ...] = ()  # texts that a reader of the results must know
    # True: traces leave the job out (a fault of kind second_job, which disturbs the traced job).
    hidden: bool = False


@dataclass(frozen=True, eq=False)
class Work:
    """All jobs together, with ranks replaced by hosts."""

    transfers: Array
    dependencies: Array
    jobs: list[Job]
    names: list[str]
    hosts: list[Array]  # hosts[job][rank] is the host of a rank
    # The local events of all programs: records of the type LOCAL, with hosts instead of ranks. The
    # numbers in `dependencies` count all transfers first, then these events.
    local: Array

    @property
    def notes(self) -> list[str]:
        return [note for job in self.jobs for note in job.notes]


def bounded(count: int) -> int:
    """Returns a number of transfers, or raises BadWorkError before memory is allocated for them."""
    if count > TRANSFERS_MAX:
        text = f"{count:,} transfers, at most {TRANSFERS_MAX:,}: use fewer hosts or repeats"
        raise BadWorkError("pattern", text)
    return count


def transfers(count: int) -> Array:
    return np.zeros(bounded(count), TRANSFER)


def bounded_waits(count: int) -> int:
    """Checks a number of dependencies, as `bounded` checks a number of transfers."""
    if count > DEPENDENCIES_MAX:
        text = f"{count:,} dependencies, at most {DEPENDENCIES_MAX:,}: use fewer hosts or repeats"
        raise BadWorkError("pattern", text)
    return count


def waits(before: Array, after: Array, delay_ns: int = 0) -> Array:
    """Makes dependencies: transfer after[i] waits for transfer before[i]."""
    made = np.zeros(bounded_waits(len(before)), DEPENDENCY)
    made["before"], made["after"], made["delay_ns"] = before, after, delay_ns
    return made


NO_WAITS = np.zeros(0, DEPENDENCY)


def ranks_of(
    given: str | Sequence[Any] | None, hosts: int, least: int = 2, what: str = "host"
) -> Array:
    """Parses "0-31", "0-62/2,70" or a list of numbers into distinct hosts, in order.

    what: hosts or ranks, in errors.
    """
    if given is None:
        return np.arange(hosts)
    found: list[int] = []
    parts = given.split(",") if isinstance(given, str) else list(given)
    for part in parts:
        text = str(part).strip()
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?", text)
        if match is None or isinstance(part, bool) or match[3] == "0":
            raise BadWorkError("hosts", f'{part!r}: write "0-31", "0-62/2,70" or a list of numbers')
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or last >= hosts:
            text = f"{text}: {what}s are 0 to {hosts - 1}"
            raise BadWorkError("hosts", text)
        found += range(first, last + 1, step)
    if len(set(found)) < len(found):
        raise BadWorkError("hosts", f"{given!r} names a {what} twice")
    if len(found) < least:
        raise BadWorkError(
            "hosts",
            f"{given!r}: give at least {least} {what}s"
            if least > 1
            else f"{given!r}: give a {what}",
        )
    return np.array(found)


def generator(seed: int, *place: int) -> np.random.Generator:
    """A random generator. place: numbers that differ between uses, such as a workload's number."""
    mixed = np.random.SeedSequence([seed, *place]).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=mixed))


def derangement(count: int, chance: np.random.Generator) -> Array:
    """A random permutation without fixed points."""
    for _ in range(1000):  # each attempt succeeds with probability 1/e
        drawn = chance.permutation(count)
        if (drawn != np.arange(count)).all():
            return drawn
    return np.roll(np.arange(count), 1)


def _messages(one: Array, other: Array, keys: Mapping[str, Any]) -> Job:
    """`repeats` messages from one[i] to other[i], in order on one connection."""
    repeats, count = keys["repeats"], len(one)
    made = transfers(count * repeats)
    made["from"], made["to"] = np.tile(one, repeats), np.tile(other, repeats)
    made["bytes"] = keys["size_bytes"]
    return Job(made, NO_WAITS)


def permutation(ranks: int, keys: Mapping[str, Any], chance: np.random.Generator) -> Job:
    """Permutation: every rank sends to one other rank and receives from one other rank."""
    return _messages(np.arange(ranks), derangement(ranks, chance), keys)


def _others(
    ranks: int, key: str, keys: Mapping[str, Any], many: str, chance: np.random.Generator
) -> tuple[int, Array]:
    """Returns the rank keys[key], and other ranks: keys[many] drawn at random, or all if None."""
    one, count = keys[key], keys[many]
    if one >= ranks:
        raise BadWorkError(key, f"{one}: ranks are 0 to {ranks - 1}")
    others = np.delete(np.arange(ranks), one)
    if count is None:
        return one, others
    if count > len(others):
        raise BadWorkError(
            many, f"{count} other ranks are needed, and there are only {len(others)} other ranks"
        )
    return one, np.sort(chance.permutation(others)[:count])


def incast(ranks: int, keys: Mapping[str, Any], chance: np.random.Generator) -> Job:
    """Incast: many ranks send to one rank."""
    to, senders = _others(ranks, "to", keys, "senders", chance)
    return _messages(senders, np.full(len(senders), to), keys)


def outcast(ranks: int, keys: Mapping[str, Any], chance: np.random.Generator) -> Job:
    """Outcast: one rank sends to many ranks."""
    one, receivers = _others(ranks, "from", keys, "receivers", chance)
    return _messages(np.full(len(receivers), one), receivers, keys)


def poisson(
    ranks: int, keys: Mapping[str, Any], chance: np.random.Generator, bytes_per_s: Array
) -> Job:
    """Poisson arrivals of messages at every rank, each to a uniformly random other rank.

    Each message has its own connection, like the flows in the papers of sizes.py.
    bytes_per_s: the rate of each rank.
    """
    try:
        points = sizes.points_of(keys["sizes"])
    except ValueError as error:
        raise BadWorkError("sizes", str(error)) from None
    duration_ns = keys["duration_ns"]
    expected = keys["load"] * bytes_per_s * duration_ns / 1e9 / sizes.mean_bytes(points)
    if expected.sum() > TRANSFERS_MAX:
        text = f"about {int(expected.sum()):,} messages, at most {TRANSFERS_MAX:,}: shorten it"
        raise BadWorkError("duration_ns", text)
    counts = chance.poisson(expected)
    made = transfers(int(counts.sum()))
    made["from"] = np.repeat(np.arange(ranks), counts)
    # Add one to numbers from the sender's rank on, so that no rank sends to itself.
    other = chance.integers(0, ranks - 1, len(made))
    made["to"] = other + (other >= made["from"])
    made["bytes"] = sizes.draw(points, len(made), chance)
    made["start_ns"] = chance.integers(0, duration_ns, len(made))
    made = made[np.argsort(made["start_ns"], kind="stable")]
    made["stream"] = np.arange(len(made))
    return Job(made, NO_WAITS)


def place(jobs: Sequence[tuple[str, Job, Array, Mapping[str, Any]]], seed: int) -> Work:
    """Merges all jobs: ranks become hosts, and no two jobs share a connection."""
    many, waiting, locals_ = [], [], []
    first, stream = 0, 0
    # The number of all transfers, which is also the number of the first local event.
    count = sum(len(job.transfers) for _, job, _, _ in jobs)
    for number, (_, job, hosts, keys) in enumerate(jobs):
        mine = job.transfers.copy()
        mine["from"], mine["to"] = hosts[mine["from"]], hosts[mine["to"]]
        mine["start_ns"] += keys["start_ns"]
        here = job.local.copy()
        here["rank"], here["job"] = hosts[here["rank"]], number
        here["start_ns"] += keys["start_ns"]
        if keys["jitter_ns"]:
            free = np.ones(len(mine) + len(here), bool)
            free[job.dependencies["after"]] = False
            chance = generator(seed, 2, number)
            later = np.zeros(len(free), np.int64)
            later[free] = chance.integers(0, keys["jitter_ns"] + 1, int(free.sum()))
            mine["start_ns"] += later[: len(mine)]
            here["start_ns"] += later[len(mine) :]
        mine["job"] = number
        mine["stream"] += stream
        stream = int(mine["stream"].max(initial=stream)) + 1
        after = job.dependencies.copy()
        for end in ("before", "after"):
            is_local = after[end] >= len(mine)
            after[end] += np.where(is_local, count - len(mine), first).astype(np.uint32)
        first += len(mine)
        count += len(here)
        many.append(mine)
        locals_.append(here)
        waiting.append(after)
    return Work(
        np.concatenate(many) if many else np.zeros(0, TRANSFER),
        np.concatenate(waiting) if waiting else NO_WAITS,
        [job for _, job, _, _ in jobs],
        [name for name, _, _, _ in jobs],
        [hosts for _, _, hosts, _ in jobs],
        np.concatenate(locals_) if locals_ else np.zeros(0, LOCAL),
    )
