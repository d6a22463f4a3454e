"""A store: the traces of all processes of a job as tables, which SQL can query."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from transport.errors import WeftError
from transport.ground.extras import install
from transport.trace.layout import TraceError
from transport.trace.load import Progress, load
from transport.trace.notes import notes_of
from transport.trace.tables import SQL_TYPES, TABLES, create

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

INSTALL = install("trace")
ROWS_AT_ONCE = 10_000
ERRNO = re.compile(r'"errno":"(\d{1,6})"')  # an error number in a message of DuckDB


class TraceExtraError(WeftError, ImportError):
    """DuckDB is not installed; the message says how to install it."""


class Store:
    """The tables of a trace (docs/TRACING.md).

    problems: a line for each file that is missing, not read, or could not be read.
    """

    def __init__(self, database: DuckDBPyConnection, where: Path, problems: Sequence[str]) -> None:
        self.database = database
        self.where = where
        self.problems = tuple(problems)
        self._confined = False

    def confine(self) -> None:
        """Forbids all later SQL to read files other than those of the store's own tables."""
        if self._confined:
            return
        files = (self.where / f"{table}.parquet" for table in TABLES)
        own = ", ".join(_quoted(file) for file in files if file.exists())
        self.database.execute(f"SET allowed_paths = [{own}]")
        self.database.execute("SET enable_external_access = false")
        self.database.execute("SET lock_configuration = true")
        self._confined = True

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query; `values` replace the placeholders ? in it."""
        return self._run(sql, values).fetchall()

    def arrays(self, sql: str, *values: Any) -> dict[str, NDArray[Any]]:
        """The columns of a query as arrays; a column with NULLs is a masked array."""
        found: dict[str, NDArray[Any]] = self._run(sql, values).fetchnumpy()
        return found

    def _run(self, sql: str, values: Sequence[Any]) -> DuckDBPyConnection:
        import duckdb

        try:
            return self.database.execute(sql, list(values))
        except duckdb.Error as error:
            raise TraceError(f"a query of the trace {self.where} failed: {error}") from None
        except RuntimeError as error:  # DuckDB raises it on Ctrl-C during a query
            if "interrupted" not in str(error):
                raise
            raise KeyboardInterrupt from None

    def batches(self, sql: str, *values: Any) -> Iterator[list[dict[str, Any]]]:
        """The rows of a query as dictionaries by column name, some thousand at a time.

        The next query of the store discards the rows that were not read yet.
        """
        import duckdb

        found = self._run(sql, values)
        names = [column[0] for column in found.description or ()]
        try:
            while rows := found.fetchmany(ROWS_AT_ONCE):
                yield [dict(zip(names, row, strict=True)) for row in rows]
        except duckdb.Error as error:
            raise TraceError(f"a query of the trace {self.where} failed: {error}") from None

    def jobs(self) -> list[tuple[str, int]]:
        """The jobs, each with its number of processes."""
        sql = "SELECT job, count(*) FROM processes GROUP BY job ORDER BY job"
        return [(job, count) for job, count in self.rows(sql)]

    def notes(self) -> list[str]:
        """Notes on what may make the numbers wrong: gaps, losses, clocks."""
        return [*self.problems, *notes_of(self.rows)]

    def to_parquet(self, folder: Path) -> None:
        """Writes each table to a Parquet file; open_store() opens such a folder."""
        with new_folder(folder):
            for table in TABLES:
                self._copy(table, folder / table, "FORMAT parquet")
                (folder / table).rename(folder / f"{table}.parquet")

    def to_csv(self, folder: Path) -> None:
        """Writes each table to a CSV file with a line of headings."""
        with new_folder(folder):
            for table in TABLES:
                self._copy(table, folder / f"{table}.csv", "FORMAT csv, HEADER")

    def _copy(self, table: str, file: Path, form: str) -> None:
        """Writes a table to a file; OSError if that fails."""
        import duckdb

        try:
            self.database.execute(f"COPY {table} TO {_quoted(file)} ({form})")
        except duckdb.IOException as error:
            told = ERRNO.search(str(error))
            number = int(told[1]) if told else errno.EIO
            raise OSError(number, os.strerror(number), str(file)) from None

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def new_store(threads: int | None = None) -> Store:
    """A store in memory whose tables are empty. threads: for queries; None: one per core."""
    database = _connect(None)
    if threads is not None:
        database.execute(f"SET threads = {threads:d}")
    for table in TABLES:
        database.execute(create(table))
    return Store(database, Path(), ())


def open_store(
    folder: Path | str,
    *,
    job: str | None = None,
    file: Path | str | None = None,
    progress: Progress | None = None,
    until_ns: int | None = None,
) -> Store:
    """Opens the traces below a folder, or a folder that to_parquet() has written.

    job: only the processes of this job.
    file: keeps the tables in this database file, which must not exist; by default in memory.
    progress: called after the files of each process were read.
    until_ns: leaves out records after this time of day. While processes still write, their files
    are read one after the other; without it, the last one would seem to be ahead of the others.
    TraceError if there is no trace; TraceExtraError without DuckDB.
    """
    where = Path(folder)
    if not where.is_dir():
        raise TraceError(f"{where} is not a folder")
    database = _connect(file)
    import duckdb

    try:
        if (where / "processes.parquet").exists():
            _attach(database, where, job)
            return Store(database, where, [*_lacking(where), *_passed_over(where)])
        return Store(database, where, load(database, where, job, progress, until_ns))
    except duckdb.Error as error:
        database.close()
        raise TraceError(f"cannot read {where}: {error}") from None
    except BaseException:
        database.close()
        raise


def _connect(file: Path | str | None) -> DuckDBPyConnection:
    """Opens a new database in the file, or in memory if `file` is None."""
    try:
        import duckdb
    except ImportError:
        raise TraceExtraError(f"traces are read with DuckDB: {INSTALL}") from None
    if file is not None and Path(file).exists():
        raise TraceError(f"{file} exists already: give another file")
    try:
        database = duckdb.connect(":memory:" if file is None else str(file))
    except duckdb.Error as error:
        raise TraceError(f"cannot open {file}: {error}") from None
    # Object arrays contain only texts, so DuckDB need not read samples to find their type.
    database.execute("SET pandas_analyze_sample = 0")
    # DuckDB's progress bar would be mixed with the output of commands.
    database.execute("SET enable_progress_bar = false")
    return database


def _attach(database: DuckDBPyConnection, where: Path, job: str | None) -> None:
    """Makes a view of each table's Parquet file; an absent file is an empty table."""
    for table, columns in TABLES.items():
        file = where / f"{table}.parquet"
        source = f"read_parquet({_quoted(file)})"
        known = _columns_of(database, source) if file.exists() else set()
        # Older versions of weft wrote fewer columns.
        names = ", ".join(
            one.name if one.name in known else f"NULL::{SQL_TYPES[one.type]} AS {one.name}"
            for one in columns
        )
        source = f"(SELECT {names} FROM {source})" if known else f"(SELECT {names}) WHERE false"
        chosen = ""
        if job is not None and table == "processes":
            chosen = f" WHERE job = {_quoted(job)}"
        elif job is not None and file.exists():
            chosen = " WHERE process IN (SELECT process FROM processes)"
        database.execute(f"CREATE VIEW {table} AS SELECT * FROM {source}{chosen}")
    if job is not None and database.execute("SELECT count(*) FROM processes").fetchone() == (0,):
        raise TraceError(f"{where} has no traces of the job {job!r}")


def _columns_of(database: DuckDBPyConnection, source: str) -> set[str]:
    return {row[0] for row in database.execute(f"DESCRIBE FROM {source}").fetchall()}


def _lacking(where: Path) -> list[str]:
    """A line on the tables that a folder of Parquet files lacks."""
    absent = [table for table in TABLES if not (where / f"{table}.parquet").exists()]
    if not absent:
        return []
    line = f"{where} has no files of these tables, which count as empty: {', '.join(absent)}"
    measured = {"channels", "connections", "messages"} & {*absent}
    return [line + ("; numbers that were measured may be missing or derived" if measured else "")]


def _passed_over(where: Path) -> list[str]:
    """A line on the traces below a folder of Parquet files, which are not read."""
    count = sum(1 for _ in where.rglob("*.trace"))
    if not count:
        return []
    return [
        f"{where} has tables (processes.parquet), which are read; {count} trace files in it are "
        "not read: keep tables and trace files in separate folders"
    ]


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Makes the folder, and removes what was written to it if the body fails.

    TraceError if it has files already; an OSError names the folder or a file in it.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise TraceError(f"{folder} is not empty: give a new folder")
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            for file in folder.iterdir():
                file.unlink()
            if made:
                folder.rmdir()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(folder)
        raise


def _quoted(value: Path | str) -> str:
    return "'" + str(value).replace("'", "''") + "'"
