"""Makes a benchmark of a collective: options, sizes, algbw and busbw as in nccl-tests.

bench.ring and bench.all_to_all give the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bench.lib import collective
from bench.lib.collective import Operation, Plan
from bench.lib.common import Config
from bench.lib.options import common, sweep
from bench.lib.placement import placed
from bench.lib.study import Study, chosen, conduct
from bench.peers import ONE_STREAM, peer_of
from transport.ground.collectives import bus_factor

USUAL = ("weft", "tcp-cubic", "tcp-bbr", "mptcp")


@dataclass(frozen=True)
class Collective:
    """An operation and its units; `unit_bytes` takes the number of ranks."""

    study: Study
    operation: Operation
    unit_bytes: Callable[[int], int]  # sizes are multiples of this; `count` is size / unit
    function: str  # its name in nccl-tests, which determines the factor of its busbw


def run(one: Collective, options: dict[str, Any]) -> None:
    """Measures every size with every contender; `options` include collective_options."""
    keys = ("minbytes", "maxbytes", "stepfactor", "iters", "warmup_iters", "ranks")
    minbytes, maxbytes, stepfactor, iters, warmup_iters, ranks = (options.pop(key) for key in keys)
    given = common(options)
    names = chosen(given, USUAL, ONE_STREAM)
    places = placed(ranks, given.places)
    unit = one.unit_bytes(ranks)
    # Sizes are rounded down to multiples of the unit, as in nccl-tests.
    sizes = dict.fromkeys(size - size % unit for size in sweep(minbytes, maxbytes, stepfactor))
    plan = Plan(tuple(sizes), iters, warmup_iters)

    def measure(name: str) -> Iterator[Config]:
        for row in collective.run(one.operation, peer_of(name).kind, places, plan):
            algbw = row["size_bytes"] / row["time_ns"] * 1e9
            row |= {"ranks": ranks, "count": row["size_bytes"] // unit, "algbw_bytes_per_s": algbw}
            yield row | {"busbw_bytes_per_s": algbw * bus_factor(one.function, ranks)}

    settings = {"iterations": iters, "warmup_iterations": warmup_iters}
    conduct(one.study, given, names, measure, settings)
