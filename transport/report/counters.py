"""What the network carried, lost and sent again over the time of a job, in bins of equal length.

Each series is one SQL query, which the report shows: `weft trace query` gives the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from transport.trace.store import Store

BINS_MAX = 60
HOUR_NS = 3600 * 10**9
EVENTS = (
    *("path_down", "path_up", "timeout", "loss", "peer_quiet", "peer_dead"),
    *("process_stalled", "host_drops"),
)
_SENT = (
    "SELECT (end_ns - {first}) // {bin} AS bin, sum(bytes)::BIGINT AS bytes FROM {table} "
    "WHERE sends AND end_ns IS NOT NULL GROUP BY ALL ORDER BY bin"
)
_RESENT = (
    "SELECT (coalesce(end_ns, posted_ns) - {first}) // {bin} AS bin, sum(resent)::BIGINT AS "
    "resent FROM stripes WHERE sends GROUP BY ALL ORDER BY bin"
)
_LOST = (
    "SELECT (time_ns - {first}) // {bin} AS bin, sum(greatest(lost, 0))::BIGINT AS lost FROM "
    "(SELECT time_ns, segments_lost::BIGINT - coalesce(lag(segments_lost::BIGINT) OVER (PARTITION "
    "BY process, engine, path, peer ORDER BY time_ns), if(removed > 0, segments_lost, 0)) AS lost "
    "FROM paths JOIN processes USING (process)) GROUP BY ALL ORDER BY bin"
)
_EVENT = (
    "SELECT (time_ns - {first}) // {bin} AS bin, count(*) AS events FROM events WHERE what = "
    "'{what}' GROUP BY ALL ORDER BY bin"
)


@dataclass(frozen=True)
class Series:
    """values: one for each bin. query: gives the bins that are not 0, by number."""

    name: str
    values: tuple[int, ...]
    query: str


@dataclass(frozen=True)
class Counters:
    """first_ns: when bin 0 begins. sent: bytes whose transfer ended in each bin.

    resent, lost: segments. events: by kind; kinds that never happened are left out. None: the
    trace does not tell.
    """

    first_ns: int
    bin_ns: int
    bins: int
    sent: Series | None
    resent: Series | None
    lost: Series | None
    events: tuple[Series, ...] | None


def counters_of(store: Store) -> Counters:
    """The counters of a trace. TraceError if a query fails."""
    sql = "SELECT coalesce(min(first_ns), 0), coalesce(max(last_ns), 0) FROM processes"
    ((first_ns, last_ns),) = store.rows(sql)
    bin_ns = nice_ns(max(last_ns - first_ns, 1) / BINS_MAX)
    bins = max((last_ns - first_ns) // bin_ns + 1, 1)

    def series(name: str, query: str, **more: str) -> Series:
        text = query.format(first=first_ns, bin=bin_ns, **more)
        values = [0] * bins
        for at, value in store.rows(text):
            values[min(max(at, 0), bins - 1)] += value or 0
        return Series(name, tuple(values), text)

    table = next((one for one in ("messages", "channels") if _has(store, one, "sends")), None)
    network = _has(store, "paths") or _has(store, "connections")
    events = tuple(series(what, _EVENT, what=what) for what in EVENTS) if network else None
    return Counters(
        first_ns,
        bin_ns,
        bins,
        None if table is None else series("bytes", _SENT, table=table),
        series("resent", _RESENT) if _has(store, "stripes", "sends") else None,
        series("lost", _LOST) if _has(store, "paths", "segments_lost IS NOT NULL") else None,
        None if events is None else tuple(one for one in events if any(one.values)),
    )


def _has(store: Store, table: str, condition: str = "true") -> bool:
    return bool(store.rows(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1"))


def nice_ns(ns: float) -> int:
    """The next larger time that reads well: 1, 2 or 5 times a power of ten, or parts of hours."""
    decimal = (times * 10**power for power in range(9) for times in (1, 2, 5))
    clock_s = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600)
    nice = [*decimal, *(second * 10**9 for second in clock_s)]
    return next((one for one in nice if one >= ns), -(-int(ns) // HOUR_NS) * HOUR_NS)
