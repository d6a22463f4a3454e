"""Writes columns of values as a Parquet file, with duckdb."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Types of the values of a column -> the type of the column. All other columns are text.
NUMBERS: dict[frozenset[type], type] = {
    frozenset({bool}): np.bool_,
    frozenset({int}): np.int64,
    frozenset({float}): np.float64,
    frozenset({int, float}): np.float64,
}


def typed(values: Collection[Any]) -> NDArray[Any]:
    """A column of one type: numbers or truth values, masked where a value is None, or else text.

    Text is an array of objects, str or None; the items of a list are joined by spaces, as in CSV.
    Whole numbers beyond 64 bits make a column of text.
    """
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    items = list(values)
    kind = NUMBERS.get(frozenset(type(one) for one in items if one is not None))
    missing = [one is None for one in items]
    if kind is not None:
        try:
            filled: NDArray[Any] = np.array(
                [kind(0) if one is None else one for one in items], kind
            )
            return np.ma.masked_array(filled, missing) if any(missing) else filled
        except OverflowError:
            pass
    made = np.empty(len(items), object)
    made[:] = [None if one is None else _text(one) for one in items]
    return made


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def parquet_of(columns: Mapping[str, Collection[Any]]) -> bytes:
    """The content of a Parquet file with these columns, all of one length; at least one column.

    Needs duckdb, which the extra `trace` brings.
    """
    import duckdb

    with TemporaryDirectory(prefix="weft-") as folder, duckdb.connect() as database:
        file = Path(folder) / "rows.parquet"
        database.register("weft_rows", {name: typed(one) for name, one in columns.items()})
        database.execute(f"COPY weft_rows TO '{str(file).replace(chr(39), 2 * chr(39))}'")
        return file.read_bytes()
