"""`weft diagnose --lost-time`: how long other ranks waited for each rank, over the whole job."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli import trace_open as shared
from transport.cli.output import print_table, write_json
from transport.diagnose.located import spot_of
from transport.ground.units import percent, time_text
from transport.trace.inventory import Spot

if TYPE_CHECKING:
    from transport.diagnose.waits import Waited, Waits
    from transport.trace.inventory import Inventory

NOT_JUDGED = (
    "not judged: the trace has no collective whose ranks show when they came: trace a job that "
    "calls NCCL's collectives (weft trace record -- CMD, on each host), or import a profile of "
    "one (weft trace import); messages of programs without NCCL are no collectives"
)
SHOWN = 16  # ranks in the table; --json has all


def run(
    folder: Path, job: str | None, json_path: str | None, inventory_file: Path | None = None
) -> int:
    """Prints the table; returns the exit status: 0, or 4 if the trace has no collectives."""
    from transport.diagnose import lost_time

    inventory = shared.inventory_of(inventory_file)
    with shared.opened(folder, job) as store, shared.reporting_errors():
        found = lost_time(store)
        notes = store.notes()
    if json_path is not None:
        write_json(as_json(found, inventory), json_path)
    else:
        show(found, inventory)
        shared.show_notes(notes)
    return 0 if found.each else 4


def spots_of(found: Waits, inventory: Inventory) -> list[Spot]:
    """Where each of the ranks is, in their order."""
    hosts = {one.rank: one.host for one in found.each if one.rank >= 0}
    return [spot_of(inventory, one.rank, hosts) for one in found.each]


def racks_of(found: Waits, inventory: Inventory) -> list[tuple[str, int]]:
    """What others waited for the ranks of each rack, in ns, the costliest first."""
    made: Counter[str] = Counter()
    for one, spot in zip(found.each, spots_of(found, inventory), strict=True):
        made[spot.rack] += one.waited_ns
    return made.most_common()


def as_json(found: Waits, inventory: Inventory | None = None) -> dict[str, Any]:
    from transport.diagnose.report import lost_as_json

    made = lost_as_json(found)
    if inventory is not None:
        for row, spot in zip(made["ranks"], spots_of(found, inventory), strict=True):
            row["inventory"] = spot.as_json()
        racks = racks_of(found, inventory)
        made["racks"] = [{"rack": rack, "waited_ns": ns} for rack, ns in racks]
    return made


def show(found: Waits, inventory: Inventory | None = None) -> None:
    if not found.each:
        click.echo(NOT_JUDGED)
        return
    click.echo(
        f"others waited {time_text(found.waited_ns)} of GPU time for late ranks, "
        f"{percent(found.waited_ns / found.job_ns)} of the job's {time_text(found.job_ns)}, in "
        f"{found.iterations} iterations"
    )
    rows = [_row(one, found) for one in found.each[:SHOWN]]
    headings = ["RANK", "HOST", "OTHERS WAITED", "OF THE JOB", "LAST IN", "LATE"]
    if inventory is not None:
        headings.insert(2, "RACK")
        for row, spot in zip(rows, spots_of(found, inventory), strict=False):
            row.insert(2, spot.rack)
    print_table(headings, rows)
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
    racks = [] if inventory is None else racks_of(found, inventory)
    if len(racks) > 1:
        click.echo()
        print_table(
            ["RACK", "OTHERS WAITED", "OF THE JOB"],
            [[rack, time_text(ns), percent(ns / found.job_ns)] for rack, ns in racks[:SHOWN]],
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
