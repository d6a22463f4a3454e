"""The profile of a trace: how often, how large and how fast the operations were."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from transport.ground.collectives import PER_RANK
from transport.trace.parallelism import guess
from transport.trace.store import Store

_PER_RANK = ", ".join(f"'{one}'" for one in PER_RANK)
# Each operation of each process with its duration: from its network channels, else from its
# kernels, else from the call that enqueued it. Each launch of a captured graph is an operation.
_TIMED = f"""
WITH network AS (
  SELECT process, operation, max(end_ns) - min(begin_ns) AS ns
  FROM channels WHERE operation IS NOT NULL GROUP BY ALL),
kernel AS (
  SELECT process, operation, max(gpu_stop_ns)::HUGEINT - min(gpu_start_ns) AS ns
  FROM kernels WHERE operation IS NOT NULL AND gpu_stop_ns > 0 GROUP BY ALL),
timed AS (
  SELECT o.process, o.function, o.algorithm, o.protocol, o.datatype, o.bytes, o.root,
    m.comm_id, m.ranks,
    o.bytes IS NULL AND o.function <> 'Barrier' AS unsized,
    o.bytes::DOUBLE * CASE WHEN o.function NOT IN ({_PER_RANK}) THEN 1
      WHEN m.ranks IS NOT NULL THEN greatest(m.ranks, 1) END AS whole,
    CASE WHEN m.ranks < 2 THEN 1 WHEN o.function = 'AllReduce'
      THEN 2 * (m.ranks::DOUBLE - 1) / m.ranks WHEN o.function IN ({_PER_RANK})
      THEN (m.ranks::DOUBLE - 1) / m.ranks ELSE 1 END AS factor,
    CASE WHEN n.ns > 0 THEN 'network' WHEN k.ns > 0 THEN 'kernel'
      WHEN o.end_ns > o.begin_ns THEN 'enqueue' END AS clock,
    CASE WHEN n.ns > 0 THEN n.ns WHEN k.ns > 0 THEN k.ns
      WHEN o.end_ns > o.begin_ns THEN o.end_ns - o.begin_ns END::DOUBLE AS ns
  FROM operations o LEFT JOIN comms m ON m.process = o.process AND m.id = o.comm
  LEFT JOIN network n ON n.process = o.process AND n.operation = o.id
  LEFT JOIN kernel k ON k.process = o.process AND k.operation = o.id
  WHERE o.function IS NOT NULL)
"""
_KEY = "function, algorithm, protocol, datatype"
_GROUPS = f"""
SELECT {_KEY}, count(*), sum(bytes), quantile_disc(bytes, 0.5), quantile_disc(bytes, 0.95),
  max(bytes), sum(ns),
  sum(whole) FILTER (clock IN ('network', 'kernel')) /
    sum(ns) FILTER (clock IN ('network', 'kernel') AND whole IS NOT NULL) * 1e9,
  sum(whole * factor) FILTER (clock IN ('network', 'kernel')) /
    sum(ns) FILTER (clock IN ('network', 'kernel') AND whole * factor IS NOT NULL) * 1e9,
  list_sort(list_distinct(list(clock))), count(*) FILTER (unsized)
FROM timed GROUP BY {_KEY} ORDER BY sum(ns) DESC NULLS LAST, {_KEY}
"""
_SIZES = f"""
SELECT {_KEY}, CASE WHEN bytes > 0 THEN floor(log2(bytes))::INTEGER ELSE 0 END AS power, count(*)
FROM timed WHERE bytes IS NOT NULL GROUP BY {_KEY}, power ORDER BY power
"""
_BY_SIZE = """
SELECT function, CASE WHEN bytes > 0 THEN floor(log2(bytes))::INTEGER ELSE 0 END AS power,
  count(*), sum(bytes), sum(ns), median(ns),
  sum(whole * factor) FILTER (clock IN ('network', 'kernel')) /
    sum(ns) FILTER (clock IN ('network', 'kernel') AND whole IS NOT NULL) * 1e9,
  list_sort(list_distinct(list(clock)))
FROM timed WHERE bytes IS NOT NULL GROUP BY function, power ORDER BY function, power
"""
_COMMS = """
SELECT comm_id, function, count(*), coalesce(sum(bytes), 0), sum(ns), count(*) FILTER (unsized)
FROM timed WHERE comm_id IS NOT NULL GROUP BY comm_id, function
"""
_PEERS = """
SELECT comm_id, max(peers) FROM (
  SELECT comm_id, process, count(DISTINCT root) AS peers FROM timed WHERE function = 'Send'
  GROUP BY ALL) GROUP BY ALL
"""
_SHAPES = """
SELECT m.comm_id, any_value(m.name), max(m.ranks), max(m.nodes), list(DISTINCT p.rank)
FROM comms m JOIN processes p ON p.process = m.process WHERE m.comm_id IS NOT NULL GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one function, algorithm, protocol and datatype, of all ranks together.

    count: number of calls of all ranks. bytes: sum; bytes_p50, bytes_p95, bytes_max: of one call.
    unsized: calls whose size is not known, which these leave out.
    sizes: exponent of a power of two -> calls of at least that size and less than the next.
    time_ns: sum over ranks; None: no call has a time. time_share: share of the time of all
    operations.
    algorithm_bytes_per_s, bus_bytes_per_s: as in nccl-tests; None: no channel or kernel was
    recorded.
    timed_by: what the times were measured by: network, kernel or enqueue.
    """

    function: str
    algorithm: str
    protocol: str
    datatype: str
    count: int
    bytes: int | None
    bytes_p50: int | None
    bytes_p95: int | None
    bytes_max: int | None
    sizes: dict[int, int]
    time_ns: int | None
    time_share: float
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None
    timed_by: tuple[str, ...]
    unsized: int = 0


@dataclass(frozen=True, slots=True)
class Sized:
    """The operations of one function that have between 2**power bytes and twice as many.

    count: number of calls of all ranks. bytes: sum. time_ns: sum over ranks; time_ns_p50: median of
    one call; None: not known. bus_bytes_per_s, timed_by: as of Operations.
    """

    function: str
    power: int
    count: int
    bytes: int
    time_ns: int | None
    time_ns_p50: int | None
    bus_bytes_per_s: float | None
    timed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Communicator:
    """The operations of one communicator. members: ranks in the job, as far as known.

    bytes, time_ns: sums of known sizes and times, None: none is known. unsized: operations whose
    size is not known.

    parallelism: a guess of its use, from its shape; "": no guess.
    """

    comm_id: str
    name: str
    ranks: int | None
    nodes: int | None
    members: tuple[int, ...]
    count: int
    bytes: int | None
    time_ns: int | None
    functions: tuple[str, ...]
    parallelism: str
    unsized: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a trace. notes: a line for each thing that is missing in the numbers.

    by_size: by function and size, in this order.
    """

    operations: tuple[Operations, ...]
    by_size: tuple[Sized, ...]
    communicators: tuple[Communicator, ...]
    notes: tuple[str, ...]


def profile_of(store: Store) -> Profile:
    """Sums up all operations of a trace."""
    sizes: dict[tuple[Any, ...], dict[int, int]] = defaultdict(dict)
    for *key, power, count in store.rows(_TIMED + _SIZES):
        sizes[tuple(key)][power] = count
    groups = store.rows(_TIMED + _GROUPS)
    total_ns = sum(row[9] or 0 for row in groups)
    operations = tuple(_operations(row, sizes[tuple(row[:4])], total_ns) for row in groups)
    by_size = tuple(_sized(row) for row in store.rows(_TIMED + _BY_SIZE))
    notes = _notes(store, operations)
    return Profile(operations, by_size, tuple(_communicators(store)), tuple(notes))


def _sized(row: tuple[Any, ...]) -> Sized:
    function, power, count, total, ns, half, bus, clocks = row
    timed_by = tuple(one for one in clocks if one is not None)
    return Sized(function, power, count, int(total), _whole(ns), _whole(half), bus, timed_by)


def _operations(row: tuple[Any, ...], sizes: dict[int, int], total_ns: float) -> Operations:
    *key, count, total, half, most, largest, ns, rate, bus, clocks, unsized = row
    function, algorithm, protocol, datatype = (text or "" for text in key)
    return Operations(
        function,
        algorithm,
        protocol,
        datatype,
        count=count,
        bytes=_whole(total),
        bytes_p50=_whole(half),
        bytes_p95=_whole(most),
        bytes_max=_whole(largest),
        sizes=sizes,
        time_ns=_whole(ns),
        time_share=(ns or 0) / total_ns if total_ns else 0.0,
        algorithm_bytes_per_s=rate,
        bus_bytes_per_s=bus,
        timed_by=tuple(one for one in clocks if one is not None),
        unsized=unsized,
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _communicators(store: Store) -> list[Communicator]:
    used: dict[int, list[tuple[str, int, int, float | None, int]]] = defaultdict(list)
    for comm_id, function, count, size, ns, unsized in store.rows(_TIMED + _COMMS):
        used[comm_id].append((function, count, int(size), ns, unsized))
    peers = dict(store.rows(_TIMED + _PEERS))
    ((processes, size),) = store.rows("SELECT count(DISTINCT rank), max(world_size) FROM processes")
    shapes = store.rows(_SHAPES)
    world = max(processes, size or 0, *(row[2] or 0 for row in shapes), 0)
    found = []
    for comm_id, name, ranks, nodes, members in shapes:
        uses = sorted(used[comm_id], key=lambda one: -(one[3] or 0))
        known = tuple(sorted(one for one in members if one is not None))
        sizes = {function: float(total) for function, _, total, _, _ in uses}
        kind = guess(known, ranks or 0, nodes, world, sizes, peers.get(comm_id, 0))
        count, unsized = sum(one[1] for one in uses), sum(one[4] for one in uses)
        total = sum(one[2] for one in uses) if unsized < count or not count else None
        times = [one[3] for one in uses if one[3] is not None]
        time_ns = int(sum(times)) if times or not uses else None
        functions = tuple(one[0] for one in uses)
        named = (f"{comm_id:016x}", name or "", ranks, nodes, known)
        found.append(Communicator(*named, count, total, time_ns, functions, kind, unsized))
    return sorted(found, key=lambda one: (-(one.time_ns or 0), one.comm_id))


def _notes(store: Store, operations: tuple[Operations, ...]) -> list[str]:
    notes = []
    if not operations:
        ((count, size),) = store.rows("SELECT count(*), sum(bytes) FROM messages WHERE sends")
        sent = f"; {count} messages with {size} bytes were sent: see weft trace matrix"
        notes.append(f"no operations of NCCL are recorded{sent if count else ''}")
    if any("enqueue" in one.timed_by for one in operations):
        notes.append(
            "times of operations without channels or kernels are those of the call that enqueued "
            "them; WEFT_TRACE_KERNELS=1 records kernels"
        )
    return notes
