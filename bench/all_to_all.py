"""Decides what an all-to-all costs over the Python API: every rank sends a part to every other.

Every byte of every part is checked, outside of the timed part.
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
from bench.ring import KNOWN
from bench.study import Study, chosen, conduct

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")
WAIT_S = 30.0
RANKS_MAX = 32
STUDY = Study(
    "all_to_all",
    keys=("contender", "ranks", "size_bytes"),
    measures={"busbw_bytes_per_s": "higher", "time_ns": "lower"},
    columns=(("ranks", "ranks"), *NCCL_TESTS),
)


def _others(me: int, ranks: int) -> list[int]:
    """Beginning with the neighbour, so that not all send to the same one first."""
    return [(me + turn) % ranks for turn in range(1, ranks)]


def _part(source: int, target: int, ranks: int, count: int) -> Array:
    """What one rank has for another; no two parts are alike."""
    offset = (source * ranks + target) * 37
    return ((np.arange(count) + offset) % 251).astype(np.uint8)


def _prepare(me: int, ranks: int, size_bytes: int) -> Buffers:
    each = size_bytes // ranks
    sent = np.stack([_part(me, other, ranks, each) for other in range(ranks)])
    return Buffers(sent, np.zeros_like(sent), np.zeros(0, dtype=np.uint8))


def step(rank: Rank, buffers: Buffers) -> None:
    """All receives, then all sends, then the wait for them."""
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


@click.command("all_to_all")
@collective_options("64K", "16M", RANKS_MAX)
@click.option(
    *("-N", "--ranks"),
    type=click.IntRange(2, RANKS_MAX),
    default=4,
    show_default=True,
    help="Processes.",
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
    """All-to-all, as nccl-tests counts: size is a rank's buffer, busbw = algbw * (n - 1) / n."""
    given = common(options)
    names = chosen(given, USUAL, KNOWN)
    places = placed(ranks, given.places)
    # Rounded to whole parts, as nccl-tests does.
    sizes = dict.fromkeys(one - one % ranks for one in sweep(minbytes, maxbytes, stepfactor))
    plan = Plan(tuple(sizes), iters, warmup_iters)

    def measure(name: str) -> Iterator[Config]:
        for row in collective.run(OPERATION, SOCKETS[name].kind, places, plan):
            algbw = row["size_bytes"] / row["time_ns"] * 1e9
            row |= {"ranks": ranks, "count": row["size_bytes"] // ranks}
            row |= {"algbw_bytes_per_s": algbw}
            yield row | {"busbw_bytes_per_s": algbw * (ranks - 1) / ranks}

    settings = {"iterations": iters, "warmup_iterations": warmup_iters}
    conduct(STUDY, given, names, measure, settings)
