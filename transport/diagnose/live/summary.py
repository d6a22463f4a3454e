"""A host's summary: what diagnosis needs of the last iterations of its processes, in columns.

Records are kept until their operation has ended; then only its row in `calls` and its rows in
`edges` remain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.distinct import distinct
from transport.diagnose.facts import OF_OPERATIONS, kinds_of
from transport.diagnose.live.columns import Table, chosen, joined, plain, rows_of
from transport.diagnose.live.follow import Trace
from transport.diagnose.live.layout import typed
from transport.diagnose.live.turns import Turns
from transport.diagnose.windows import WINDOW_MIN_NS, period_of
from transport.trace.folder import number as number_of
from transport.trace.gather import GATHERED, ProcessRecords
from transport.trace.load import Inserter
from transport.trace.segment import Rows
from transport.trace.store import new_store

Array = NDArray[Any]

LATE_NS = 1_000_000_000  # records of a thread may come to the file this late
WINDOWS = 30  # iterations that a summary keeps
KEPT_NS = 8 * WINDOW_MIN_NS  # more iterations are kept if WINDOWS of them are shorter than this
# Calls of a process that a summary keeps, or messages of a program without NCCL: CALLS_MIN in any
# case, and more if host and job have few processes, which share CALLS_HOST_MAX, CALLS_JOB_MAX.
CALLS_MIN, CALLS_HOST_MAX, CALLS_JOB_MAX = 2_000, 64_000, 128_000
PENDING_MAX = 400_000  # records of one kind and process that wait for the end of their operations
ROWS_MAX = 6_000  # at most this many rows in each of the tables events, samples and sent
BUCKET_NS = 20_000_000  # resolution of times in the table sent; doubled while it has too many rows
BUCKET_NS_MAX = 2_000_000_000
OPERATIONS = ("operation", "operation_end", "channel", "channel_end")
WAITING = ("message", "stripe")
# Table -> kinds of records that make rows in it, besides the kind that the table is named after.
KINDS = {
    "comms": ("communicator", "communicator_end"),
    "connections": ("connection_end",),
    "operations": ("operation_end",),
    "channels": ("channel_end",),
}
# The times of messages whose numbers are multiples of this serve to align the hosts' clocks.
QUICK_EVERY = 16
QUICK_MAX = 500

_SHARES = ", ".join(f"segments::DOUBLE * coalesce(path_{at}, 0) / 255.0" for at in range(32))
SENT = f"""
WITH part AS (
  SELECT process, connection, end_ns // ? * ? AS time_ns, segments,
    unnest([{_SHARES}]) AS sent, unnest(range(32)) AS path
  FROM stripes WHERE sends AND segments > 0 AND end_ns IS NOT NULL)
SELECT p.process, a.pair, path, time_ns, sum(sent) AS sent
FROM part p JOIN connections a ON a.process = p.process AND a.id = p.connection
WHERE sent > 0 GROUP BY ALL
"""
SAMPLES = """
SELECT process, coalesce(peer, '') AS peer, path, time_ns // ? * ? AS bucket,
  max(time_ns) AS time_ns, max_by(coalesce(rtt_ns, 0), time_ns) AS rtt_ns,
  max_by(segments_sent, time_ns) AS segments_sent, max_by(segments_lost, time_ns) AS segments_lost,
  max_by(usable, time_ns) AS usable
FROM paths WHERE time_ns IS NOT NULL GROUP BY process, engine, peer, path, bucket
"""
EVENTS = """
SELECT process, coalesce(peer, '') AS peer, coalesce(path, 0) AS path, time_ns, what,
  coalesce(connection, -1)::BIGINT AS connection, coalesce(value, 0) AS value,
  coalesce(status, 0) AS status FROM events
WHERE time_ns IS NOT NULL AND what IN ('loss', 'path_down', 'path_up', 'timeout', 'peer_dead',
  'peer_quiet', 'flow_stuck', 'flow_failed', 'process_stalled', 'host_drops')
"""
MESSAGES = """
SELECT g.process, g.connection, g.message, g.sends, coalesce(g.bytes, 0) AS bytes,
  coalesce(g.status, 0) AS status, g.posted_ns, g.end_ns, t.first_ns,
  coalesce(t.segments, 0) AS segments, coalesce(t.resent, 0) AS resent
FROM messages g LEFT JOIN (SELECT process, connection, message,
  coalesce(min(first_ns) FILTER (WHERE bytes > 0), min(first_ns)) AS first_ns,
  sum(segments) AS segments, sum(resent) AS resent FROM stripes
  WHERE sends AND process NOT IN (SELECT process FROM comms) GROUP BY ALL) t
  ON g.sends AND t.process = g.process AND t.connection = g.connection AND t.message = g.message
WHERE g.end_ns IS NOT NULL AND g.process NOT IN (SELECT process FROM comms)
"""
QUICK = f"""
SELECT m.process, c.pair, m.message, m.sends, m.posted_ns, m.end_ns FROM messages m
JOIN connections c ON c.process = m.process AND c.id = m.connection
WHERE m.message % {QUICK_EVERY} = 0 AND m.status = 0 AND m.end_ns IS NOT NULL
  AND m.posted_ns IS NOT NULL
"""
COMMS = "SELECT process, id, comm_id, rank, ranks FROM comms WHERE comm_id IS NOT NULL"
CONNECTIONS = """
SELECT process, id, pair, coalesce(peer, '') AS peer, coalesce(begin_ns, -1) AS begin_ns,
  coalesce(end_ns, -1) AS end_ns, coalesce(status, 0) AS status FROM connections
"""


@dataclass
class Pending:
    """Records of one process whose operations have not ended, or have ended just now."""

    rows: dict[str, Rows] = field(default_factory=dict)


@dataclass
class Summary:
    """The recent history of this host's processes.

    bucket_ns: times of sent segments and of samples are rounded down to multiples of it. now: the
    history together with the operations that still run, cut to the last iterations: `windows` of
    them or, if those are short, as many as begin within kept_ns. calls_max: maximum number of calls
    of a process.
    """

    windows: int = WINDOWS
    kept_ns: int = KEPT_NS
    window_ns: int = 60_000_000_000
    bucket_ns: int = BUCKET_NS
    late_ns: int = LATE_NS
    calls_max: int = CALLS_MIN
    pending: dict[int, Pending] = field(default_factory=dict)
    history: dict[str, Table] = field(default_factory=dict)
    now: dict[str, Table] = field(default_factory=dict)
    latest_ns: int = 0
    turns: Turns = field(default_factory=Turns)

    def step(self, traces: dict[int, Trace]) -> None:
        """Adds the new records of each process; `traces`: by number of the process."""
        worlds = [number_of(one.files.identity, "WORLD_SIZE") or 0 for one in traces.values()]
        self.calls_max = most_calls(len(traces), max(worlds, default=0))
        finals: dict[int, Array] = {}
        before_ns: dict[int, int] = {}
        try:
            made = _asked(traces, self.pending, self.bucket_ns)
        except Exception:  # a damaged record: drop all pending ones, so that the next step works
            self.pending = {number: Pending() for number in traces}
            raise
        for number, trace in traces.items():
            finals[number] = _settle(self.pending[number], trace.last_ns - self.late_ns)
            before_ns[number] = trace.last_ns - self.late_ns + trace.ahead_ns
            self.latest_ns = max(self.latest_ns, trace.last_ns + trace.ahead_ns)
        calls, edges, messages = (made.pop(name) for name in ("calls", "edges", "messages"))
        calls["turn"] = self.turns.of(calls)
        ended = messages["end_ns"] < _of(before_ns, messages["process"])
        parts = {
            "calls": (calls, _final(calls["process"], calls["id"], finals)),
            "edges": (edges, _final(edges["process"], edges["operation"], finals)),
            "messages": (messages, ended),
        }
        self.turns.settle(chosen(calls, parts["calls"][1]))
        for name, (table, done) in parts.items():
            self._keep(name, chosen(table, done))
        for name, table in made.items():
            if name in ("comms", "connections"):
                self.history[name] = table
            else:
                self._keep(name, table)
        self._bound()
        now = dict(self.history)
        for name, (table, done) in parts.items():
            now[name] = joined(self.history[name], chosen(table, ~done))
        self.now = now
        self._cut()

    def _keep(self, name: str, more: Table) -> None:
        before = self.history.get(name)
        self.history[name] = more if before is None else joined(before, more)

    def _bound(self) -> None:
        """Drops what is older than window_ns, and the oldest rows of tables that are too long."""
        oldest_ns = self._oldest_ns(self.history["calls"])
        messages = self.history["messages"]
        back = _places_from_the_end(messages["process"], messages["end_ns"])
        late = messages["end_ns"] >= self.latest_ns - self.kept_ns
        wanted = (back < CALLS_MIN) | (late & (back < self.calls_max))
        self.history["messages"] = chosen(messages, wanted)
        for name in ("sent", "samples", "events", "quick"):
            table = self.history[name]
            times = table["end_ns" if name == "quick" else "time_ns"]
            kept = np.flatnonzero(times >= oldest_ns)
            most = QUICK_MAX if name == "quick" else ROWS_MAX
            while name == "sent" and len(kept) > most and self.bucket_ns < BUCKET_NS_MAX:
                self.bucket_ns *= 2
                table = coarser(chosen(table, kept), self.bucket_ns)
                times, kept = table["time_ns"], np.arange(rows_of(table))
                self.history[name] = table
            if len(kept) > most:
                kept = kept[np.argsort(times[kept], kind="stable")[-most:]]
            if len(kept) < len(times):
                self.history[name] = chosen(table, np.sort(kept))

    def _oldest_ns(self, calls: Table) -> int:
        """Records before this time are dropped; it does not move while the job stands still."""
        times = [calls[name].max(initial=0) for name in ("begin_ns", "arrival_ns", "end_ns")]
        last_ns = int(max(times)) or self.latest_ns
        return min(last_ns, self.latest_ns) - self.window_ns

    def _cut(self) -> None:
        """Cuts calls to the last iterations, and edges to those of the calls."""
        calls = self.now["calls"]
        begin = np.maximum(calls["begin_ns"], calls["arrival_ns"])
        kept = (begin >= self._oldest_ns(calls)) | (calls["end_ns"] < 0)
        kept &= begin >= _first_ns(calls, self.windows, self.kept_ns)
        back = _places_from_the_end(calls["process"], begin)
        kept &= back < self.calls_max
        self.now["calls"] = chosen(calls, kept)
        for where in (self.history, self.now):
            own = where["calls"]
            if where is self.history:
                begins = np.maximum(own["begin_ns"], own["arrival_ns"])
                least = begin[kept].min(initial=np.iinfo(np.int64).max)
                own = where["calls"] = chosen(own, begins >= least)
            edges = where["edges"]
            known = np.unique(own["process"].astype(np.int64) << 32 | own["id"].astype(np.int64))
            wanted = edges["process"].astype(np.int64) << 32 | edges["operation"].astype(np.int64)
            where["edges"] = chosen(edges, np.isin(wanted, known))

    def forget(self, numbers: set[int]) -> None:
        """Forgets processes."""
        for number in numbers:
            self.pending.pop(number, None)
        self.turns.forget(numbers)
        for name, table in self.history.items():
            self.history[name] = chosen(table, ~np.isin(table["process"], list(numbers)))


def most_calls(processes: int, ranks: int) -> int:
    """The number of calls kept of each process: `processes` on the host, `ranks` in the job.

    They bound the summary's memory and file, and the time of the collector, which grows with the
    number of calls of the whole job.
    """
    share = min(CALLS_HOST_MAX // max(processes, 1), CALLS_JOB_MAX // max(processes, ranks, 1))
    return max(share, CALLS_MIN)


def _places_from_the_end(process: Array, begin: Array) -> Array:
    """For each call, how many later calls its process has."""
    order = np.lexsort((-begin, process))
    made = np.zeros(len(order), np.int64)
    starts = np.flatnonzero(np.diff(process[order], prepend=-1))
    inside = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    made[order] = inside
    return made


def _first_ns(calls: Table, windows: int, kept_ns: int) -> int:
    """When the last `windows` iterations began at the process with most calls; 0: keep all."""
    if not rows_of(calls):
        return 0
    busiest = int(np.bincount(calls["process"]).argmax())
    mine = np.flatnonzero(calls["process"] == busiest)
    mine = mine[np.argsort(calls["begin_ns"][mine], kind="stable")]
    period = period_of(kinds_of(calls)[mine])
    begins_ns = calls["begin_ns"][mine]
    iteration_ns = max(int(begins_ns[-1] - begins_ns[0]) * period // max(len(mine), 1), 1)
    kept = period * max(windows, -(-kept_ns // iteration_ns))
    if len(mine) <= kept:
        return 0
    # Other ranks may have begun a little earlier: half of the previous iteration is kept, too.
    return int(calls["begin_ns"][mine[max(len(mine) - kept - max(period // 2, 1), 0)]])


def _of(values: dict[int, int], process: Array) -> Array:
    """For each row, the value of its process; -1: it has none."""
    numbers, inverse = np.unique(process, return_inverse=True)
    found = np.array([values.get(one, -1) for one in numbers.tolist()] or [-1], np.int64)
    return found[inverse] if len(process) else np.zeros(0, np.int64)


def _final(process: Array, operation: Array, finals: dict[int, Array]) -> Array:
    """Whether each row belongs to an operation that has ended for good."""
    made = np.zeros(len(process), bool)
    for number, ids in finals.items():
        mine = process == number
        made[mine] = np.isin(operation[mine], ids)
    return made


def _asked(
    traces: dict[int, Trace], pending: dict[int, Pending], bucket_ns: int
) -> dict[str, Table]:
    """The tables of new records, and the calls and edges of all operations with pending records.

    Afterwards `pending` holds all records of operations, new ones included.
    """
    with new_store(threads=1) as store:
        before = {number: pending.setdefault(number, Pending()).rows for number in traces}
        inserter = Inserter(store.database)
        for number, trace in traces.items():
            fresh = trace.take()
            of = trace.records(fresh)
            for table in ("comms", "connections", "paths", "events", "messages", "stripes"):
                _add(inserter, table, number, of)
            pending[number].rows = _together(before[number], fresh)
        inserter.flush_all()
        made = {
            "comms": store.arrays(COMMS),
            "connections": store.arrays(CONNECTIONS),
            "events": store.arrays(EVENTS),
            "quick": store.arrays(QUICK),
            "sent": store.arrays(SENT, bucket_ns, bucket_ns),
            "samples": store.arrays(SAMPLES, bucket_ns, bucket_ns),
        }
        for number, trace in traces.items():
            old = {kind: before[number][kind] for kind in WAITING if kind in before[number]}
            for table in ("messages", "stripes"):
                _add(inserter, table, number, trace.records(old))
            for table in ("operations", "channels"):
                _add(inserter, table, number, trace.records(pending[number].rows))
        inserter.flush_all()
        made |= {
            "calls": store.arrays(OF_OPERATIONS.calls),
            "edges": store.arrays(OF_OPERATIONS.edges),
        }
        if any("communicator" not in trace.standing for trace in traces.values()):
            made["messages"] = store.arrays(MESSAGES)
    return typed({name: plain(table) for name, table in made.items()})


def _add(inserter: Inserter, table: str, process: int, of: ProcessRecords) -> None:
    """Adds the rows of a process to a table, if it has records for it."""
    if any(kind in of.rows for kind in (table[:-1], *KINDS.get(table, ()))):
        inserter.add(table, process, GATHERED[table](of))


def _together(old: dict[str, Rows], new: dict[str, Rows]) -> dict[str, Rows]:
    """The records of operations in `old` and `new`, those of `old` first."""
    made = {}
    for kind in (*OPERATIONS, *WAITING):
        parts = [one[kind] for one in (old, new) if kind in one]
        if len(parts) == 2 and parts[0].dtype != parts[1].dtype:
            parts = parts[1:]
        if parts:
            made[kind] = np.concatenate(parts)[-PENDING_MAX:]
    return made


def _settle(waiting: Pending, before_ns: int) -> Array:
    """Forgets the records of operations that had ended by before_ns; returns their ids."""
    rows = waiting.rows
    none = np.zeros(0, np.int64)
    if "operation" not in rows and "channel" not in rows:
        _keep_waiting(rows, none, before_ns)
        return none
    ended = _ended(rows, "operation_end", before_ns)
    done_channels = _ended(rows, "channel_end", before_ns)
    final = ended
    if "channel" in rows:
        channels = rows["channel"]
        still = ~np.isin(channels["id"], done_channels)
        final = np.setdiff1d(ended, channels["operation"][still])
        # Channels whose operation is 0 belong to operations of other processes.
        foreign = (channels["operation"] == 0) & ~still
        rows["channel"] = channels[~np.isin(channels["operation"], final) & ~foreign]
    for kind in ("operation", "operation_end"):
        if kind in rows:
            rows[kind] = rows[kind][~np.isin(rows[kind]["id"], final)]
    kept = rows["channel"]["id"] if "channel" in rows else none
    if "channel_end" in rows:
        ends = rows["channel_end"]
        rows["channel_end"] = ends[np.isin(ends["id"], kept) | (ends["time_ns"] >= before_ns)]
    _keep_waiting(rows, kept, before_ns)
    return final.astype(np.int64)


def _ended(rows: dict[str, Rows], kind: str, before_ns: int) -> Array:
    if kind not in rows:
        return np.zeros(0, np.int64)
    return np.unique(rows[kind]["id"][rows[kind]["time_ns"] < before_ns]).astype(np.int64)


def _keep_waiting(rows: dict[str, Rows], channels: Array, before_ns: int) -> None:
    """Keeps only messages and stripes of `channels`, and those since before_ns."""
    if "message" in rows:
        found = rows["message"]
        recent = found["time_ns"] >= before_ns
        rows["message"] = found[np.isin(found["channel"], channels) | recent]
    if "stripe" in rows:
        found = rows["stripe"]
        kept = found["time_ns"] >= before_ns
        if "message" in rows and len(rows["message"]):
            kept |= np.isin(_message_keys(found), _message_keys(rows["message"]))
        rows["stripe"] = found[kept]


def _message_keys(rows: Rows) -> Array:
    keys: Array = rows["connection"].astype(np.uint64) << np.uint64(40) | rows["message"]
    return keys


def coarser(table: Table, bucket_ns: int) -> Table:
    """Sums the sent segments of each process, pair and path over spans of bucket_ns."""
    times = table["time_ns"] // bucket_ns * bucket_ns
    found, group = distinct(
        table["process"].astype(np.int64),
        table["pair"].astype(np.uint64).view(np.int64),
        table["path"].astype(np.int64),
        times,
    )
    total = np.bincount(group, table["sent"], found.shape[1])
    return {
        "process": found[0].astype(table["process"].dtype),
        "pair": found[1].view(np.uint64),
        "path": found[2],
        "time_ns": found[3],
        "sent": total,
    }
