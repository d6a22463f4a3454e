"""Collects rows from files of other tools, and writes them as a folder of Parquet files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.ground.collectives import ELEMENT_BYTES
from transport.trace.load import insert
from transport.trace.store import Store, new_store
from transport.trace.tables import TABLES

ROWS_AT_ONCE = 200_000
NAMED_MAX = 5  # maximum number of unknown words that the summary lists
LIMITS = {
    "u8": (0, (1 << 8) - 1),
    "u16": (0, (1 << 16) - 1),
    "u32": (0, (1 << 32) - 1),
    "u64": (0, (1 << 64) - 1),
    "i32": (-(1 << 31), (1 << 31) - 1),
    "i64": (-(1 << 63), (1 << 63) - 1),
}
DTYPES = {
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "i32": np.int32,
    "i64": np.int64,
}


def hashed(*parts: Hashable) -> int:
    """A number of 64 bits that is the same for the same parts in all files."""
    text = "\0".join(map(str, parts)).encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclass(slots=True)
class Source:
    """A process of the imported files. facts: columns of its row in `processes`."""

    number: int
    facts: dict[str, Any]
    ids: int = 0
    records: int = 0
    first_ns: int | None = None
    last_ns: int | None = None

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def saw(self, *times_ns: int | None) -> None:
        """Extends the span of the process's records."""
        for one in times_ns:
            if one is not None and LIMITS["i64"][0] <= one <= LIMITS["i64"][1]:
                self.first_ns = one if self.first_ns is None else min(self.first_ns, one)
                self.last_ns = one if self.last_ns is None else max(self.last_ns, one)


@dataclass(slots=True)
class Import:
    """The rows read so far, and counts of them.

    kind: "nccl-log" or "kineto". read: what was read, such as "operations" -> how many.
    unknown: text that is not known -> how often it occurred.
    """

    kind: str
    read: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    sources: dict[Hashable, Source] = field(default_factory=dict)
    _rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _store: Store | None = None
    _files: set[Path] = field(default_factory=set)

    def source(self, key: Hashable, file: Path | None, **facts: Any) -> Source:
        """The process with this key, which is made when it is first seen. file: None: it is known
        from a service."""
        known = self.sources.get(key)
        if known is None:
            number = len(self.sources)
            facts["trace"] = f"{self.kind} {file.name if file is not None else 'service'}"
            facts["file_bytes"] = 0
            if file is not None and file not in self._files:
                facts["file_bytes"] = file.stat().st_size
                self._files.add(file)
            known = self.sources[key] = Source(number, facts)
        return known

    def add(self, table: str, source: Source, **values: Any) -> None:
        """Adds a row. A value that does not fit into its column becomes NULL."""
        values["process"] = source.number
        rows = self._rows.setdefault(table, [])
        rows.append(values)
        source.records += 1
        source.saw(*(values.get(name) for name in ("begin_ns", "end_ns", "time_ns")))
        if len(rows) >= ROWS_AT_ONCE:
            self._flush(table)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs SQL on the rows that were added; returns the rows of the last statement."""
        for table in [*self._rows]:
            self._flush(table)
        found: list[tuple[Any, ...]] = []
        for one in statements:
            found = self._opened().rows(one)
        return found

    def write(self, folder: Path) -> None:
        """Writes all tables to a new or empty folder. TraceError if that is impossible."""
        with self.store() as store:
            store.to_parquet(folder)

    def store(self) -> Store:
        """The tables in memory; nothing can be added afterwards. The caller closes it."""
        clocks = self._clocks()
        for source in self.sources.values():
            self._rows.setdefault("processes", []).append(self._process_row(source, clocks))
        for table in [*self._rows]:
            self._flush(table)
        return self._opened()

    def _opened(self) -> Store:
        if self._store is None:
            self._store = new_store()
        return self._store

    def _flush(self, table: str) -> None:
        rows = self._rows.pop(table, [])
        if not rows:
            return
        columns = {
            column.name: _array([row.get(column.name) for row in rows], column.type)
            for column in TABLES[table]
        }
        insert(self._opened().database, table, columns)

    def _clocks(self) -> dict[str, int]:
        """Host -> the number of its clock."""
        hosts = dict.fromkeys(one.facts.get("host") or "" for one in self.sources.values())
        return {host: at for at, host in enumerate(hosts)}

    def _process_row(self, source: Source, clocks: dict[str, int]) -> dict[str, Any]:
        clock = clocks[source.facts.get("host") or ""]
        timed = source.first_ns is not None
        row = {
            "job": "",
            "attempt": 0,
            "files": 1,
            "removed": 0,
            "dropped": 0,
            "damage": "",
            "records": source.records,
            "first_ns": source.first_ns,
            "last_ns": source.last_ns,
            "clock": clock if timed else 0,
            "clock_offset_ns": 0,
            "clock_error_ns": None if clock and timed else 0,
        }
        return row | source.facts | {"process": source.number}


def _array(values: list[Any], type_: str) -> NDArray[Any]:
    """A column as an array; values of another type are masked."""
    if type_ == "text":
        texts = np.array([one if isinstance(one, str) else "" for one in values], object)
        missing = np.array([not isinstance(one, str) for one in values])
    elif type_ == "flag":
        texts = np.array([bool(one) for one in values], np.bool_)
        missing = np.array([one is None for one in values])
    else:
        low, high = LIMITS[type_]
        fits = [isinstance(one, int) and low <= one <= high for one in values]
        kept = [int(one) if fit else 0 for one, fit in zip(values, fits, strict=True)]
        texts = np.array(kept, DTYPES[type_])
        missing = ~np.array(fits)
    return np.ma.array(texts, mask=missing) if missing.any() else texts


def size_of(datatype: str | None, count: int | None) -> int | None:
    """The size in bytes of `count` elements of a datatype; None: unknown."""
    size = ELEMENT_BYTES.get(datatype or "")
    return None if size is None or count is None else size * count


def summary(found: Import) -> str:
    """One line that says what was read and what was not."""
    parts = [f"{count} {name}" for name, count in found.read.items() if count]
    unknown = found.unknown.total()
    if unknown:
        named = ", ".join(name for name, _ in found.unknown.most_common(NAMED_MAX))
        parts.append(
            f"{unknown} unknown ({named}{', ...' if len(found.unknown) > NAMED_MAX else ''})"
        )
    return ", ".join(parts) or "nothing"
