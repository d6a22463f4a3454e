"""`weft estimate overlap`: how much communication computation hides, from a profiler's trace."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli.output import json_option, print_table, write_json
from transport.sim.units import bytes_text, time_text
from transport.trace.text import printable

if TYPE_CHECKING:
    from transport.estimate.buckets import Buckets
    from transport.estimate.overlap import Overlap


@click.command("overlap")
@click.argument("traces", nargs=-1, required=True,
                type=click.Path(path_type=Path, exists=True))  # fmt: skip
@json_option
def command(traces: tuple[Path, ...], json_path: str | None) -> None:
    """Say how much of the communication in TRACES computation hides.

    TRACES are files of PyTorch's profiler (Kineto), or folders of them; each is of one rank.

    Example: weft estimate overlap log/*.pt.trace.json.gz
    """
    from transport.estimate.overlap import overlap_of
    from transport.trace.layout import TraceError

    files = [file for one in traces for file in ([one] if one.is_file() else files_of(one))]
    try:
        found = [overlap_of(file) for file in files]
    except TraceError as error:
        raise click.UsageError(str(error)) from None
    if json_path is not None:
        rows = [
            asdict(one)
            | {"exposed_ns": one.exposed_ns, "idle_ns": one.idle_ns, "overlap": one.overlap}
            for one in found
        ]
        write_json(rows, json_path)
        return
    for one in found:
        show(one)


def files_of(folder: Path) -> list[Path]:
    found = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not found:
        raise click.UsageError(f"{folder} has no .json and no .json.gz files")
    return found


def show(one: Overlap) -> None:
    click.echo(f"{printable(one.file)}: {time_text(one.span_ns)}")
    parts = [("computation", one.compute_ns), ("communication", one.communication_ns),
             ("both at once", one.both_ns), ("exposed communication", one.exposed_ns),
             ("copies alone", one.memory_ns), ("idle", one.idle_ns)]  # fmt: skip
    print_table(
        ["part", "time", "share"],
        [[name, time_text(ns), f"{ns / max(one.span_ns, 1.0):.1%}"] for name, ns in parts],
    )
    click.echo(f"computation hides {one.overlap:.1%} of the communication")
    if one.parts:
        click.echo()
        print_table(
            ["operation", "kernels", "time", "exposed", "hidden"],
            [
                [
                    printable(part.name),
                    str(part.kernels),
                    time_text(part.ns),
                    time_text(part.exposed_ns),
                    f"{1 - part.exposed_ns / part.ns:.1%}" if part.ns else "",
                ]
                for part in one.parts
            ],
        )
    if one.buckets is not None:
        show_buckets(one.buckets)
    for note in one.notes:
        click.echo(f"note: {note}")
    click.echo()


def show_buckets(found: Buckets) -> None:
    """What buckets of other sizes would expose; lines about DDP's AllReduces."""
    size, exposed_ns = found.best
    click.echo(
        f"\n{found.buckets} buckets of gradients a step, {bytes_text(found.step_bytes)}; an "
        f"AllReduce takes {time_text(found.latency_ns)} and {bytes_text(found.bytes_per_s)}/s"
    )
    print_table(
        ["bucket size", "exposed a step"],
        [["as in the trace", time_text(found.exposed_ns)],
         *([f"{each >> 20} MiB", time_text(ns)] for each, ns in found.by_size)],
    )  # fmt: skip
    gain_ns = found.exposed_ns - exposed_ns
    if gain_ns > 0.01 * found.backward_ns:
        click.echo(f"buckets of {size >> 20} MiB would hide {time_text(gain_ns)} more of a step: "
                   f"DistributedDataParallel(bucket_cap_mb={size >> 20})")  # fmt: skip
    else:
        click.echo("no other size of buckets would hide more")
    click.echo("note: gradients are taken to become ready at an even rate, and the trace to begin "
               "between two steps")  # fmt: skip
