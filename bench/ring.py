"""Decides what a ring all-reduce costs over the Python API, summed by numpy, beside TCP.

Integers, so every sum has to be exact; every element is checked, outside of the timed part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import numpy as np

from bench import collective
from bench.collective import Array, Buffers, Operation, Plan, Rank
from bench.common import Config
from bench.options import NCCL_TESTS, collective_options, common, study_options, sweep
from bench.peers import SOCKETS
from bench.placement import placed
from bench.study import Study, chosen, conduct

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")
KNOWN = tuple(name for name, peer in SOCKETS.items() if peer.streams == 1)
ELEMENT_BYTES = 4
WAIT_S = 30.0
STUDY = Study(
    "ring",
    keys=("contender", "ranks", "size_bytes"),
    measures={"busbw_bytes_per_s": "higher", "time_ns": "lower"},
    columns=(("ranks", "ranks"), *NCCL_TESTS),
)


def _next(me: int, ranks: int) -> list[int]:
    return [(me + 1) % ranks]


def _values(rank: int, count: int) -> Array:
    """What a rank brings; sums of them wrap nowhere and differ from element to element."""
    return np.arange(count, dtype=np.int32) % 1_000_003 * np.int32(rank + 1)


def _parts(array: Array, ranks: int) -> list[Array]:
    """One part a rank, views; the last are shorter, or empty, where it does not divide."""
    return np.array_split(array, ranks)


def _prepare(me: int, ranks: int, size_bytes: int) -> Buffers:
    count = size_bytes // ELEMENT_BYTES
    part = -(-count // ranks)
    sent = _values(me, count)
    return Buffers(sent, np.zeros_like(sent), np.zeros(part, dtype=np.int32))


def _exchange(rank: Rank, outgoing: Array, incoming: Array) -> None:
    """Sends a part on while the one before arrives; nobody sends an empty one."""
    before, after = (rank.me - 1) % rank.ranks, (rank.me + 1) % rank.ranks
    receive = rank.of[before].irecv_into(incoming) if incoming.size else None
    send = rank.to[after].isend(outgoing) if outgoing.size else None
    if receive is not None:
        receive.wait(WAIT_S)
    if send is not None:
        send.wait(WAIT_S)


def step(rank: Rank, buffers: Buffers) -> None:
    """Reduce-scatter, then all-gather: 2 (n - 1) exchanges with the neighbours."""
    np.copyto(buffers.made, buffers.sent)
    parts = _parts(buffers.made, rank.ranks)
    for turn in range(rank.ranks - 1):
        incoming = parts[(rank.me - turn - 1) % rank.ranks]
        taken = buffers.scratch[: incoming.size]
        _exchange(rank, parts[(rank.me - turn) % rank.ranks], taken)
        incoming += taken
    for turn in range(rank.ranks - 1):
        _exchange(
            rank, parts[(rank.me - turn + 1) % rank.ranks], parts[(rank.me - turn) % rank.ranks]
        )


def _wrong(_: int, ranks: int, buffers: Buffers) -> int:
    total = sum(range(1, ranks + 1))
    expected = _values(0, buffers.made.size) * np.int32(total)
    return int((buffers.made != expected).sum())


OPERATION = Operation(_next, _prepare, step, _wrong)


@click.command("ring")
@collective_options("64K", "16M", ELEMENT_BYTES)
@click.option(
    *("-N", "--ranks"), type=click.IntRange(2, 32), default=4, show_default=True, help="Processes."
)
@study_options(
    minbytes="4K", maxbytes="64K", iters=3, warmup_iters=1, ranks=3, only=("weft", "tcp-cubic")
)
def command(
    minbytes: int,
    maxbytes: int,
    stepfactor: int,
    iters: int,
    warmup_iters: int,
    ranks: int,
    **options: Any,
) -> None:
    """Ring all-reduce of int32 sums, as nccl-tests counts: busbw = algbw * 2 (n - 1) / n."""
    given = common(options)
    names = chosen(given, USUAL, KNOWN)
    places = placed(ranks, given.places)
    # Rounded to whole elements, as nccl-tests does.
    sizes = dict.fromkeys(
        one - one % ELEMENT_BYTES for one in sweep(minbytes, maxbytes, stepfactor)
    )
    plan = Plan(tuple(sizes), iters, warmup_iters)

    def measure(name: str) -> Iterator[Config]:
        for row in collective.run(OPERATION, SOCKETS[name].kind, places, plan):
            algbw = row["size_bytes"] / row["time_ns"] * 1e9
            row |= {"ranks": ranks, "count": row["size_bytes"] // ELEMENT_BYTES}
            row |= {"algbw_bytes_per_s": algbw}
            yield row | {"busbw_bytes_per_s": algbw * 2 * (ranks - 1) / ranks}

    settings = {"iterations": iters, "warmup_iterations": warmup_iters}
    conduct(STUDY, given, names, measure, settings)
