"""Measures how groups of transfers with different policies share a network.

A connection is served from when its oldest message in flight was posted until all are received; the
bytes of a message count as delivered evenly from when it was posted, or the message before it was
received, until it is received. The contended time is that in which connections of at least two
groups are served.

Harm is by how much a group is worse beside the others than alone: see transport.policies.fairness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transport.policies.fairness import harms, jain
from transport.sim.network import Array

QUANTILES = {"p50": 50, "p99": 99}


@dataclass(frozen=True, eq=False)
class Served:
    """The times in which connections are served: a row for each posted transfer."""

    begin_ns: Array
    end_ns: Array
    bytes: Array  # float64
    connection: Array  # numbers that are sorted by from, to and stream
    group: Array


def served(
    transfers: Array, times: Array, group_of: Array, received_bytes: Array, ended_ns: int
) -> Served:
    """The service of every posted transfer.

    transfers, times, group_of: [transfer], records of TRANSFER and of Result.transfers, and the
    group. received_bytes: [connection], what receivers have got, of unfinished messages too.
    """
    _, connection = np.unique(transfers[["from", "to", "stream"]], return_inverse=True)
    sizes = transfers["bytes"].astype(np.float64)
    done = times["received_ns"] >= 0
    left = received_bytes - np.bincount(connection[done], sizes[done], len(received_bytes))
    posted = np.flatnonzero(times["posted_ns"] >= 0)
    posted = posted[np.argsort(connection[posted], kind="stable")]
    at, is_done = connection[posted], done[posted]
    end = np.where(is_done, times["received_ns"][posted], ended_ns)
    begin = np.maximum(times["posted_ns"][posted], _before(at, end))
    amount = np.where(is_done, sizes[posted], 0.0)
    # What a receiver has of unfinished messages belongs to the first of them.
    unfinished = np.flatnonzero(~is_done)
    owner, first = np.unique(at[unfinished], return_index=True)
    amount[unfinished[first]] = np.maximum(left[owner], 0.0)
    return Served(np.minimum(begin, end), end, amount, at, group_of[posted])


def _before(connection: Array, end_ns: Array) -> Array:
    """For each row the latest end of the rows before it in its connection; -1: it is the first.

    connection: sorted.
    """
    if not len(end_ns):
        return end_ns
    # A running maximum of ranks that are higher for each further connection.
    ends = np.unique(end_ns)
    rank = np.searchsorted(ends, end_ns) + connection * len(ends)
    latest = ends[np.maximum.accumulate(rank) - connection * len(ends)]
    found = np.full(len(end_ns), -1, np.int64)
    same = connection[1:] == connection[:-1]
    found[1:][same] = latest[:-1][same]
    return found


@dataclass(frozen=True, eq=False)
class Contention:
    """What the groups did in the contended time.

    share, fair_share: [group]; of the delivered bytes, and on average over the time that of the
    connections that were served. rates, group: [connection] bytes per second and group.
    """

    contended_ns: int
    share: Array
    fair_share: Array
    rates: Array
    group: Array


def contention(found: Served, groups: int) -> Contention:
    """Measures the contended time."""
    times, counts = _counts(found, groups)
    steps = np.diff(times, append=times[-1:])
    contended = (counts > 0).sum(axis=1) >= 2
    spent = np.where(contended, steps, 0)
    whole_ns = int(spent.sum())
    total = np.maximum(counts.sum(axis=1), 1)
    fair = (counts / total[:, None] * spent[:, None]).sum(axis=0) / max(whole_ns, 1)
    until = np.concatenate([[0], np.cumsum(spent)])[:-1]  # contended time before each of `times`

    def before(at_ns: Array) -> Array:
        return np.asarray(until[np.searchsorted(times, at_ns)])

    inside = before(found.end_ns) - before(found.begin_ns)
    length = np.maximum(found.end_ns - found.begin_ns, 1)
    amount = found.bytes * inside / length
    by_group = np.bincount(found.group, amount, groups)
    count = int(found.connection.max(initial=-1)) + 1
    busy_ns = np.bincount(found.connection, inside, count)
    rates = np.bincount(found.connection, amount, count) * 1e9 / np.maximum(busy_ns, 1)
    group = np.zeros(count, np.int64)
    group[found.connection] = found.group
    kept = busy_ns > 0
    share = by_group / max(float(by_group.sum()), 1.0)
    return Contention(whole_ns, share, fair, rates[kept], group[kept])


def _counts(found: Served, groups: int) -> tuple[Array, Array]:
    """The times at which a service begins or ends, and how many of each group last from then."""
    times = np.unique(np.concatenate([[0], found.begin_ns, found.end_ns]))
    change = np.zeros((len(times), groups), np.int64)
    np.add.at(change, (np.searchsorted(times, found.begin_ns), found.group), 1)
    np.add.at(change, (np.searchsorted(times, found.end_ns), found.group), -1)
    return times, np.cumsum(change, axis=0)


def measures(found: Served, fct_ns: Array, group_of_done: Array, group: int) -> dict[str, float]:
    """What harm compares, of one group in a whole run.

    goodput_bytes_per_s: on average of its connections, while they are served. fct_ns_p50, _p99:
    of its transfers. fct_ns, group_of_done: [received transfer].
    """
    mine = found.group == group
    count = int(found.connection.max(initial=-1)) + 1
    busy_ns = np.bincount(found.connection[mine], (found.end_ns - found.begin_ns)[mine], count)
    amount = np.bincount(found.connection[mine], found.bytes[mine], count)
    kept = busy_ns > 0
    rates = amount[kept] * 1e9 / busy_ns[kept]
    row = {"goodput_bytes_per_s": float(rates.mean()) if rates.size else 0.0}
    took = fct_ns[group_of_done == group]
    if took.size:
        row |= {f"fct_ns_{one}": float(np.percentile(took, q)) for one, q in QUANTILES.items()}
    return row


def report(
    found: Served,
    labels: Sequence[str],
    fct_ns: Array,
    group_of_done: Array,
    group_of: Array,
    alone: Sequence[Mapping[str, float]] = (),
) -> dict[str, Any]:
    """How groups share the network: contended_ns, jain, and a row for each group.

    labels: [group]. group_of: [transfer]. alone: for each group its measures alone, if known.
    """
    during = contention(found, len(labels))
    rows = []
    for number, label in enumerate(labels):
        rates = during.rates[during.group == number]
        mine = found.group == number
        row: dict[str, Any] = {"group": label}
        row["connections"] = len(np.unique(found.connection[mine]))
        row["transfers"] = int((group_of == number).sum())
        row["done"] = int((group_of_done == number).sum())
        row["bytes"] = int(found.bytes[mine].sum())
        is_known = during.contended_ns > 0
        row["share"] = float(during.share[number]) if is_known else None
        row["fair_share"] = float(during.fair_share[number]) if is_known else None
        row["jain"] = jain(rates) if rates.size else None
        row |= measures(found, fct_ns, group_of_done, number)
        rows.append(row | (harms(alone[number], row) if alone else {}))
    whole = jain(during.rates) if during.rates.size else None
    return {"contended_ns": during.contended_ns, "jain": whole, "groups": rows}
