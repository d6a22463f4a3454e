"""`weft diagnose --lost-time`: how long other ranks waited for each rank, over the whole job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from transport.cli import trace_open as shared
from transport.cli.output import print_table, write_json
from transport.ground.units import percent, time_text

if TYPE_CHECKING:
    from transport.diagnose.waits import Waited, Waits

SHOWN = 16  # ranks in the table; --json has all


def run(folder: Path, job: str | None, json_path: str | None) -> int:
    """Prints the table; returns the exit status: 0, or 4 if the trace has no collectives."""
    from transport.diagnose import lost_time, report

    with shared.opened(folder, job) as store, shared.reporting_errors():
        found = lost_time(store)
        notes = store.notes()
    if json_path is not None:
        write_json(report.lost_as_json(found), json_path)
    else:
        show(found)
        shared.show_notes(notes)
    return 0 if found.each else 4


def show(found: Waits) -> None:
    if not found.each:
        click.echo("not judged: the trace has no collective whose ranks show when they came")
        return
    click.echo(
        f"others waited {time_text(found.waited_ns)} of GPU time for late ranks, "
        f"{percent(found.waited_ns / found.job_ns)} of the job's {time_text(found.job_ns)}, in "
        f"{found.iterations} iterations"
    )
    rows = [_row(one, found) for one in found.each[:SHOWN]]
    print_table(["RANK", "HOST", "OTHERS WAITED", "OF THE JOB", "LAST IN", "LATE"], rows)
    if len(found.each) > SHOWN:
        rest = sum(one.waited_ns for one in found.each[SHOWN:])
        click.echo(f"{len(found.each) - SHOWN} more ranks: {time_text(rest)}")
    if 1 < len(found.hosts) < len(found.each):
        click.echo()
        hosts = list(found.hosts.items())[:SHOWN]
        print_table(
            ["HOST", "OTHERS WAITED", "OF THE JOB"],
            [[host or "?", time_text(ns), percent(ns / found.job_ns)] for host, ns in hosts],
        )


def _row(one: Waited, found: Waits) -> list[str]:
    late = f"{one.late} of {found.iterations} iterations" if one.late else "-"
    if one.late and (one.period.steps or one.period.ns):
        late += f", {one.period.text}"
    return [
        str(one.rank) if one.rank >= 0 else one.name,
        one.host or "?",
        time_text(one.waited_ns),
        percent(one.waited_ns / found.job_ns),
        f"{one.last} of {one.collectives}",
        late,
    ]
