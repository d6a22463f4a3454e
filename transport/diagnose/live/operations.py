"""Picks the collectives that lasted longest among those that ended since the last interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.windows import begun_ns

Array = NDArray[Any]
OPERATIONS_MAX = 20  # collectives of an interval that are exported


@dataclass(frozen=True)
class Operation:
    """A collective: from the first rank's call to the last rank's end.

    count: elements of datatype. last_rank: the rank that began it last, and waited_ns later than
    the first one. ranks: how many ranks of it were seen.
    """

    function: str
    comm_id: int
    sequence: int
    begin_ns: int
    end_ns: int
    count: int
    datatype: str
    ranks: int
    last_rank: int
    waited_ns: int


def slowest(facts: Facts, since_ns: int, most: int) -> tuple[Sequence[Operation], int]:
    """At most `most` collectives that ended at all ranks after since_ns, longest first; how many
    there were."""
    calls = facts.calls
    rows = np.flatnonzero(calls["kind"] == "collective")
    if not most or not len(rows):
        return [], 0
    instance = calls["instance"][rows]
    size = int(instance.max()) + 1
    begin, end = np.full(size, np.iinfo(np.int64).max), np.full(size, -1, np.int64)
    np.minimum.at(begin, instance, calls["begin_ns"][rows])
    np.maximum.at(end, instance, calls["end_ns"][rows])
    end[instance[calls["end_ns"][rows] < 0]] = -1  # it is still open at a rank
    new = np.flatnonzero((end > since_ns) & (begin >= 0) & (begin <= end))
    longest = new[np.argsort(begin[new] - end[new], kind="stable")][:most]
    return [_operation(facts, rows[instance == one]) for one in longest.tolist()], len(new)


def _operation(facts: Facts, rows: Array) -> Operation:
    calls = {name: column[rows] for name, column in facts.calls.items()}
    begun = begun_ns(calls)
    last = int(begun.argmax())
    return Operation(
        str(calls["function"][0]),
        int(calls["comm_id"][0]),
        int(calls["sequence"][0]),
        int(calls["begin_ns"].min()),
        int(calls["end_ns"].max()),
        int(calls["count"][0]),
        str(calls["datatype"][0]),
        len(rows),
        facts.processes[int(calls["process"][last])].rank,
        int(begun.max() - begun.min()),
    )
