"""Statistics of several runs: median, least, largest, worst, spread.

No run is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """The statistics of one number over several runs."""

    median: float
    least: float
    largest: float
    runs: int

    @property
    def range(self) -> float:
        return self.largest - self.least

    @property
    def spread(self) -> float:
        """The range divided by the median."""
        return self.range / abs(self.median) if self.median else 0.0

    def worst(self, better: str) -> float:
        return self.least if better == "higher" else self.largest


def summary(values: Iterable[float]) -> Summary:
    kept = list(values)
    return Summary(statistics.median(kept), min(kept), max(kept), len(kept))


def grouped(rows: Iterable[Config], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Config]]:
    """Groups rows with equal keys, in the order of first appearance."""
    found: dict[tuple[Any, ...], list[Config]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return found


def _middle(column: str, values: list[Any]) -> Any:
    """A column's summary: sum of `wrong` (wrong results), median of numbers, else first value."""
    known = [value for value in values if value is not None]
    if column == "wrong" and known:
        return sum(known)
    if not known or isinstance(known[0], str | bool | list | dict):
        return values[0]
    middle = statistics.median(known)
    return round(middle) if all(isinstance(value, int) for value in known) else float(middle)


def summarised(
    rows: Sequence[Config], keys: Sequence[str], measures: Mapping[str, str]
) -> list[Config]:
    """One row per group: medians, `_min`, `_max`; `worst`: the worst value of the first measure.

    If a run lacks a measure that other runs have, it never reached the measured state.
    """
    made = []
    first = next(iter(measures))
    for key, mine in grouped(rows, keys).items():
        row: Config = dict(zip(keys, key, strict=True))
        for column in mine[0]:
            if column not in row and column != "round":
                row[column] = _middle(column, [one.get(column) for one in mine])
        for column, better in measures.items():
            values = [one[column] for one in mine if one.get(column) is not None]
            if not values:
                continue
            found = summary(values)
            row[f"{column}_min"], row[f"{column}_max"] = found.least, found.largest
            if column == first:
                row["worst"], row["spread"] = found.worst(better), found.spread
            if len(values) < len(mine):
                # A run that never reached the measured state is worse than any that did.
                row[f"{column}_never"] = len(mine) - len(values)
                if column == first:
                    row["worst"] = "never"
        made.append(row | {"runs": len(mine)})
    return made


def upper_of_median(values: Sequence[float], confidence: float = 0.95) -> float:
    """One-sided upper confidence bound of the median, by order statistics (sign test)."""
    ordered, n = sorted(values), len(values)
    below = 0.0
    for rank in range(n):
        below += math.comb(n, rank) / 2**n
        if below >= confidence:
            return ordered[min(rank + 1, n - 1)]
    return ordered[-1]
