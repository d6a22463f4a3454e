"""`weft top`: rates of running processes, and what they wait for."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console

from transport import telemetry
from transport.cli import INTERRUPTED
from transport.cli.options import SecondsType
from transport.cli.output import json_option, write_json
from transport.live import ProcessRates, Reading, rates, read
from transport.live.columns import SORTABLE, SORTED_FIRST
from transport.live.screen import watch
from transport.live.view import View, content

NOTHING = "no running process has a telemetry page"
PLAIN_WIDTH = 10_000  # characters of a line where output is no terminal: nothing is cut


@click.command("top")
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(1))
@click.option(
    "--interval",
    "interval_s",
    metavar="TIME",
    type=SecondsType(0.1, 3600),
    default="1s",
    show_default=True,
    help="Time between two readings; rates are those since the last one.",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(1),
    help="Print N snapshots and end; the default, with N = 1, if output is no terminal.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    type=click.Choice(SORTABLE, case_sensitive=False),
    default=SORTED_FIRST,
    show_default=True,
    help=f"Sort by this column: {', '.join(SORTABLE)}.",
)
@click.option(
    "--rows",
    "rows_max",
    metavar="N",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Print at most N rows of a snapshot, of all tables; headings do not count.",
)
@click.option("--engines", "-e", is_flag=True, help="Show engines too.")
@click.option("--connections", "-c", is_flag=True, help="Show connections too.")
@click.option("--paths", "-p", is_flag=True, help="Show paths too.")
@json_option
def command(
    pids: tuple[int, ...],
    interval_s: float,
    count: int | None,
    json_path: str | None,
    rows_max: int,
    **shown: Any,
) -> int:
    """Show what running processes send and receive, and what they wait for.

    Without PID: all processes of this user, as root of all users, that use weft. Each keeps its
    counters in a file, its telemetry page, in /dev/shm or where WEFT_TELEMETRY says. Keys: q ends,
    h lists all. For every counter of a process, see `weft counters --live`; to keep numbers,
    `weft metrics`. docs/LIVE.md says what the columns mean.

    \b
    Examples:
      weft top
      weft top 4711 4712 --sort LOSS --paths
      weft top --count 3 --json -
    """
    said: set[str] = set()
    first = _read(pids, said)
    _check_pids(pids, first)
    first = first.of_running()
    view = View(**shown)
    console = Console(highlight=False)
    plain = count is not None or json_path is not None or not sys.stdin.isatty()
    if not plain and console.is_terminal and not console.is_dumb_terminal:
        ended = watch(lambda: read(pids=pids).of_running(), interval_s, view, console)
        return INTERRUPTED if ended == signal.SIGINT else 0
    width = console.width if console.is_terminal else PLAIN_WIDTH
    _snapshots(first, pids, said, (interval_s, count or 1, rows_max), view, width, json_path)
    return 0


def _check_pids(pids: tuple[int, ...], found: Reading) -> None:
    """Refuses a process without a telemetry page, and one that has ended."""
    for pid in pids:
        states = {page.process_state for page in found.pages if page.pid == pid}
        if not states:
            where = telemetry.directory()
            raise click.ClickException(f"no telemetry page of process {pid} in {where} can be read")
        if states == {"gone"}:
            raise click.ClickException(
                f"process {pid} has ended: weft counters --live {pid} shows its last counters"
            )


def _read(pids: tuple[int, ...], said: set[str]) -> Reading:
    """Takes a reading and prints its problems, except those that are in `said`.

    Afterwards `said` holds all problems of this reading, and no others.
    """
    try:
        found = read(pids=pids)
    except telemetry.PageError as error:
        raise click.ClickException(str(error)) from None
    for problem in found.problems:
        if problem not in said:
            click.echo(f"weft: {problem}", err=True)
    said.clear()
    said.update(found.problems)
    return found


def _snapshots(
    before: Reading,
    pids: tuple[int, ...],
    said: set[str],
    limits: tuple[float, int, int],
    view: View,
    width: int,
    json_path: str | None,
) -> None:
    """Prints the rates of several intervals, or writes all of them as JSON.

    limits: the time between two readings, how many, and how many rows of each are printed.
    """
    interval_s, count, rows_max = limits
    document = []
    for index in range(count):
        time.sleep(interval_s)
        now = _read(pids, said).of_running()
        found = rates(before, now)
        if json_path is not None:
            seconds = (now.read_ns - before.read_ns) / 1e9
            document.append(_plain(found, seconds))
        else:
            lines = content(found, view, width, marked=False) or [NOTHING]
            click.echo("\n".join([*([""] if index else []), *_first_rows(lines, rows_max)]))
        before = now
    if json_path is not None:
        write_json(document, json_path)


def _first_rows(lines: list[str], rows_max: int) -> list[str]:
    """The first rows of tables, with their headings, and how many rows more there are.

    An empty line is between tables, and the first line of each is its heading.
    """
    rows = [at for at, line in enumerate(lines) if line and at and lines[at - 1]]
    more = len(rows) - rows_max
    if more <= 0:
        return lines
    return [*lines[: rows[rows_max - 1] + 1], f"... {more} more rows: --rows, or give a PID"]


def _plain(processes: tuple[ProcessRates, ...], interval_s: float) -> dict[str, Any]:
    return {
        "realtime_s": time.time(),
        "interval_s": interval_s,
        "processes": [asdict(process) for process in processes],
    }
