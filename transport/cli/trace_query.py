"""`weft trace query`: runs a SQL query on the tables of a trace."""

from __future__ import annotations

import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from transport.cli import trace_open as shared
from transport.cli.options import CSV, OutputFile
from transport.cli.output import json_option, print_table, write_json
from transport.ground.text import csv_table


@click.command("query", short_help="Query the tables of a trace by SQL.")
@shared.folder_argument
@click.argument("sql", metavar="SQL")
@shared.job_option
@click.option(
    "--csv",
    "csv_path",
    metavar="FILE",
    type=OutputFile(*CSV, dir_okay=False, writable=True, allow_dash=True),
    help="Write CSV to FILE instead of a table; - is stdout.",
)
@json_option
def command(
    folder: Path, sql: str, job: str | None, csv_path: str | None, json_path: str | None
) -> None:
    """Query the tables of a trace with a SELECT statement of DuckDB; - reads SQL from stdin.

    weft docs tracing Tables lists the tables. SHOW TABLES and DESCRIBE messages show them, too.

    Example: weft trace query traces "SELECT function, sum(bytes) FROM operations GROUP BY ALL"
    """
    from transport.trace.query import select

    statement = sys.stdin.read() if sql == "-" else sql
    with shared.opened(folder, job) as store, shared.reporting_errors():
        heads, rows = select(store, statement)
    if csv_path is not None:
        _write_csv(heads, rows, csv_path)
    if json_path is not None:
        write_json([dict(zip(heads, map(_plain, row), strict=True)) for row in rows], json_path)
    if csv_path is None and json_path is None:
        print_table(heads, [[_text(value) for value in row] for row in rows])


def _write_csv(heads: list[str], rows: list[tuple[Any, ...]], path: str) -> None:
    text = csv_table(heads, [[_text(value) for value in row] for row in rows])
    if path == "-":
        click.echo(text, nl=False)
    else:
        shared.write_text(text, Path(path))


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    """The value, converted to a type that JSON has."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, datetime | date | time | timedelta | bytes):
        return str(value)
    return value
