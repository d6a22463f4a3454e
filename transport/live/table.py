"""Tables that fit a terminal's width: less important columns are left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
GAP = 2  # spaces between columns
TEXT_WIDTH_MIN = 40  # the last column is cut to this width before another column is left out


@dataclass(frozen=True, slots=True)
class Column(Generic[Item]):
    """A column of a table.

    importance: 0: always shown; else the column with the largest number is left out first.
    sort: what rows are sorted by, largest first, or smallest first if `ascending`; None: no order.
    """

    heading: str
    cell: Callable[[Item], str]
    importance: int = 0
    sort: Callable[[Item], float | str | None] | None = None
    ascending: bool = False
    left: bool = False  # whether cells are aligned to the left


def sorted_by(columns: Sequence[Column[Item]], heading: str, items: Sequence[Item]) -> list[Item]:
    """The items in the order of a column; in their own order if there is no such column."""
    key = next((each.sort for each in columns if each.heading == heading), None)
    ascending = any(each.ascending for each in columns if each.heading == heading)
    if key is None:
        return list(items)
    known = [item for item in items if key(item) is not None]
    known.sort(key=lambda item: key(item), reverse=not ascending)  # type: ignore[arg-type, return-value]
    return known + [item for item in items if key(item) is None]


def lay_out(
    columns: Sequence[Column[Item]], items: Sequence[Item], width: int, mark: str = ""
) -> list[str]:
    """The lines of a table: headings and rows, none wider than `width`. The last column is text.

    mark: heading of the column that the table is sorted by; it gets an arrow.
    """
    cells = [[column.cell(item) for item in items] for column in columns]
    arrow = {
        c.heading: "↑" if c.ascending else "↓" for c in columns if c.heading == mark and c.sort
    }
    heads = [column.heading + arrow.get(column.heading, "") for column in columns]
    widths = [
        max(len(head), *(len(cell) for cell in of_column), 0)
        for head, of_column in zip(heads, cells, strict=True)
    ]
    shown = chosen([column.importance for column in columns], widths, width)
    lines = []
    for row in (heads, *zip(*cells, strict=True)):
        parts = [
            row[at].ljust(widths[at]) if columns[at].left else row[at].rjust(widths[at])
            for at in shown
        ]
        lines.append(cut((" " * GAP).join(parts).rstrip(), width))
    return lines


def chosen(importance: Sequence[int], widths: Sequence[int], width: int) -> list[int]:
    """The indices of the columns that fit a width."""
    shown = list(range(len(widths)))
    last = len(widths) - 1

    def needed() -> int:
        least = [min(widths[at], TEXT_WIDTH_MIN) if at == last else widths[at] for at in shown]
        return sum(least) + GAP * (len(shown) - 1)

    while needed() > width:
        least = max(shown, key=lambda at: importance[at])
        if importance[least] == 0:
            break
        shown.remove(least)
    return shown


def cut(line: str, width: int) -> str:
    """The line, with its end replaced by "~" if it is too long."""
    return line if len(line) <= width else line[: max(0, width - 1)] + "~"[:width]
