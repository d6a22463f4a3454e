"""Notes on what makes a trace less trustworthy: missing ranks, losses, damage, clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transport.ground.units import time_text

Query = Callable[..., list[tuple[Any, ...]]]
CLOCK_NS = 1_000_000_000  # a note names each host whose clock differs by this or more
# Counts imported collectives that may not be rings, because a kernel's name told the algorithm, and
# those with an unknown root.
_BY_KERNELS = """
SELECT count(*) FILTER (algorithm = 'RING' AND function NOT IN ('Broadcast', 'Reduce')),
  count(*) FILTER (root IS NULL AND function IN ('Broadcast', 'Reduce'))
FROM operations JOIN processes USING (process)
WHERE split_part(trace, ' ', 1) IN ('kineto', 'nsys', 'chakra')
"""
# Kind of imported files -> what they are.
_KINDS = {
    "nccl-log": "logs of NCCL",
    "kineto": "traces of PyTorch's profiler",
    "flight": "dumps of PyTorch's Flight Recorder",
    "inspector": "logs of NCCL's Inspector",
    "nsys": "exports of Nsight Systems",
    "chakra": "execution traces of Chakra",
}
# For each rank, processes that ran one after the other without another job or attempt in their
# identity. Imported files of one process may follow one another; their names have a space.
_REPEATED = """
WITH runs AS (
  SELECT job, attempt, rank, host, pid, start_ticks, min(first_ns) AS first_ns,
    max(last_ns) AS last_ns
  FROM processes WHERE rank >= 0 AND trace NOT LIKE '% %' GROUP BY ALL
)
SELECT a.rank, count(DISTINCT (b.host, b.pid, b.start_ticks)) + 1
FROM runs a JOIN runs b USING (job, attempt, rank) WHERE a.last_ns < b.first_ns
GROUP BY a.rank ORDER BY a.rank
"""
OWN_FOLDERS = "give each run its own folder, or name it with WEFT_TRACE_JOB"
NAMED_MAX = 5  # maximum number of processes or hosts that are described one by one


def notes_of(query: Query) -> list[str]:
    """The notes on a trace: one line for each problem of its data."""
    return [
        *_imported(query),
        *_jobs(query),
        *_runs(query),
        *_network(query),
        *_missing(query),
        *_losses(query),
        *_damage(query),
        *_open_operations(query),
        *_ends(query),
        *_clocks(query),
    ]


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in increasing order as text, like "0-3, 7"."""
    parts: list[list[int]] = []
    for one in numbers:
        if parts and parts[-1][1] == one - 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def repeated_runs(query: Query) -> str:
    """Says that the folder has traces of several runs that nothing else tells apart; "" if not.

    Their sums and times are mixed.
    """
    found = query(_REPEATED)
    if not found:
        return ""
    count = max(times for _, times in found)
    runs, times = ("two", "twice") if count == 2 else (str(count), f"{count} times")
    numbers = [rank for rank, _ in found]
    ranks = f"rank{'s' * (len(numbers) != 1)} {ranges(numbers)}"
    return f"{runs} runs in one folder: {ranks} {times}"


def missing_ranks(query: Query) -> tuple[list[int], int]:
    """Ranks of the job without a trace, and the number of ranks; ([], 0) if that is unknown."""
    ranks = {rank for (rank,) in query("SELECT DISTINCT rank FROM processes WHERE rank >= 0")}
    ((size,),) = query("SELECT max(world_size) FROM processes WHERE rank IS NOT NULL")
    if ranks and size is not None:
        return [rank for rank in range(min(size, 1 << 20)) if rank not in ranks], size
    sql = "SELECT comm_id, max(ranks) AS size FROM comms GROUP BY ALL ORDER BY size DESC, comm_id"
    largest = query(f"{sql} NULLS LAST LIMIT 1")
    if not largest or largest[0][1] is None:
        return [], 0
    comm_id, size = largest[0]
    known = {one for (one,) in query("SELECT rank FROM comms WHERE comm_id = ?", comm_id)}
    return [rank for rank in range(min(size, 1 << 20)) if rank not in known], size


def _imported(query: Query) -> Iterator[str]:
    for kind, name in _KINDS.items():
        ((count,),) = query("SELECT count(*) FROM processes WHERE trace LIKE ?", f"{kind} %")
        if count:
            yield f"{count} processes are from {name}: who sent what is derived, not measured"
    ((rings, rootless),) = query(_BY_KERNELS)
    if rings:
        yield (
            f"{rings} collectives count as rings, because names of kernels do not tell rings from "
            "NVLS, CollNet and PAT"
        )
    if rootless:
        yield (
            f"who sent what is unknown for {rootless} calls of Broadcast and Reduce: the files do "
            "not tell the root"
        )


def _network(query: Query) -> Iterator[str]:
    """A note if NCCL used another network than weft's: then only NCCL's channels were recorded."""
    sql = "SELECT EXISTS (FROM channels WHERE end_ns IS NOT NULL), EXISTS (FROM connections)"
    ((channels, connections),) = query(sql)
    if channels and not connections:
        yield (
            "nothing is recorded of weft as the network: bytes and waits are those of NCCL's "
            "channels, and there are no messages, resends, latencies or paths"
        )


def _open_operations(query: Query) -> Iterator[str]:
    ((count,),) = query(
        "SELECT count(DISTINCT (process, operation)) FROM channels "
        "WHERE end_ns IS NULL AND operation IS NOT NULL"
    )
    if count:
        yield f"{count} operations had not ended when the trace ended: what they sent is left out"


def _jobs(query: Query) -> Iterator[str]:
    jobs = query("SELECT job, count(*) FROM processes GROUP BY job ORDER BY job")
    if len(jobs) > 1:
        named = ", ".join(f"{job or 'unnamed'} ({count} processes)" for job, count in jobs)
        yield f"the folder has traces of {len(jobs)} jobs: {named}"
    attempts = query("SELECT attempt, count(*) FROM processes GROUP BY attempt ORDER BY attempt")
    if len(attempts) > 1:
        named = ", ".join(f"{attempt} ({count} processes)" for attempt, count in attempts)
        yield f"the job was restarted; the trace has these attempts: {named}"


def _runs(query: Query) -> Iterator[str]:
    if runs := repeated_runs(query):
        yield f"{runs}; their numbers are added together: {OWN_FOLDERS}"


def _missing(query: Query) -> Iterator[str]:
    missing, size = missing_ranks(query)
    if missing:
        of = "rank" if len(missing) == 1 else "ranks"
        yield f"no trace of {of} {ranges(missing)} (of {size})"


def _losses(query: Query) -> Iterator[str]:
    sql = "SELECT count(*), sum(dropped) FROM processes WHERE dropped > 0"
    for count, dropped in query(sql):
        if count:
            yield f"{count} processes dropped {dropped} records: counts and sums are too low"
    sql = "SELECT count(*), sum(removed) FROM processes WHERE removed > 0"
    for count, removed in query(sql):
        if count:
            yield f"{removed} older files of {count} processes were removed: the start is missing"


def _named(rank: int | None, pid: int, host: str) -> str:
    if rank is None or rank < 0:
        return f"process {pid} of {host}"
    return f"rank {rank} (process {pid} of {host})"


def _damage(query: Query) -> Iterator[str]:
    sql = "SELECT rank, pid, host, damage FROM processes WHERE damage <> '' ORDER BY process"
    found = query(sql)
    for *one, damage in found[:NAMED_MAX]:
        yield f"{_named(*one)}: {damage}"
    if found[NAMED_MAX:]:
        yield f"{len(found) - NAMED_MAX} more processes have damaged files"


def _ends(query: Query) -> Iterator[str]:
    sql = "SELECT rank, pid, host, count(*) OVER () FROM processes WHERE NOT ended ORDER BY process"
    found = query(f"{sql} LIMIT {NAMED_MAX}")
    if found:
        count = found[0][3]
        named = ", ".join(_named(*one[:3]) for one in found)
        more = f" and {count - len(found)} more" if count > len(found) else ""
        yield (
            f"no end: {named}{more}: each was killed, still runs, or its disk was full, so its "
            "last records may be missing"
        )


def _clocks(query: Query) -> Iterator[str]:
    sql = "SELECT DISTINCT clock, host, clock_offset_ns, clock_error_ns FROM processes ORDER BY 1"
    found = query(sql)
    far = [one for one in found if abs(one[2] or 0) >= CLOCK_NS]
    for _, host, offset_ns, error_ns in far[:NAMED_MAX]:
        way = "behind" if offset_ns > 0 else "ahead"
        yield (
            f"the clock of {host} is {time_text(abs(offset_ns))} {way}; its times were moved "
            f"(error at most {error_ns} ns)"
        )
    if far[NAMED_MAX:]:
        yield f"the times of {len(far) - NAMED_MAX} more hosts were moved by over a second"
    unknown = [host for _, host, _, error_ns in found if error_ns is None]
    if unknown:
        named = ", ".join(unknown[:NAMED_MAX]) + (", ..." if unknown[NAMED_MAX:] else "")
        yield f"no messages tell how far these clocks are off, so they are not aligned: {named}"
