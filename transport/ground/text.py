"""Formats text: escapes untrusted names, suggests similar names, writes Markdown and CSV tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any


def printable(text: str) -> str:
    """The text with unprintable characters escaped, since a trace may contain any characters."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def nearest(word: str, known: Sequence[str]) -> str:
    """The hint "; did you mean X?" if a known name is similar, else a list of known names."""
    return similar(word, known) or "; choose one of " + ", ".join(known[:12]) + (
        ", ..." if len(known) > 12 else ""
    )


def similar(word: str, known: Sequence[str]) -> str:
    """The hint "; did you mean X?" if a known name is similar, else nothing."""
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, without an end of line after its last row."""
    lines = [_markdown_row(headings), "|---" * len(headings) + "|"]
    return "\n".join([*lines, *map(_markdown_row, rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def csv_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with a line of headings; None is an empty cell, and a list is joined by spaces."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([_csv_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


def csv_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV of rows given as mappings: a column for each key, in the order of first appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return csv_table(names, [[row.get(name) for name in names] for row in rows])


def _csv_cell(value: Any) -> Any:
    return " ".join(map(str, value)) if isinstance(value, list) else value
