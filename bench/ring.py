"""Measures a ring all-reduce over the Python API, summed by NumPy, beside TCP.

The elements are integers, so every sum is exact; every element is checked, outside of the timed
loop.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from bench.lib import collective_study
from bench.lib.collective import Array, Buffers, Operation, Rank
from bench.lib.collective_study import Collective
from bench.lib.options import NCCL_TESTS, collective_options, study_options
from bench.lib.study import Study

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
    """The input of a rank; sums do not overflow and differ from element to element."""
    return np.arange(count, dtype=np.int32) % 1_000_003 * np.int32(rank + 1)


def _parts(array: Array, ranks: int) -> list[Array]:
    """Views of the array, one part per rank; the last parts may be shorter or empty."""
    return np.array_split(array, ranks)


def _prepare(me: int, ranks: int, size_bytes: int) -> Buffers:
    count = size_bytes // ELEMENT_BYTES
    part = -(-count // ranks)
    sent = _values(me, count)
    return Buffers(sent, np.zeros_like(sent), np.zeros(part, dtype=np.int32))


def _exchange(rank: Rank, outgoing: Array, incoming: Array) -> None:
    """Sends a part to the next rank, receives one from the previous rank; skips empty parts."""
    before, after = (rank.me - 1) % rank.ranks, (rank.me + 1) % rank.ranks
    receive = rank.of[before].irecv_into(incoming) if incoming.size else None
    send = rank.to[after].isend(outgoing) if outgoing.size else None
    if receive is not None:
        receive.wait(WAIT_S)
    if send is not None:
        send.wait(WAIT_S)


def step(rank: Rank, buffers: Buffers) -> None:
    """All-reduce: reduce-scatter, then all-gather; 2 (n - 1) exchanges with the neighbours."""
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


COLLECTIVE = Collective(STUDY, OPERATION, lambda _: ELEMENT_BYTES, "all_reduce")


@click.command("ring")
@collective_options("64K", "16M", ELEMENT_BYTES)
@study_options(
    minbytes="4K", maxbytes="64K", iters=3, warmup_iters=1, ranks=3, only=("weft", "tcp-cubic")
)
def command(**options: Any) -> None:
    """Measures a ring all-reduce of int32 sums as in nccl-tests: busbw = algbw * 2 (n - 1) / n."""
    collective_study.run(COLLECTIVE, options)
