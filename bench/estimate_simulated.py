"""Compares estimates of operations with the packet simulator, beyond the ranks they are fitted to.

Each rank is a host of a leaf-spine network with an uplink for each of 16 hosts. A network is fitted
to a few small numbers of ranks; larger ones are held out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from bench.lib.common import Config, document, emit, interruptible, json_option, rounds
from bench.lib.record import read
from transport.estimate.calibrate import fit
from transport.estimate.check import Compared, compared, summary_of
from transport.estimate.samples import Sample
from transport.ground.units import percent
from transport.sim.errors import ScenarioError
from transport.sim.run import Simulation
from transport.sim.scenario import from_tables

FITTED = (8, 16, 32)
HELD_OUT = (64, 128, 256, 512, 1024)
SIZES = (64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
# Operation -> the simulator's collective and the algorithm of the estimate.
OPERATIONS = {
    "all_reduce": ("all_reduce_ring", "ring"),
    "all_gather": ("all_gather", "ring"),
    "reduce_scatter": ("reduce_scatter", "ring"),
    "all_to_all": ("all_to_all", "pairs"),
}
PAIRS_MAX = 128  # maximum ranks of an all-to-all: its messages grow as their square
LEAF_HOSTS = 16
LIMIT_NS = 10**12
COLUMNS = ("operation", "ranks", "size_bytes", "simulated_us", "estimated_us", "error")


def simulated_ns(operation: str, ranks: int, size_bytes: int, rate: str, segment: int) -> int:
    """Time in ns from an operation's first packet until all ranks have everything."""
    collective, _ = OPERATIONS[operation]
    tables: dict[str, Any] = {
        "seed": 1,
        "limit_ns": LIMIT_NS,
        "network": {
            "hosts": ranks,
            "hosts_per_leaf": min(ranks, LEAF_HOSTS),
            "spines": min(ranks, LEAF_HOSTS),
            "rate": rate,
            "uplink_rate": rate,
            "queue_bytes": "2 MB",
        },
        "hosts": {"segment_bytes": segment, "burst_bytes_max": max(segment, 65_536)},
        "workload": [
            {
                "name": operation,
                "pattern": "steps",
                "hosts": list(range(ranks)),
                "repeats": 1,
                "operations": [{"name": "one", "collective": collective, "size_bytes": size_bytes}],
            }
        ],
    }
    try:
        simulation = Simulation(from_tables(tables, file="estimate_simulated"))
    except ScenarioError as error:
        raise click.UsageError(str(error)) from None
    while simulation.step():
        pass
    (row,) = simulation.result().steps
    if not row["finished"]:
        raise click.ClickException(
            f"{operation} of {ranks} ranks did not finish within the simulation's time limit"
        )
    return int(row["step_ns"])


def sampled(ranks: tuple[int, ...], rate: str, segment: int, found: list[Sample]) -> None:
    """Simulates every operation and size into `found`."""
    for count in ranks:
        names = [name for name in OPERATIONS if name != "all_to_all" or count <= PAIRS_MAX]
        for _, name in rounds(1, names):
            for size in SIZES:
                if size >= count:
                    ns = simulated_ns(name, count, size, rate, segment)
                    algorithm = OPERATIONS[name][1]
                    found.append(Sample(name, count, count, float(size), float(ns), algorithm))


def recorded(rows: list[Config], ranks: tuple[int, ...]) -> list[Sample]:
    """The samples of a result that was recorded."""
    return [
        Sample(
            row["operation"],
            row["ranks"],
            row["ranks"],
            row["size_bytes"],
            row["simulated_us"] * 1e3,
            OPERATIONS[row["operation"]][1],
        )
        for row in rows
        if row["ranks"] in ranks
    ]


def row_of(one: Compared, is_held_out: bool) -> Config:
    sample = one.sample
    return {
        "operation": sample.operation,
        "ranks": sample.ranks,
        "size_bytes": sample.size_bytes,
        "simulated_us": sample.time_ns / 1e3,
        "estimated_us": one.estimated_ns / 1e3,
        "error": one.error,
        "held_out": is_held_out,
    }


@click.command("estimate_simulated")
@click.option(
    "--ranks-max",
    default=1024,
    show_default=True,
    type=click.IntRange(64),
    help="Largest number of ranks that estimates are compared with.",
)
@click.option("--rate", default="100 Gb/s", show_default=True, help="Rate of every link.")
@click.option(
    "--segment",
    default=16_384,
    show_default=True,
    type=click.IntRange(512, 65_536),
    help="Bytes of a simulated packet.",
)
@click.option(
    "--simulated",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Take the simulated times of this result: simulate nothing.",
)
@json_option
def command(
    ranks_max: int, rate: str, segment: int, simulated: Path | None, json_path: str | None
) -> None:
    """Compares estimated operations with simulated ones, of 8 to 1,024 ranks."""
    small: list[Sample] = []
    large: list[Sample] = []
    held_out = tuple(count for count in HELD_OUT if count <= ranks_max)
    with interruptible() as cut:
        if simulated is not None:
            given = click.get_current_context().get_parameter_source
            for name in ("rate", "segment"):
                if given(name) is ParameterSource.COMMANDLINE:
                    raise click.UsageError(f"--{name} cannot be given with --simulated")
            before = read(simulated)
            if before["bench"] != "estimate_simulated":
                raise click.UsageError(
                    f"{simulated} is a result of bench {before['bench']}, not of estimate_simulated"
                )
            rate, segment = before["rate"], before["segment"]
            small, large = (recorded(before["rows"], ranks) for ranks in (FITTED, held_out))
        else:
            sampled(FITTED, rate, segment, small)
            sampled(held_out, rate, segment, large)
    if not large:
        raise click.ClickException(
            "nothing to compare: no simulated operation has more ranks than those that the "
            "estimate is fitted to"
        )
    network = fit(small, "simulated", "estimate_simulated").network
    near, far = compared(network, small), compared(network, large)
    rows = [row_of(one, False) for one in near] + [row_of(one, True) for one in far]
    notes, summaries = [], {}
    for name, each in (("fitted", near), ("held out", far)):
        rings = [one for one in each if one.sample.algorithm == "ring"]
        for kind, some in (("all", each), ("rings", rings)):
            total = summary_of(some)
            summaries[f"{name}, {kind}"] = vars(total)
            errors = f"error {percent(total.median)} in the median, 95 % below {percent(total.p95)}"
            notes.append(f"{name}, {kind}: {len(some)} operations and sizes, {errors}")
    found = document("estimate_simulated", rows, summaries=summaries, rate=rate, segment=segment)
    emit(found, json_path, COLUMNS, notes, cut)
