"""Loads the traces below a folder into the tables of a database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from transport.trace.clocks import Clock, align, clocks_of
from transport.trace.folder import ProcessFiles, number, scan
from transport.trace.gather import GATHERED, Columns, ProcessRecords, read_process
from transport.trace.layout import TraceError
from transport.trace.tables import TABLES, create

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_AT_ONCE = 500_000
Progress = Callable[[int, int], None]  # (processes read so far, all processes)


class Inserter:
    """Collects rows of several processes, and inserts many at once."""

    def __init__(self, database: DuckDBPyConnection) -> None:
        self._database = database
        self._waiting: dict[str, list[Columns]] = {table: [] for table in GATHERED}
        self._rows = dict.fromkeys(GATHERED, 0)

    def add(self, table: str, process: int, columns: Columns) -> None:
        count = next(iter(columns.values())).size
        if count == 0:
            return
        columns["process"] = np.full(count, process, np.int32)
        self._waiting[table].append(columns)
        self._rows[table] += count
        if self._rows[table] >= ROWS_AT_ONCE:
            self.flush(table)

    def flush(self, table: str) -> None:
        waiting = self._waiting[table]
        if not waiting:
            return
        names = [column.name for column in TABLES[table]]
        rows = {name: _joined([one[name] for one in waiting]) for name in names}
        insert(self._database, table, rows)
        waiting.clear()
        self._rows[table] = 0

    def flush_all(self) -> None:
        for table in self._waiting:
            self.flush(table)


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """The arrays one after the other; masked elements stay masked."""
    values = np.concatenate([np.ma.getdata(part) for part in parts])
    if not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return values
    mask = np.concatenate([np.ma.getmaskarray(part) for part in parts])
    return np.ma.array(values, mask=mask) if mask.any() else values


def insert(database: DuckDBPyConnection, table: str, rows: Columns) -> None:
    """Inserts rows that are given as arrays by column; masked elements become NULL."""
    # Masks are passed as separate columns, because not every version of DuckDB reads masked arrays.
    plain = {name: np.ma.getdata(values) for name, values in rows.items()}
    masks = {
        name: np.ma.getmaskarray(values)
        for name, values in rows.items()
        if isinstance(values, np.ma.MaskedArray)
    }
    columns = ", ".join(f'"{name}"' for name in rows)
    values = ", ".join(
        f'CASE WHEN "{name} is null" THEN NULL ELSE "{name}" END' if name in masks else f'"{name}"'
        for name in rows
    )
    database.register(
        "weft_rows", plain | {f"{name} is null": mask for name, mask in masks.items()}
    )
    database.execute(f'INSERT INTO "{table}" ({columns}) SELECT {values} FROM weft_rows')
    database.unregister("weft_rows")


def load(
    database: DuckDBPyConnection,
    folder: Path,
    job: str | None,
    progress: Progress | None = None,
    until_ns: int | None = None,
) -> list[str]:
    """Reads all traces below the folder; returns a line for each file that could not be read.

    job: reads only processes of this job. until_ns: reads only records up to this time of day.
    TraceError if there is no trace.
    """
    processes, problems = scan(folder)
    if not processes:
        said = f" ({problems[0]})" if problems else ""
        raise TraceError(f"{folder} has no trace files of weft{said}")
    if job is not None:
        jobs = sorted({one.job for one in processes})
        processes = [one for one in processes if one.job == job]
        if not processes:
            raise TraceError(f"{folder} has no traces of the job {job!r}, only of {_listed(jobs)}")
    for table in TABLES:
        database.execute(create(table))
    clocks = clocks_of(processes)
    inserter = Inserter(database)
    rows = []
    for at, (files, clock) in enumerate(zip(processes, clocks, strict=True)):
        found = read_process(files, clock.ahead_ns, until_ns)
        rows.append(_process_row(at, files, found, clock))
        for table, columns_of in GATHERED.items():
            inserter.add(table, at, columns_of(found))
        if progress is not None:
            progress(at + 1, len(processes))
    inserter.flush_all()
    marks = ", ".join("?" * len(TABLES["processes"]))
    database.executemany(f"INSERT INTO processes VALUES ({marks})", rows)
    alignments = align(database, 1 + max(clock.number for clock in clocks))
    database.executemany(
        "UPDATE processes SET clock_offset_ns = ?, clock_error_ns = ? WHERE clock = ?",
        [[one.offset_ns, one.error_ns, clock] for clock, one in enumerate(alignments)],
    )
    return problems


def _listed(jobs: Sequence[str]) -> str:
    return ", ".join(repr(job) for job in jobs)


def _process_row(at: int, files: ProcessFiles, found: ProcessRecords, clock: Clock) -> list[Any]:
    identity = files.identity
    first_ns, last_ns = found.span_ns()
    row = {
        "process": at,
        "trace": files.trace,
        "host": files.host,
        "pid": number(identity, "pid"),
        "start_ticks": _large(identity.get("start_ticks", "")),
        "job": files.job,
        "attempt": files.attempt,
        "rank": files.rank,
        "world_size": number(identity, "WORLD_SIZE"),
        "local_rank": number(identity, "LOCAL_RANK"),
        "devices": identity.get("CUDA_VISIBLE_DEVICES"),
        "first_ns": first_ns,
        "last_ns": last_ns,
        "files": found.files,
        "removed": min(*files.paths, (1 << 31) - 1),
        "file_bytes": found.bytes,
        "records": found.records,
        "dropped": min(found.dropped, (1 << 63) - 1),
        "damage": found.damage,
        "ended": found.ended,
        "closed_ns": found.closed_ns,
        "clock": clock.number,
    }
    return [row.get(column.name) for column in TABLES["processes"]]


def _large(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
