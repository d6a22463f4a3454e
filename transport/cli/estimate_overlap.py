"""`weft estimate overlap`: how much of the communication in a trace is hidden by computation."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli import trace_open
from transport.cli.options import InputFile, TimeType
from transport.cli.output import json_option, print_table, write_json
from transport.ground.text import printable
from transport.ground.units import binary_text, bytes_text, percent, rate_text, time_text

if TYPE_CHECKING:
    from transport.estimate.buckets import Buckets
    from transport.estimate.overlap import Overlap
    from transport.estimate.traced import Gain, Step

STEPS_SHOWN_MAX = 16  # maximum number of printed ranks of a trace of weft


class WithUnit(TimeType):
    """Parses a time such as "5 ms"; refuses a number without a unit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if str(value).strip().isdigit():
            self.fail(f"{value} has no unit: write {value}ms", param, ctx)
        return super().convert(value, param, ctx)


@click.command("overlap", short_help="Say what computation hides in a trace.")
@click.argument("traces", nargs=-1, required=True, type=InputFile(dir_okay=True))
@click.option(
    "--alone",
    "alone_ns",
    metavar="TIME",
    type=WithUnit(),
    help="For a trace of weft: the time of a step without communication, such as 158ms.",
)
@click.option(
    "--operations",
    type=click.IntRange(1),
    help="For a trace of weft: operations of a step. Default: the sequence that repeats.",
)
@trace_open.job_option
@json_option
def command(
    traces: tuple[Path, ...],
    alone_ns: int | None,
    operations: int | None,
    job: str | None,
    json_path: str | None,
) -> None:
    """Say how much of the communication in TRACES is hidden by computation.

    TRACES are files of PyTorch's profiler (Kineto) or folders of them, each of one rank; or one
    folder with a trace of weft, which does not record when the GPU computes: give --alone.

    \b
    Examples:
      weft estimate overlap log/*.pt.trace.json.gz
      weft estimate overlap traces --alone 158ms
    """
    from transport.estimate.overlap import overlap_of
    from transport.trace.layout import TraceError

    if len(traces) == 1 and traces[0].is_dir() and is_of_weft(traces[0]):
        show_traced(traces[0], alone_ns, operations, job, json_path)
        return
    for name, given in (("--alone", alone_ns), ("--operations", operations), ("--job", job)):
        if given is not None:
            raise click.UsageError(
                f"{name} applies only to a trace of weft: give one folder that has such a trace as "
                f"TRACES, or leave {name} out"
            )
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
    named = [*folder.glob("*.json"), *folder.glob("*.json.gz")]
    found = sorted(one for one in named if one.is_file())  # no pipe, which never ends
    if not found and is_of_weft(folder):
        raise click.UsageError(f"{folder} has a trace of weft: give that folder alone")
    if not found:
        raise click.UsageError(f"{folder} has no .json, no .json.gz files and no trace of weft")
    return found


def is_of_weft(folder: Path) -> bool:
    """Whether the folder has a trace of weft, or the tables of one."""
    return any(folder.rglob("*.trace")) or (folder / "processes.parquet").exists()


def show_traced(
    folder: Path,
    alone_ns: int | None,
    operations: int | None,
    job: str | None,
    json_path: str | None,
) -> None:
    """Prints the median step of each rank of a trace of weft."""
    from transport.estimate.traced import gains_of, steps_of, unfit

    with trace_open.opened(folder, job) as store, trace_open.reporting_errors():
        if why := unfit(store):
            raise click.UsageError(f"{folder} has {why}")
        steps, notes = steps_of(store, alone_ns, operations)
        notes = [*store.notes(), *notes]
    if alone_ns is None:
        notes.append(
            "the trace does not record when the GPU computes: "
            "give --alone TIME to see the exposed part"
        )
    gains = gains_of(steps)
    if json_path is not None:
        write_json(document(steps, gains, notes), json_path)
        return
    heads = ["rank", "steps", "operations", "step", "communication", "share"]
    heads += ["exposed", "hidden", "idle"] if alone_ns is not None else []
    print_table([*heads, "of it"], [step_cells(one) for one in steps[:STEPS_SHOWN_MAX]])
    if steps[STEPS_SHOWN_MAX:]:
        click.echo(f"{len(steps) - STEPS_SHOWN_MAX} more ranks: weft estimate overlap --json -")
    click.echo()
    rows = [[one.network, one.time_text, one.share_text] for one in gains]
    print_table(["network", "a step is shorter by", "share"], rows)
    trace_open.show_notes(notes)


def document(steps: list[Step], gains: list[Gain], notes: list[str]) -> dict[str, Any]:
    return {
        "steps": [asdict(one) for one in steps],
        "faster": [asdict(one) for one in gains],
        "notes": notes,
    }


def step_cells(one: Step) -> list[str]:
    cells = ["?" if one.rank is None else str(one.rank), str(one.steps), str(one.operations)]
    share = percent(one.communication_ns / one.step_ns)
    cells += [time_text(one.step_ns), time_text(one.communication_ns), share]
    known = (one.exposed_ns, one.hidden_ns, one.idle_ns)
    cells += [time_text(ns) for ns in known if ns is not None]
    return [*cells, ", ".join(f"{printable(k)} {time_text(ns)}" for k, ns in one.parts.items())]


def show(one: Overlap) -> None:
    click.echo(f"{printable(one.file)}: {time_text(one.span_ns)}")
    parts = [
        ("computation", one.compute_ns),
        ("communication", one.communication_ns),
        ("both at once", one.both_ns),
        ("exposed communication", one.exposed_ns),
        ("copies alone", one.memory_ns),
        ("idle", one.idle_ns),
    ]
    print_table(
        ["part", "time", "share"],
        [[name, time_text(ns), percent(ns / max(one.span_ns, 1.0))] for name, ns in parts],
    )
    click.echo(f"computation hides {percent(one.overlap)} of the communication")
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
                    percent(1 - part.exposed_ns / part.ns) if part.ns else "",
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
    """Prints how much communication gradient buckets of other sizes would leave exposed."""
    size, exposed_ns = found.best
    click.echo(
        f"\n{found.buckets} buckets of gradients a step, {bytes_text(found.step_bytes)}; an "
        f"AllReduce: latency {time_text(found.latency_ns)}, rate {rate_text(found.bytes_per_s)}"
    )
    print_table(
        ["bucket size", "exposed a step"],
        [
            ["as in the trace", time_text(found.exposed_ns)],
            *([binary_text(each), time_text(ns)] for each, ns in found.by_size),
        ],
    )
    gain_ns = found.exposed_ns - exposed_ns
    if gain_ns > 0.01 * found.backward_ns:
        click.echo(
            f"buckets of {binary_text(size)} would hide {time_text(gain_ns)} more of a step"
            f": DistributedDataParallel(bucket_cap_mb={size >> 20})"
        )
    else:
        click.echo("no other bucket size would hide noticeably more communication")
    click.echo(
        "note: assumes that gradients become ready at an even rate, and that the trace begins "
        "between two steps"
    )
