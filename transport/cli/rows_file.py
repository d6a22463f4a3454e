"""Writes rows of results as data: CSV, or Parquet where the file's name ends in .parquet."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transport.cli.output import write_file
from transport.ground.text import csv_table

PARQUET = ".parquet"
ROWS = (".csv", ".txt", PARQUET)
# Name -> the values of the rows, a list or an array; None where a row has no value.
Columns = Mapping[str, Collection[Any]]


def is_parquet(file: Path | None) -> bool:
    """Whether rows in this file are Parquet, which needs duckdb."""
    return file is not None and file.suffix.lower() == PARQUET


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns of rows, in the order of their first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def joined(tables: Sequence[tuple[Columns, Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """The rows of several tables below each other: columns, and values that all its rows share."""
    names = list(dict.fromkeys(name for each in tables for part in each for name in part))
    found: dict[str, list[Any]] = {name: [] for name in names}
    for columns, shared in tables:
        count = max((len(each) for each in columns.values()), default=0)
        for name in names:
            values = columns.get(name)
            found[name] += [shared.get(name)] * count if values is None else listed(values)
    return found


def listed(values: Collection[Any]) -> list[Any]:
    """The values as a list of Python's types."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def write_columns(file: Path, columns: Columns) -> None:
    """Writes a row for each value of the columns, in the format that the file's name asks for."""
    if not is_parquet(file):
        write_file(file, csv_table(list(columns), zip(*map(listed, columns.values()), strict=True)))
        return
    from transport.trace.parquet import parquet_of

    write_file(file, parquet_of(columns or {"partial": []}))
