"""Derives the bytes of operations without recorded channels, as over NVLink or shared memory.

In a ring, each rank is assumed to send to the next one. Which ranks other algorithms sent to is not
known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from transport.trace.places import Places
from transport.trace.store import Store

# Operations, each with the share of its NCCL channels on which the process has recorded no send.
OPERATIONS = """
WITH sent AS (
  SELECT process, operation, count(DISTINCT channel) AS channels
  FROM channels WHERE sends AND operation IS NOT NULL GROUP BY ALL),
foreign_work AS (
  SELECT DISTINCT m.comm_id FROM channels c JOIN comms m ON m.process = c.process AND m.id = c.comm
  WHERE c.operation IS NULL),
disordered AS (
  SELECT DISTINCT m.comm_id FROM channels c
  JOIN operations o ON o.process = c.process AND o.id = c.operation
  JOIN comms m ON m.process = c.process AND m.id = c.comm
  WHERE c.sends AND o.kind = 'collective' AND o.algorithm = 'RING'
  AND c.peer <> (m.rank::BIGINT + 1) % m.ranks),
silent AS (
  SELECT o.process, m.comm_id, m.rank, m.ranks, o.function, o.algorithm, o.root, o.kind, o.bytes,
    CASE WHEN s.channels IS NULL THEN 1.0 WHEN o.kind = 'p2p' OR o.channels = 0 THEN 0.0
    ELSE greatest(o.channels - s.channels, 0) / o.channels END AS share,
    m.comm_id IN (FROM foreign_work) OR m.comm_id IN (FROM disordered) AS doubtful
  FROM operations o JOIN comms m ON m.process = o.process AND m.id = o.comm
  LEFT JOIN sent s ON s.process = o.process AND s.operation = o.id
  WHERE (o.bytes > 0 OR o.bytes IS NULL AND coalesce(o.count, 1) > 0 AND o.function <> 'Barrier')
  {filters})
"""
COLLECTIVES = """
SELECT comm_id, rank, ranks, function, algorithm, root, coalesce(sum(bytes * share), 0),
  bool_or(doubtful), count(*) FILTER (bytes IS NULL), count(*)
FROM silent WHERE kind <> 'p2p' AND share > 0 GROUP BY process, comm_id, rank, ranks, function,
algorithm, root ORDER BY ALL
"""
# Sends that no channel carried, and receives whose sender has no trace: their bytes, how many have
# an unknown size, how many an unknown peer.
_SUMS = """coalesce(sum(bytes * share), 0), count(*) FILTER (bytes IS NULL),
  count(*) FILTER (o.root IS NULL OR o.rank IS NULL AND s.spot IS NULL)"""
SENDS = f"""
SELECT p.spot, s.spot, {_SUMS} FROM silent o
JOIN place p ON p.process = o.process
LEFT JOIN member s ON s.comm_id = o.comm_id AND s.rank = o.root
WHERE o.kind = 'p2p' AND o.function = 'Send' AND share > 0 GROUP BY ALL
UNION ALL
SELECT s.spot, p.spot, {_SUMS} FROM silent o
JOIN place p ON p.process = o.process
LEFT JOIN member s ON s.comm_id = o.comm_id AND s.rank = o.root
WHERE o.kind = 'p2p' AND o.function = 'Recv' AND share > 0 AND NOT coalesce(s.traced, false)
AND NOT EXISTS (
  SELECT 1 FROM channels c WHERE c.process = o.process AND NOT c.sends AND c.peer = o.root)
GROUP BY ALL
"""


@dataclass(slots=True)
class Derived:
    """cells: (from row, to row, bytes); the row is None for a rank without a row in the matrix.

    unknown: groups of rows of which some operations cannot be divided into cells: of the members of
    a communicator, or all rows if it is not known who they are.
    unknown_bytes: size of those whose algorithm is not known well enough, summed over ranks.
    unsized, unplaced: operations whose size, or whose communicator's ranks or peer, is not known.
    """

    cells: list[tuple[int | None, int | None, float]] = field(default_factory=list)
    unknown: list[list[int]] = field(default_factory=list)
    unknown_bytes: float = 0
    unsized: int = 0
    unplaced: int = 0


def ring_bytes(function: str, size: float, rank: int, ranks: int, root: int | None) -> float | None:
    """Bytes that a rank sends to the next one for a call of `size` bytes; None: unknown."""
    if function == "AllReduce":
        return 2 * (ranks - 1) / ranks * size
    if function in ("AllGather", "ReduceScatter"):
        return (ranks - 1) * size
    if function == "Broadcast" and root is not None:
        return 0.0 if (rank + 1) % ranks == root else size
    if function == "Reduce" and root is not None:
        return 0.0 if rank == root else size
    return None


def derive(store: Store, places: Places, filters: str, values: list[Any]) -> Derived:
    """Derives cells of the matrix from operations. Call places.write() before: it makes the tables.

    filters: SQL that begins with AND and restricts the operations `o` of communicators `m`.
    """
    base = OPERATIONS.format(filters=filters)
    found = Derived()
    _add_sends(found, store.rows(base + SENDS, *values))
    vague: set[int] = set()
    for row in store.rows(base + COLLECTIVES, *values):
        comm_id, rank, ranks, function, algorithm, root, size, doubtful, unsized, count = row
        if ranks is not None and ranks < 2:
            continue
        found.unsized += unsized
        placed = comm_id is not None and ranks is not None and rank is not None
        if not placed:
            found.unplaced += count
            continue
        if unsized:
            vague.add(comm_id)
        known = algorithm == "RING" and not doubtful
        sent = ring_bytes(function, size, rank, ranks, root) if known else None
        if sent is None:
            vague.add(comm_id)
            found.unknown_bytes += size
        elif sent > 0:
            ends = (
                places.of_member.get((comm_id, rank)),
                places.of_member.get((comm_id, (rank + 1) % ranks)),
            )
            found.cells.append((*ends, sent))
    found.unknown += _rows_of(places, vague)
    if found.unplaced:
        found.unknown.append([*range(len(places.labels))])
    return found


def _add_sends(found: Derived, rows: list[tuple[int | None, int | None, float, int, int]]) -> None:
    """Adds the cells of sends and receives; those of an unknown size or peer are unknown."""
    for source, target, size, unsized, unplaced in rows:
        found.unsized += unsized
        found.unplaced += unplaced
        if unplaced:
            continue
        if unsized and source is not None and target is not None:
            found.unknown.append(sorted({source, target}))
        if size > 0:
            found.cells.append((source, target, size))


def _rows_of(places: Places, comms: set[int]) -> Iterator[list[int]]:
    for comm_id in sorted(comms):
        yield sorted({at for (one, _), at in places.of_member.items() if one == comm_id})
