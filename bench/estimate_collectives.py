"""Compares estimates of operations with published times of NCCL: those of the fit, and held out.

The times are those of bench/lib/published_collectives.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import click
import numpy as np

from bench.lib.common import Config, document, emit, interruptible, json_option, print_table
from bench.lib.published_collectives import SETS, PublishedTime, PublishedTimeError, read
from transport.estimate.collectives import estimate
from transport.estimate.networks import of_links
from transport.ground.collectives import bus_factor
from transport.ground.units import percent

COLUMNS = (
    *("set", "run", "published_us", "estimated_us", "error"),
    *("published_busbw", "estimated_busbw", "algorithm", "protocol"),
)
SUMMARY_COLUMNS = ("set", "group", "rows", "median_error_size", "p90_error_size", "median_error")
NOTES = ["error: of the time; negative: too fast; busbw: GB/s, as nccl-tests count it"]
LATENCY_BYTES = 64 << 10  # at most so many bytes: latency decides
MIDDLE_BYTES = 64 << 20
GROUPS = ("latencies", "middle sizes", "large sizes", "all")


def compared(set_name: str, one: PublishedTime) -> Config:
    """A row: published and estimated time in us, error: estimated / published - 1."""
    network = of_links(one.between, one.inside, one.gpus_per_node, one.nics_per_node or None)
    found = estimate(network, one.operation, one.size_bytes, one.gpus)
    estimated_us = found.time_ns / 1e3
    off = estimated_us / one.time_us - 1
    moved = one.size_bytes * bus_factor(one.operation, one.gpus) / 1e3  # GB/s times us
    return {
        "set": set_name,
        "run": one.run,
        "source": one.source,
        "operation": one.operation,
        "size_bytes": one.size_bytes,
        "gpus": one.gpus,
        "published_us": one.time_us,
        "estimated_us": estimated_us,
        "published_busbw": moved / one.time_us,
        "estimated_busbw": moved / estimated_us,
        "algorithm": found.algorithm,
        "protocol": found.protocol,
        "error": off,
        "error_size": abs(off),
    }


def kind(size_bytes: float) -> str:
    """One of GROUPS."""
    if size_bytes <= LATENCY_BYTES:
        return GROUPS[0]
    return GROUPS[1] if size_bytes <= MIDDLE_BYTES else GROUPS[2]


def summary(rows: Sequence[Config]) -> list[Config]:
    """Errors of each set, by groups of sizes, and of all."""
    found: list[Config] = []
    for name in SETS:
        for group in GROUPS:
            errors = [
                row["error"]
                for row in rows
                if row["set"] == name and group in (kind(row["size_bytes"]), "all")
            ]
            if not errors:
                continue
            found.append(
                {
                    "set": name,
                    "group": group,
                    "rows": len(errors),
                    "median_error_size": statistics.median(map(abs, errors)),
                    "p90_error_size": float(np.percentile(np.abs(errors), 90)),
                    "median_error": statistics.median(errors),
                }
            )
    return found


def _shown(rows: Sequence[Config]) -> list[list[str]]:
    return [
        [
            *(str(row[column]) for column in SUMMARY_COLUMNS[:3]),
            *(percent(row[column]) for column in SUMMARY_COLUMNS[3:5]),
            percent(row["median_error"], signed=True),
        ]
        for row in rows
    ]


@click.command("estimate_collectives")
@json_option
def command(json_path: str | None) -> None:
    """Compares estimated times of operations with published ones of NCCL."""
    rows: list[Config] = []
    try:
        with interruptible() as cut:
            for name, file in SETS.items():
                rows += [compared(name, one) for one in read(file)]
    except PublishedTimeError as error:
        raise click.ClickException(str(error)) from None
    groups = summary(rows)
    more = {"keys": ["set", "run"], "measures": {"error_size": "lower"}, "by_size": groups}
    emit(document("estimate_collectives", rows, **more), json_path, COLUMNS, NOTES, cut)
    if json_path != "-":
        print_table(SUMMARY_COLUMNS, _shown(groups))
