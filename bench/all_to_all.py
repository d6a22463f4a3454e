"""Measures an all-to-all over the Python API.

Every received byte is checked, outside of the timed loop.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from bench.lib import collective_study
from bench.lib.collective import Array, Buffers, Operation, Rank
from bench.lib.collective_study import Collective
from bench.lib.options import NCCL_TESTS, RANKS_MAX, collective_options, study_options
from bench.lib.study import Study

WAIT_S = 30.0
STUDY = Study(
    "all_to_all",
    keys=("contender", "ranks", "size_bytes"),
    measures={"busbw_bytes_per_s": "higher", "time_ns": "lower"},
    columns=(("ranks", "ranks"), *NCCL_TESTS),
)


def _others(me: int, ranks: int) -> list[int]:
    """The other ranks, beginning after `me`, so that not all ranks send to one rank at once."""
    return [(me + turn) % ranks for turn in range(1, ranks)]


def _part(source: int, target: int, ranks: int, count: int) -> Array:
    """The data that one rank sends to another; it differs for every pair of ranks."""
    offset = (source * ranks + target) * 37
    return ((np.arange(count) + offset) % 251).astype(np.uint8)


def _prepare(me: int, ranks: int, size_bytes: int) -> Buffers:
    each = size_bytes // ranks
    sent = np.stack([_part(me, other, ranks, each) for other in range(ranks)])
    return Buffers(sent, np.zeros_like(sent), np.zeros(0, dtype=np.uint8))


def step(rank: Rank, buffers: Buffers) -> None:
    """Posts all receives, then all sends, and waits until all are done."""
    under_way = [
        rank.of[other].irecv_into(buffers.made[other]) for other in _others(rank.me, rank.ranks)
    ]
    under_way += [
        rank.to[other].isend(buffers.sent[other]) for other in _others(rank.me, rank.ranks)
    ]
    buffers.made[rank.me] = buffers.sent[rank.me]
    for one in under_way:
        one.wait(WAIT_S)


def _wrong(me: int, ranks: int, buffers: Buffers) -> int:
    each = buffers.made.shape[1]
    return sum(
        int((buffers.made[other] != _part(other, me, ranks, each)).sum()) for other in range(ranks)
    )


OPERATION = Operation(_others, _prepare, step, _wrong)


COLLECTIVE = Collective(STUDY, OPERATION, lambda n: n, "all_to_all")


@click.command("all_to_all")
@collective_options("64K", "16M", RANKS_MAX)
@study_options(
    minbytes="4K", maxbytes="64K", iters=3, warmup_iters=1, ranks=3, only=("weft", "tcp-cubic")
)
def command(**options: Any) -> None:
    """Measures an all-to-all as in nccl-tests: size per rank; busbw = algbw * (n - 1) / n."""
    collective_study.run(COLLECTIVE, options)
