"""`weft trace profile`: prints how often, how large and how fast NCCL's operations were."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli import trace_open as shared
from transport.cli.output import json_option, print_table, write_json
from transport.ground.units import bytes_text, percent, span_text, time_text

if TYPE_CHECKING:
    from transport.trace.profile import Communicator, Operations, Profile, Sized

BARS = "▁▂▃▄▅▆▇█"
BARS_MAX = 24
COMMS_MAX = 32  # maximum number of printed communicators
MEMBERS_MAX = 40  # longest printed list of ranks, in characters


@click.command("profile", short_help="Sum up operations: calls, sizes, times, bandwidths.")
@shared.folder_argument
@shared.job_option
@click.option("--sizes", is_flag=True, help="Print instead a row for each function and size.")
@json_option
def command(folder: Path, job: str | None, sizes: bool, json_path: str | None) -> None:
    """Sum up operations by function, algorithm, protocol and datatype, and by communicator.

    Calls of all ranks are counted. Sizes are those of a rank's call. Bandwidths are as in
    nccl-tests, from the time between the first and the last use of the network.

    Example: weft trace profile traces
    """
    from transport.trace.profile import profile_of

    with shared.opened(folder, job) as store, shared.reporting_errors():
        found = profile_of(store)
        notes = [*store.notes(), *found.notes]
    if json_path is not None:
        write_json(asdict(found) | {"notes": notes}, json_path)
        return
    if sizes:
        heads = ["function", "size", "calls", "bytes", "time", "median", "busbw", "timed by"]
        print_table(heads, map(size_cells, found.by_size))
        shared.show_notes(notes)
        return
    show(found)
    shared.show_notes(notes)


def show(found: Profile) -> None:
    heads = ["function", "algorithm", "protocol", "datatype", "calls", "bytes", "p50", "p95", "max"]
    heads += ["sizes", "time", "share", "algbw", "busbw", "timed by"]
    if found.operations:
        print_table(heads, map(operation_cells, found.operations))
    if found.communicators:
        click.echo()
        heads = ["communicator", "name", "ranks", "nodes", "of the job", "calls", "bytes", "time"]
        heads += ["functions", "use (a guess)"]
        print_table(heads, map(communicator_cells, found.communicators[:COMMS_MAX]))
        if found.communicators[COMMS_MAX:]:
            more = len(found.communicators) - COMMS_MAX
            click.echo(f"{more} more communicators are not shown; --json - lists all of them")


def size(value: float | None, per: str = "") -> str:
    return "" if value is None else bytes_text(value) + per


def known_size(value: int | None, unsized: int) -> str:
    """A sum of sizes; "?": none of them is known, "+ ?": some are not."""
    if not unsized:
        return size(value)
    return "?" if value is None else f"{bytes_text(value)} + ?"


def took(time_ns: int | None) -> str:
    return "?" if time_ns is None else time_text(time_ns)


def operation_cells(one: Operations) -> list[str]:
    missing = "?" if one.unsized else ""
    each = (one.bytes_p50, one.bytes_p95, one.bytes_max)
    sizes = [known_size(one.bytes, one.unsized), *(size(value) or missing for value in each)]
    names = [one.function, one.algorithm, one.protocol, one.datatype.removeprefix("nccl")]
    rates = [size(one.algorithm_bytes_per_s, "/s"), size(one.bus_bytes_per_s, "/s")]
    times = [took(one.time_ns), "?" if one.time_ns is None else percent(one.time_share)]
    timed_by = ", ".join(one.timed_by)
    return [*names, str(one.count), *sizes, bars(one.sizes), *times, *rates, timed_by]


def size_cells(one: Sized) -> list[str]:
    times = ["" if ns is None else time_text(ns) for ns in (one.time_ns, one.time_ns_p50)]
    sums = [str(one.count), bytes_text(one.bytes), *times, size(one.bus_bytes_per_s, "/s")]
    return [one.function, span_text(one.power), *sums, ", ".join(one.timed_by)]


def bars(sizes: dict[int, int]) -> str:
    """A histogram: a character for each power of two from the smallest to the largest size."""
    if not sizes:
        return ""
    powers = range(min(sizes), max(sizes) + 1)[:BARS_MAX]
    most = max(sizes.values())
    counts = [sizes.get(power, 0) for power in powers]
    return "".join(BARS[(one * 7 + most - 1) // most] if one else " " for one in counts)


def communicator_cells(one: Communicator) -> list[str]:
    from transport.trace.notes import ranges

    members = ranges(one.members)
    if len(members) > MEMBERS_MAX:
        members = members[: MEMBERS_MAX - 3] + "..."
    counts = ["?" if one.ranks is None else str(one.ranks)]
    counts.append("" if one.nodes is None else str(one.nodes))
    sums = [str(one.count), known_size(one.bytes, one.unsized), took(one.time_ns)]
    return [
        *(one.comm_id, one.name, *counts, members, *sums),
        *(", ".join(one.functions[:3]), one.parallelism),
    ]
