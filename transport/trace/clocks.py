"""Clocks of hosts: finds which processes share a clock, and estimates offsets from messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING

from transport.trace.folder import ProcessFiles
from transport.trace.tables import CLOCKED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# If realtime_ahead_ns of two processes of a host differs by more than this, the clock was set, or
# the host was booted, between their starts.
STEP_NS = 10_000_000
# How many messages of each connection are compared: the fastest ones, which bound the clocks'
# difference best.
COMPARED = 64

_BOUNDS = f"""
WITH quick AS (
  SELECT process, connection, unnest(min_by(message, end_ns - posted_ns, {COMPARED})) AS message
  FROM messages WHERE sends AND status = 0 GROUP BY process, connection),
sent AS (
  SELECT m.process, c.pair, m.message, m.posted_ns, m.end_ns
  FROM messages m JOIN quick USING (process, connection, message)
  JOIN connections c ON c.process = m.process AND c.id = m.connection
  WHERE m.sends AND m.status = 0),
received AS (
  SELECT c.process, c.pair, m.message, m.end_ns
  FROM connections c JOIN messages m ON m.process = c.process AND m.connection = c.id
  WHERE NOT m.sends AND m.status = 0)
SELECT a.clock, b.clock, min(r.end_ns - s.posted_ns), max(r.end_ns - s.end_ns)
FROM sent s JOIN received r ON r.pair = s.pair AND r.message = s.message AND r.process <> s.process
JOIN processes a ON a.process = s.process JOIN processes b ON b.process = r.process
WHERE a.clock <> b.clock AND s.posted_ns IS NOT NULL AND s.end_ns IS NOT NULL
  AND r.end_ns IS NOT NULL
GROUP BY a.clock, b.clock
"""


@dataclass(frozen=True, slots=True)
class Clock:
    """A host's clock. ahead_ns: CLOCK_MONOTONIC plus ahead_ns is the time in ns since 1970."""

    number: int
    host: str
    ahead_ns: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """offset_ns: add it to a clock's times to align them with clock 0.

    error_ns: the offset is wrong by at most this much, if the clocks ran at the same speed; None:
    no messages connect the clock with clock 0.
    """

    offset_ns: int
    error_ns: int | None


def clocks_of(processes: Sequence[ProcessFiles]) -> list[Clock]:
    """The clock of each process.

    The processes of a host share a clock, unless it was set between their starts.
    """
    ordered = sorted(
        range(len(processes)),
        key=lambda at: (processes[at].clock, processes[at].first.realtime_ahead_ns),
    )
    groups: list[list[int]] = []
    for at in ordered:
        last = processes[groups[-1][-1]] if groups else None
        one = processes[at]
        step_ns = one.first.realtime_ahead_ns - last.first.realtime_ahead_ns if last else 0
        if last is None or last.clock != one.clock or step_ns > STEP_NS:
            groups.append([])
        groups[-1].append(at)
    found: dict[int, Clock] = {}
    for clock, group in enumerate(sorted(groups, key=min)):
        ahead_ns = median_low(processes[at].first.realtime_ahead_ns for at in group)
        for at in group:
            found[at] = Clock(clock, processes[at].host, ahead_ns)
    return [found[at] for at in range(len(processes))]


def align(database: DuckDBPyConnection, clocks: int) -> list[Alignment]:
    """Compares clocks by messages, adjusts all times to clock 0, and returns the offsets added.

    A message arrives after it was posted, and before its acknowledgment has arrived. So each
    matched message bounds how far its receiver's clock is ahead of its sender's, from both sides.
    """
    aligned = [Alignment(0, 0), *(Alignment(0, None) for _ in range(clocks - 1))]
    if clocks < 2:
        return aligned
    bounds: dict[tuple[int, int], tuple[int, int]] = {}
    for sender, receiver, most, least in database.execute(_BOUNDS).fetchall():
        for pair, low, high in (
            ((sender, receiver), least, most),
            ((receiver, sender), -most, -least),
        ):
            known = bounds.get(pair, (low, high))
            bounds[pair] = max(known[0], low), min(known[1], high)
    for clock, found in walk(bounds).items():
        aligned[clock] = found
    _move(database, aligned)
    return aligned


def walk(bounds: dict[tuple[int, int], tuple[int, int]]) -> dict[int, Alignment]:
    """Alignments of the clocks linked to clock 0 by messages, over links with the least errors."""
    known = {0: Alignment(0, 0)}
    while True:
        steps = [
            (abs(high - low) // 2 + (known[a].error_ns or 0), a, b, (high + low) // 2)
            for (a, b), (low, high) in bounds.items()
            if a in known and b not in known
        ]
        if not steps:
            return known
        error_ns, a, b, ahead_ns = min(steps)
        known[b] = Alignment(known[a].offset_ns - ahead_ns, error_ns)


def _move(database: DuckDBPyConnection, aligned: Sequence[Alignment]) -> None:
    """Adds each clock's offset to the times of its processes."""
    if not any(one.offset_ns for one in aligned):
        return
    database.execute("CREATE TEMP TABLE offsets (clock INTEGER, ns BIGINT)")
    database.executemany(
        "INSERT INTO offsets VALUES (?, ?)", [[at, one.offset_ns] for at, one in enumerate(aligned)]
    )
    database.execute(
        "CREATE TEMP TABLE moves AS SELECT process, ns FROM processes JOIN offsets USING (clock)"
    )
    for table, columns in CLOCKED.items():
        if not columns:
            continue
        moved = ", ".join(f"t.{name} + m.ns AS {name}" for name in columns)
        database.execute(
            f"CREATE TABLE moved AS SELECT t.* REPLACE ({moved}) "
            f"FROM {table} t JOIN moves m ON m.process = t.process"
        )
        database.execute(f"DROP TABLE {table}")
        database.execute(f"ALTER TABLE moved RENAME TO {table}")
    database.execute("DROP TABLE moves")
    database.execute("DROP TABLE offsets")
