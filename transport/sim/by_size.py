"""Computes quantiles of the slowdown of transfers by message size.

The first group is the messages of one packet; the others are decades, up to 10 kB, 100 kB, 1 MB and
so on. Of these, the classes of pFabric (M. Alizadeh et al., SIGCOMM 2013) are sums: up to 100 kB,
100 kB to 10 MB, and more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from transport.ground.units import bytes_text
from transport.sim.network import Array

# Name -> percentile, and the least number of transfers for it, 3 / (1 - share): then the largest
# of them lies above the quantile with a confidence of 95 %.
QUANTILES = {"p50": (50, 6), "p95": (95, 60), "p99": (99, 300), "p999": (99.9, 3_000)}
DECADE_BYTES_MIN = 10_000


def bounds(payload_bytes: int, largest_bytes: int) -> list[int]:
    """The largest size of each group, in bytes; the last one is at least `largest_bytes`."""
    found, decade = [payload_bytes], DECADE_BYTES_MIN
    while found[-1] < largest_bytes:
        if decade > payload_bytes:
            found.append(decade)
        decade *= 10
    return found


def rows(sizes: Array, slowdown: Array, payload_bytes: int) -> list[dict[str, Any]]:
    """One row for each group that has transfers, from small to large.

    sizes, slowdown: [transfer], bytes and FCT over ideal. payload_bytes: of a full packet. A row
    has bytes_from, bytes_to (both included), transfers, slowdown_p50, _p95, _p99, _p999 and _max.
    A quantile of too few transfers is None.
    """
    ends = bounds(payload_bytes, int(sizes.max(initial=0)))
    group = np.searchsorted(ends, sizes)
    found = []
    for number in np.unique(group).tolist():
        mine = slowdown[group == number]
        row: dict[str, Any] = {"bytes_from": ends[number - 1] + 1 if number else 0}
        row |= {"bytes_to": ends[number], "transfers": len(mine)}
        for name, (percentile, least) in QUANTILES.items():
            enough = len(mine) >= least
            row[f"slowdown_{name}"] = float(np.percentile(mine, percentile)) if enough else None
        found.append(row | {"slowdown_max": float(mine.max())})
    return found


def is_judged(name: str, transfers: int) -> bool:
    """Whether a value is known from so many transfers: name is its key, such as fct_ns_p99.

    A quantile of an FCT or slowdown needs as many transfers as QUANTILES says; other values do not
    depend on their number.
    """
    if not name.startswith(("fct_ns_", "slowdown_")):
        return True
    _, least = QUANTILES.get(name.removesuffix("_worst").rpartition("_")[2], (0, 0))
    return transfers >= least


def label(row: dict[str, Any]) -> str:
    """The sizes of a row's group as text, such as 10 kB to 100 kB."""
    if row["bytes_from"] == 0:
        return "one packet"
    return f"{bytes_text(row['bytes_from'] - 1)} to {bytes_text(row['bytes_to'])}"
