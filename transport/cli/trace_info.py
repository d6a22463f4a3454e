"""`weft trace info`: prints what a folder of traces contains, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transport.cli import trace_open as shared
from transport.cli.output import json_option, print_table, write_json
from transport.ground.units import bytes_text, time_text

if TYPE_CHECKING:
    from transport.trace.store import Store

HOSTS_MAX = 64  # limit of printed hosts
_HOST = (
    *("host", "clock", "processes", "ranks", "records", "dropped", "bytes"),
    *("clock_offset_ns", "clock_error_ns"),
)
_HOSTS = """
SELECT host, clock, count(*), list_sort(list(rank) FILTER (rank IS NOT NULL)),
  sum(records)::BIGINT, sum(dropped)::BIGINT, sum(file_bytes)::BIGINT, any_value(clock_offset_ns),
  any_value(clock_error_ns)
FROM processes GROUP BY host, clock ORDER BY min(process)
"""
_TOTALS = """
SELECT count(*), sum(records)::BIGINT, sum(dropped)::BIGINT, sum(file_bytes)::BIGINT,
  sum(files)::BIGINT, min(first_ns), max(last_ns), count(*) FILTER (damage <> ''),
  count(*) FILTER (NOT ended) FROM processes
"""
# Both ends of a message write a row of it and of its stripes.
_SENT = "SELECT count(*) FILTER (sends) FROM {}"
_SENT_TABLES = ("messages", "stripes")
_UNSIZED = "SELECT count(*) FROM operations WHERE bytes IS NULL AND function <> 'Barrier'"


@click.command("info", short_help="Show what a folder of traces holds, and what is missing.")
@shared.folder_argument
@shared.job_option
@json_option
def command(folder: Path, job: str | None, json_path: str | None) -> None:
    """Show what a folder of traces holds: processes, ranks, time, records, losses, clocks.

    Example: weft trace info traces
    """
    with shared.opened(folder, job, one_job=False) as store, shared.reporting_errors():
        found = document(store)
    if json_path is not None:
        write_json(found, json_path)
        return
    print_table(["what", "is"], lines(found))
    click.echo()
    heads = ["host", "processes", "ranks", "records", "dropped", "size", "clock moved by", "error"]
    print_table(heads, map(host_cells, found["hosts"][:HOSTS_MAX]))
    if found["hosts"][HOSTS_MAX:]:
        click.echo(f"{len(found['hosts']) - HOSTS_MAX} more hosts: weft trace info --json -")
    shared.show_notes(found["notes"])


def document(store: Store) -> dict[str, Any]:
    """Everything that the command prints; times are in ns since 1970, sizes in bytes."""
    from transport.trace.notes import missing_ranks
    from transport.trace.tables import TABLES

    (totals,) = store.rows(_TOTALS)
    names = (
        *("processes", "records", "dropped", "bytes", "files", "first_ns", "last_ns"),
        *("damaged", "without_end"),
    )
    missing, size = missing_ranks(store.rows)
    return {
        "jobs": [{"job": job, "processes": count} for job, count in store.jobs()],
        **dict(zip(names, totals, strict=True)),
        "ranks": size,
        "missing_ranks": missing,
        "rows": {t: store.rows(f"SELECT count(*) FROM {t}")[0][0] for t in TABLES},
        "sent": {t: store.rows(_SENT.format(t))[0][0] for t in _SENT_TABLES},
        "operations_of_unknown_size": store.rows(_UNSIZED)[0][0],
        "hosts": [dict(zip(_HOST, row, strict=True)) for row in store.rows(_HOSTS)],
        "notes": store.notes(),
    }


def lines(found: dict[str, Any]) -> Iterable[tuple[str, str]]:
    from transport.trace.notes import ranges

    yield "jobs", ", ".join(one["job"] or "unnamed" for one in found["jobs"])
    yield "processes", str(found["processes"])
    missing = found["missing_ranks"]
    without = f"; without trace: {ranges(missing)}" if missing else ""
    yield "ranks", (str(found["ranks"]) if found["ranks"] else "not known how many") + without
    if found["first_ns"] is not None:
        began = datetime.fromtimestamp(found["first_ns"] / 1e9, UTC)
        span = time_text(found["last_ns"] - found["first_ns"])
        yield "time", f"{began.isoformat(' ', 'milliseconds')}, {span}"
    yield "files", f"{found['files']}, {bytes_text(found['bytes'] or 0)}"
    yield "records", f"{found['records']}, {found['dropped']} dropped"
    damage = f"{found['damaged']} processes" if found["damaged"] else "none"
    without = f"; {found['without_end']} processes have no end" if found["without_end"] else ""
    yield "damage", damage + without
    rows = ((table, count) for table, count in found["rows"].items() if table != "processes")
    sent = found["sent"]
    yield "rows", ", ".join(_rows(*row, sent.get(row[0])) for row in rows if row[1]) or "none"
    if found["operations_of_unknown_size"]:
        yield "unknown size (?)", f"{found['operations_of_unknown_size']} operations"


def _rows(table: str, count: int, sent: int | None) -> str:
    """The number of rows of a table. sent: how many are of senders; None: it has no ways."""
    ways = "" if sent is None else f" ({sent} sent, {count - sent} received)"
    return f"{count} {table}{ways}"


def host_cells(host: dict[str, Any]) -> list[str]:
    from transport.trace.notes import ranges

    error_ns = host["clock_error_ns"]
    return [
        host["host"],
        str(host["processes"]),
        ranges(sorted(set(host["ranks"] or []))),
        str(host["records"]),
        str(host["dropped"]),
        bytes_text(host["bytes"]),
        time_text(host["clock_offset_ns"]),
        "unknown" if error_ns is None else time_text(error_ns),
    ]
