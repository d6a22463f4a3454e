"""Sections of a report's page: charts, tables, and the commands that give their numbers."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

ROWS_MAX = 16  # rows of a table or bars of a chart of ranks; a line says how many more there are


@dataclass(frozen=True)
class Chart:
    """A chart. kind: columns, stack (columns on top of each other), bars (horizontal), spans
    (horizontal, from a least to a most value) or areas.

    labels: of the x axis, or of the bars. series: (name, values); a value of spans is a pair.
    unit: of the values, "ns", "bytes/s" or a noun. axis: title of the axis of the labels.
    """

    id: str
    title: str
    kind: str
    unit: str
    labels: Sequence[str]
    series: Sequence[tuple[str, Sequence[Any]]]
    axis: str = ""

    @property
    def height(self) -> int:
        """In CSS pixels."""
        flat = self.kind in ("bars", "spans")
        return 100 + 24 * max(len(self.labels), 2) if flat else 260

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Table:
    """more: a line below about rows that are left out; "": none are."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    more: str = ""


@dataclass(frozen=True)
class Section:
    """lines: paragraphs. commands: print the numbers of this section."""

    id: str
    title: str
    lines: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """The trace, as command lines name it."""

    folder: str
    job: str | None = None

    def command(self, *words: str) -> str:
        """A command line of weft; DIR in the words is the folder."""
        named = [self.folder if word == "DIR" else word for word in words]
        job = [] if self.job is None else ["--job", self.job]
        return shlex.join(["weft", *named, *job])

    def query(self, sql: str) -> str:
        return self.command("trace", "query", "DIR", sql)


def cut(rows: Sequence[Any], what: str, most: int = ROWS_MAX) -> tuple[Sequence[Any], str]:
    """The first rows, and a line that says how many more there are."""
    left = len(rows) - most
    return rows[:most], f"and {left:,} more {what}" if left > 0 else ""
