"""Runs, times and checks a collective operation for every rank and size.

The benchmark supplies the operation and its check. Sizes and counts are as in nccl-tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.lib.channels import Channel, Mesh, station
from bench.lib.launch import Config, Mailbox, gang
from bench.lib.placement import Placement
from bench.lib.traffic import busiest, cpu_ns, machine_ns, others_share

STEP_S = 30.0

Array = np.ndarray[Any, Any]


@dataclass
class Rank:
    """A rank's number, and its channels to and from the other ranks."""

    me: int
    ranks: int
    to: dict[int, Channel]
    of: dict[int, Channel]


@dataclass
class Buffers:
    """The buffers of one size: `sent` is the input, `made` receives the result."""

    sent: Array
    made: Array
    scratch: Array


Step = Callable[[Rank, Buffers], None]


@dataclass(frozen=True)
class Operation:
    """The functions of a collective: top-level functions, which can be pickled for processes."""

    peers: Callable[[int, int], list[int]]  # (me, ranks) -> the ranks to send to
    prepare: Callable[[int, int, int], Buffers]  # (me, ranks, size_bytes) -> the buffers
    step: Step
    # (me, ranks, buffers) -> the number of wrong elements of `made`
    wrong: Callable[[int, int, Buffers], int]


@dataclass(frozen=True)
class Plan:
    """The sizes, and the numbers of warm-up and timed iterations."""

    sizes: tuple[int, ...]
    iterations: int
    warmup_iterations: int


def _timed(mailbox: Mailbox, rank: Rank, operation: Operation, size: int, plan: Plan) -> Config:
    """Runs one size: warm-up, then the timed iterations back to back; checks are not timed."""
    buffers = operation.prepare(rank.me, rank.ranks, size)
    wrong = sum(_checked(rank, operation, buffers) for _ in range(plan.warmup_iterations))
    mailbox.tell("ready")
    mailbox.hear("go")
    # Read the clock last here and first at the end, because reading /proc/stat takes long.
    busy_begin_ns, cpu_begin_ns, begin_ns = machine_ns(), cpu_ns(), time.perf_counter_ns()
    for _ in range(plan.iterations):
        operation.step(rank, buffers)
    found = {
        "elapsed_ns": time.perf_counter_ns() - begin_ns,
        "cpu_ns": cpu_ns() - cpu_begin_ns,
        "machine_ns": machine_ns() - busy_begin_ns,
    }
    # Check the timed result, and that of one more run into a zeroed buffer, so that no result of an
    # earlier run passes as new.
    wrong += operation.wrong(rank.me, rank.ranks, buffers) + _checked(rank, operation, buffers)
    return {**found, "wrong": wrong}


def _checked(rank: Rank, operation: Operation, buffers: Buffers) -> int:
    buffers.made.fill(0)
    operation.step(rank, buffers)
    return operation.wrong(rank.me, rank.ranks, buffers)


def member(mailbox: Mailbox, place: Placement, config: Config) -> None:
    """The main function of a rank's process."""
    me, ranks = config["me"], config["ranks"]
    operation: Operation = config["operation"]
    plan = Plan(**config["plan"])
    where = station(config["kind"], place, threads=True)
    mesh = Mesh()
    try:
        senders = [one for one in range(ranks) if me in operation.peers(one, ranks)]
        mesh.expect(where, len(senders))
        mailbox.tell("address", where.address)
        addresses = mailbox.hear("addresses")
        for other in operation.peers(me, ranks):
            # A channel's number identifies the ranks at both ends.
            mesh.dial(where, addresses[other], me * ranks + other)
        mesh.ready()
        to = {number % ranks: one for number, one in mesh.outgoing.items()}
        of = {number // ranks: one for number, one in mesh.incoming.items()}
        for size in plan.sizes:
            found = _timed(mailbox, Rank(me, ranks, to, of), operation, size, plan)
            mailbox.tell("measured", found)
        mailbox.hear("close")
    finally:
        mesh.close()
        where.close()


def run(operation: Operation, kind: str, places: Sequence[Placement], plan: Plan) -> list[Config]:
    """Runs every size once; the time of an iteration is that of the slowest rank."""
    settings = {"sizes": plan.sizes, "iterations": plan.iterations}
    settings["warmup_iterations"] = plan.warmup_iterations
    shared = {"ranks": len(places), "operation": operation, "kind": kind, "plan": settings}
    rows = []
    with gang(member, places, [{"me": me, **shared} for me in range(len(places))]) as ranks:
        ranks.tell("addresses", ranks.gather("address"))
        patience_s = STEP_S * (plan.iterations + 1)
        for size in plan.sizes:
            ranks.gather("ready", STEP_S * (plan.warmup_iterations + 1))
            ranks.tell("go")
            rows.append(_row(size, plan.iterations, places, ranks.gather("measured", patience_s)))
        ranks.tell("close")
    return rows


def _row(size: int, iterations: int, places: Sequence[Placement], said: Sequence[Config]) -> Config:
    elapsed_ns = max(each["elapsed_ns"] for each in said)
    return {
        "size_bytes": size,
        "iterations": iterations,
        "time_ns": elapsed_ns // iterations,
        "cpu_share": busiest(places, [each["cpu_ns"] for each in said], elapsed_ns),
        "others_share": others_share(said),
        "wrong": sum(each["wrong"] for each in said),
    }
