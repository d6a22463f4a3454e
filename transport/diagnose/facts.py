"""Reads what diagnosis needs from a trace: calls, messages by pair of ranks, losses and delays.

Times are nanoseconds on the clock of the trace's first host (clock 0); -1 stands for unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose import alive
from transport.diagnose.distinct import distinct
from transport.trace.notes import ranges
from transport.trace.store import Store

Array = NDArray[Any]

SIMULATED_NS_MAX = 10**17  # later times are times of day, after 1973

_CALLS = """
sent AS (
  SELECT process, channel_id, min(posted_ns) AS first_ns FROM messages
  WHERE sends AND channel_id IS NOT NULL GROUP BY ALL),
part AS (
  SELECT c.process, c.operation, min(s.first_ns) FILTER (WHERE c.sends) AS arrival_ns,
    coalesce(max(c.end_ns) FILTER (WHERE NOT c.sends), max(c.end_ns)) AS end_ns,
    count(*) FILTER (WHERE c.end_ns IS NULL) AS open,
    max(c.gpu_wait_ns // greatest(c.steps, 1)) FILTER (WHERE NOT c.sends) AS gpu_wait_ns
  FROM channels c LEFT JOIN sent s ON s.process = c.process AND s.channel_id = c.id
  WHERE c.operation IS NOT NULL GROUP BY ALL),
kernel AS (
  SELECT process, operation, min(gpu_start_ns) AS start_ns, max(gpu_stop_ns) AS stop_ns
  FROM kernels WHERE operation IS NOT NULL AND time_ns IS NOT NULL GROUP BY ALL)
SELECT o.process, o.id, m.comm_id, m.rank, m.ranks, coalesce(o.function, '') AS function, o.kind,
  o.sequence, coalesce(o.count, 0) AS count, coalesce(o.datatype, '') AS datatype,
  coalesce(o.root, -1) AS root, coalesce(o.begin_ns, -1) AS begin_ns,
  coalesce(p.arrival_ns, -1) AS arrival_ns,
  CASE WHEN p.open > 0 THEN -1 ELSE coalesce(p.end_ns, o.end_ns, -1) END AS end_ns,
  coalesce(o.algorithm, '') ILIKE '%tree%' OR o.function IN ('Broadcast', 'Reduce') AS relays,
  coalesce(TRY_CAST(p.gpu_wait_ns AS BIGINT), 0) AS gpu_wait_ns,
  coalesce(k.start_ns, -1) AS start_ns, coalesce(k.stop_ns, -1) AS stop_ns
FROM operations o JOIN comms m ON m.process = o.process AND m.id = o.comm
LEFT JOIN part p ON p.process = o.process AND p.operation = o.id
LEFT JOIN kernel k ON k.process = o.process AND k.operation = o.id
ORDER BY o.process, o.begin_ns, o.id
"""
# Files of these tools begin wherever a profiler was started.
_POSITIONS = """
SELECT 1 FROM processes WHERE split_part(trace, ' ', 1) IN ('kineto', 'nsys', 'chakra') LIMIT 1
"""
_EDGES = """
crossed AS (
  SELECT process, connection, message, coalesce(min(first_ns) FILTER (WHERE bytes > 0),
    min(first_ns)) AS first_ns, sum(segments) AS segments, sum(resent) AS resent
  FROM stripes WHERE sends GROUP BY ALL)
SELECT g.process, c.operation, c.peer, m.comm_id, count(*) AS messages, sum(g.bytes) AS bytes,
  min(g.posted_ns) AS first_ns, max(g.end_ns) AS end_ns,
  median(g.end_ns - coalesce(greatest(t.first_ns, g.posted_ns), g.posted_ns)) AS latency_ns,
  sum(g.end_ns - coalesce(greatest(t.first_ns, g.posted_ns), g.posted_ns)) AS busy_ns,
  coalesce(sum(t.segments), 0) AS segments, coalesce(sum(t.resent), 0) AS resent
FROM messages g JOIN channels c ON c.process = g.process AND c.id = g.channel_id
JOIN comms m ON m.process = c.process AND m.id = c.comm
LEFT JOIN crossed t ON t.process = g.process AND t.connection = g.connection
  AND t.message = g.message
WHERE g.sends AND g.end_ns IS NOT NULL AND g.posted_ns IS NOT NULL AND c.operation IS NOT NULL
GROUP BY ALL
"""

COMMS = "SELECT comm_id, rank, process FROM comms WHERE comm_id IS NOT NULL"
# Programs without NCCL have no operations. In their place, each connection is a communicator of two
# ranks, and each message a Send at one of them and a Recv at the other.
_MESSAGES = """
ends AS (
  SELECT process, id, pair, row_number() OVER (PARTITION BY pair ORDER BY process, id) - 1 AS rank
  FROM connections QUALIFY count(*) OVER (PARTITION BY pair) = 2),
comms AS (SELECT process, id, pair AS comm_id, rank, 2 AS ranks FROM ends),
numbered AS (
  SELECT g.process, g.connection, g.message, g.sends, g.bytes, g.posted_ns, 1 - e.rank AS peer,
    CASE WHEN g.status = 0 THEN g.end_ns END AS end_ns,
    row_number() OVER (PARTITION BY g.process ORDER BY g.connection, g.sends, g.message) AS id
  FROM main.messages g JOIN ends e ON e.process = g.process AND e.id = g.connection),
messages AS (SELECT *, id AS channel_id FROM numbered),
channels AS (
  SELECT *, id AS operation, connection AS comm, NULL AS gpu_wait_ns, 1 AS steps FROM numbered),
operations AS (
  SELECT process, id, connection AS comm, CASE WHEN sends THEN 'Send' ELSE 'Recv' END AS function,
    'p2p' AS kind, message AS sequence, bytes AS count, '' AS datatype, peer AS root,
    posted_ns AS begin_ns, end_ns, '' AS algorithm FROM numbered)"""


@dataclass(frozen=True)
class Queries:
    """SQL that selects calls, edges (their messages by sender and receiver), and communicators."""

    calls: str
    edges: str
    comms: str


OF_OPERATIONS = Queries(f"WITH {_CALLS}", f"WITH {_EDGES}", COMMS)
OF_MESSAGES = Queries(
    f"WITH {_MESSAGES}, {_CALLS}", f"WITH {_MESSAGES}, {_EDGES}", f"WITH {_MESSAGES} {COMMS}"
)


@dataclass(frozen=True)
class Process:
    """A process of the job. rank: in the job, -1 if the launcher named none.

    whole: False: its trace is damaged or lacks records.
    """

    rank: int
    host: str
    pid: int
    ended: bool | None  # whether its trace was closed; None: not known
    first_ns: int
    last_ns: int
    whole: bool = True


@dataclass(frozen=True, eq=False)
class Facts:
    """Arrays by column; the rows of `calls` are sorted by process and begin.

    processes: by number. calls: one row for each operation of each process. `instance` numbers the
    operations of a job: rows with the same number are the calls of one operation at its ranks.
    `relays`: in this operation, ranks may have to receive before they can send, as in a tree.
    edges: one row for each operation, sender and receiver, by process numbers.
    """

    processes: tuple[Process, ...]
    calls: dict[str, Array]
    edges: dict[str, Array]
    losses: dict[str, Array]
    samples: dict[str, Array]
    sent: dict[str, Array]
    downs: dict[str, Array]
    end_ns: int
    # (communicator, rank in it) -> process.
    members: dict[tuple[int, int], int]
    # Process -> its state, as ps shows it, of those that still run on this host.
    states: dict[int, str]
    # Process -> the addresses at which its peers reach it.
    addresses: dict[int, tuple[str, ...]] = field(default_factory=dict)
    has_operations: bool = True  # False: a program without NCCL, whose calls are its messages
    # False: the numbers of calls are positions in files that may begin at another call each.
    numbered: bool = True
    # How long threads waited for a core: source, time_ns, waited_ns, over_ns. Empty: not recorded.
    cpu_waits: dict[str, Array] = field(default_factory=dict)

    @property
    def simulated(self) -> bool:
        """Whether times are those of a simulation: they begin at 0, not in 1970."""
        return self.end_ns < SIMULATED_NS_MAX

    @cached_property
    def instances(self) -> int:
        return int(self.calls["instance"].max(initial=-1)) + 1

    @cached_property
    def kinds(self) -> Array:
        """For each call, the number of its kind."""
        return kinds_of(self.calls)

    def named(self, processes: Array) -> str:
        """Several processes as text: "ranks 0-7, 12"."""
        ones = [int(one) for one in processes]
        known = [self.processes[one].rank for one in ones]
        if len(ones) == 1 or min(known, default=-1) < 0:
            return ", ".join(self.name(one) for one in ones)
        return f"ranks {ranges(sorted(known))}"

    def name(self, process: int) -> str:
        one = self.processes[process]
        return f"rank {one.rank}" if one.rank >= 0 else f"process {one.pid} on {one.host}"


def facts_of(store: Store, now_ns: int | None = None) -> Facts:
    """Reads the facts of the job that is in the store.

    now_ns: the time of day. If processes of the job still run on this host, the facts extend to
    this time instead of the last record.
    """
    processes, numbers = _processes(store)
    members = _members(store, numbers, COMMS)
    has_operations = bool(store.rows("SELECT 1 FROM operations LIMIT 1"))
    calls, edges = _calls_and_edges(store, numbers, has_operations)
    peers = _peers(store, numbers)
    ((closed_ns,),) = store.rows("SELECT coalesce(max(closed_ns), 0) FROM processes")
    states = {numbers[one]: state for one, state in alive.states(store).items() if one in numbers}
    last = [closed_ns, *(one.last_ns for one in processes)]
    found = Facts(
        tuple(processes),
        calls,
        edges,
        _losses(store, numbers, peers),
        _samples(store, numbers, peers),
        _sent(store, numbers),
        _downs(store, numbers, peers),
        max(last, default=0),
        members,
        states,
        peers.addresses(),
        has_operations,
        not store.rows(_POSITIONS),
        _cpu_waits(store, numbers),
    )
    return found if now_ns is None else up_to(found, now_ns)


def up_to(facts: Facts, now_ns: int) -> Facts:
    """The facts, up to now_ns if processes of the job still run on this host."""
    return replace(facts, end_ns=max(facts.end_ns, now_ns)) if facts.states else facts


@dataclass(frozen=True, eq=False)
class Ready:
    """Tables that a caller computed instead of reading them from a store, as live diagnosis does.

    Processes are numbered as in Facts. calls, edges: columns as of OF_OPERATIONS;
    None: the program has no operations, and its messages are in the store. samples: the columns
    process, peer, path, time_ns and rtt_ns. end_ns: the time up to which the job was observed.
    sent, states: as in Facts.
    """

    calls: dict[str, Array] | None
    edges: dict[str, Array] | None
    samples: dict[str, Array]
    sent: dict[str, Array]
    end_ns: int
    states: dict[int, str]


def facts_from(store: Store, ready: Ready) -> Facts:
    """Facts from the tables in `ready`, and from a store for processes, connections and events."""
    processes, numbers = _processes(store)
    members = _members(store, numbers, COMMS)
    if ready.calls is not None and ready.edges is not None:
        calls = with_instances(ready.calls)
        edges = _with_ends(dict(ready.edges), members, calls)
    else:
        calls, edges = _calls_and_edges(store, numbers, has_operations=False)
    peers = _peers(store, numbers)
    ((closed_ns,),) = store.rows("SELECT coalesce(max(closed_ns), 0) FROM processes")
    last_ns = max([closed_ns, *(one.last_ns for one in processes)])
    return Facts(
        tuple(processes),
        calls,
        edges,
        _losses(store, numbers, peers),
        _with_target(dict(ready.samples), peers),
        ready.sent,
        _downs(store, numbers, peers),
        max(last_ns, ready.end_ns),
        members,
        ready.states,
        peers.addresses(),
        ready.calls is not None,
        cpu_waits=_cpu_waits(store, numbers),
    )


def _columns(store: Store, sql: str) -> dict[str, Array]:
    found = store.arrays(sql)
    return {name: _filled(column) for name, column in found.items()}


def _filled(column: Array) -> Array:
    """The column with -1 where a value is not known."""
    if not np.ma.isMaskedArray(column):
        return column
    if np.issubdtype(column.dtype, np.unsignedinteger):
        column = column.astype(np.int64)
    return np.asarray(np.ma.filled(column, -1))


def processes_of(store: Store) -> list[Process]:
    """The processes of a store, sorted by rank."""
    return _processes(store)[0]


def _processes(store: Store) -> tuple[list[Process], dict[int, int]]:
    """The processes sorted by rank, and: number of a process in the trace -> its index in them."""
    rows = store.rows(
        "SELECT process, coalesce(rank, -1), coalesce(host, ''), coalesce(pid, 0), ended, "
        "coalesce(first_ns, 0), coalesce(last_ns, 0), "
        "coalesce(damage, '') = '' AND coalesce(dropped, 0) = 0 FROM processes "
        "ORDER BY rank, process"
    )
    numbers = {row[0]: at for at, row in enumerate(rows)}
    return [Process(*row[1:]) for row in rows], numbers


def kinds_of(calls: dict[str, Array]) -> Array:
    """Numbers the kinds of calls: function, count, datatype and size of the communicator."""
    named = (_codes(calls[name]) for name in ("function", "datatype"))
    return distinct(*named, calls["count"], calls["ranks"])[1]


def _codes(texts: Array) -> Array:
    """A number for each text, the same for equal ones."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(one, len(known)) for one in texts.tolist()], np.int64)


def _numbered(values: Array, numbers: dict[int, int]) -> Array:
    """The number that each value has; -1: none."""
    if not numbers:
        return np.full(len(values), -1, np.int64)
    keys = np.array(sorted(numbers), np.int64)
    at = np.minimum(np.searchsorted(keys, values), len(keys) - 1)
    given = np.array([numbers[one] for one in keys.tolist()], np.int64)
    return np.where(keys[at] == values, given[at], -1)


def _calls_and_edges(
    store: Store, numbers: dict[int, int], has_operations: bool
) -> tuple[dict[str, Array], dict[str, Array]]:
    queries = OF_OPERATIONS if has_operations else OF_MESSAGES
    calls, edges = _columns(store, queries.calls), _columns(store, queries.edges)
    for found in (calls, edges):
        found["process"] = _numbered(found["process"], numbers)
    if not has_operations:
        calls["turn"] = calls["sequence"].astype(np.int64)
    calls = with_kernels(with_instances(calls))
    calls.pop("turn", None)
    return calls, _with_ends(edges, _members(store, numbers, queries.comms), calls)


def with_instances(found: dict[str, Array]) -> dict[str, Array]:
    """The calls sorted by process and begin; the column `instance` numbers their operations.

    A column `turn`, if present, numbers the sends and receives of each pair of ranks.
    """
    found = _in_order(found)
    # NCCL does not number sends and receives: the n-th send from rank A to rank B belongs to B's
    # n-th receive from A.
    alone = found["kind"] == "p2p"
    sends = found["function"] == "Send"
    sender = np.where(sends, found["rank"], found["root"])
    receiver = np.where(sends, found["root"], found["rank"])
    turn = found.get("turn")
    if turn is None:
        turn = ordinals(found["process"], found["comm_id"], sends, found["root"])
    found["instance"] = _instances(
        found["comm_id"],
        np.where(alone, "", found["function"]),
        np.where(alone, turn, found["sequence"].astype(np.int64)),
        np.where(alone, sender, -1),
        np.where(alone, receiver, -1),
    )
    return found


def with_kernels(calls: dict[str, Array]) -> dict[str, Array]:
    """The calls; if none of them has a message, as in traces of PyTorch's profiler, the work of
    each begins and ends with its kernel."""
    start_ns, stop_ns = calls.pop("start_ns"), calls.pop("stop_ns")
    if (calls["arrival_ns"] >= 0).any():
        return calls
    ends = np.where(stop_ns >= 0, stop_ns, calls["end_ns"])
    return calls | {"arrival_ns": start_ns, "end_ns": ends}


def ordinals(*keys: Array) -> Array:
    """For each row its index among the rows with the same keys: 0, 1, ..."""
    order = np.lexsort(keys[::-1])
    sorted_keys = [key[order] for key in keys]
    fresh = np.ones(len(order), bool)
    if len(order) > 1:
        fresh[1:] = np.any([key[1:] != key[:-1] for key in sorted_keys], axis=0)
    starts = np.flatnonzero(fresh)
    inside = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    made = np.zeros(len(order), np.int64)
    made[order] = inside
    return made


def _instances(*keys: Array) -> Array:
    """Numbers the rows so that those with equal keys have the same number."""
    known: dict[Any, int] = {}
    rows = zip(*(key.tolist() for key in keys), strict=True)
    return np.array([known.setdefault(row, len(known)) for row in rows], np.int64)


def _in_order(found: dict[str, Array]) -> dict[str, Array]:
    order = np.lexsort((found["id"], found["begin_ns"], found["process"]))
    return {name: column[order] for name, column in found.items()}


def _members(store: Store, numbers: dict[int, int], sql: str) -> dict[tuple[int, int], int]:
    """(communicator, rank in it) -> process."""
    rows = store.rows(sql)
    return {(comm, rank): numbers[process] for comm, rank, process in rows if process in numbers}


def _with_ends(
    found: dict[str, Array], members: dict[tuple[int, int], int], calls: dict[str, Array]
) -> dict[str, Array]:
    """Adds the columns source, target and instance (the operation) to the messages of an operation
    from one rank to another; drops rows that lack one of the three.
    """
    peers = zip(found["comm_id"].tolist(), found["peer"].tolist(), strict=True)
    found["target"] = np.array([members.get((int(c), int(p)), -1) for c, p in peers], np.int64)
    found["source"] = found.pop("process")
    of = {
        (int(process), int(one)): int(instance)
        for process, one, instance in zip(
            calls["process"], calls["id"], calls["instance"], strict=True
        )
    }
    ends = zip(found["source"].tolist(), found["operation"].tolist(), strict=True)
    found["instance"] = np.array([of.get(end, -1) for end in ends], np.int64)
    kept = (found["target"] >= 0) & (found["instance"] >= 0)
    return {name: column[kept] for name, column in found.items()}


@dataclass(frozen=True)
class _Peers:
    """Finds the peer process of a connection, or of an address without its port.

    An address that several peers of a process share, as processes of one host do, is left out.
    """

    of_connection: dict[tuple[int, int], int]
    of_address: dict[tuple[int, str], int]

    def addresses(self) -> dict[int, tuple[str, ...]]:
        """Process -> the addresses at which its peers reach it."""
        found: dict[int, dict[str, None]] = {}
        for (_, address), other in self.of_address.items():
            found.setdefault(other, {})[address] = None
        return {process: tuple(each) for process, each in found.items()}


def _peers(store: Store, numbers: dict[int, int]) -> _Peers:
    rows = store.rows(
        "SELECT a.process, a.id, a.peer, b.process FROM connections a JOIN connections b "
        "ON a.pair = b.pair AND (a.process <> b.process OR a.id <> b.id) "
        "WHERE a.peer IS NOT NULL ORDER BY ALL"
    )
    by_address: dict[tuple[int, str], set[int]] = {}
    for one, _, peer, other in rows:
        by_address.setdefault((numbers[one], host_of(peer)), set()).add(numbers[other])
    return _Peers(
        {(numbers[one], record): numbers[other] for one, record, _, other in rows},
        {ends: others.pop() for ends, others in by_address.items() if len(others) == 1},
    )


def host_of(address: str) -> str:
    """The address without its port: "10.0.1.2 port 7000" and "10.0.1.2:7000" are 10.0.1.2."""
    address = address.partition(" port ")[0]
    head, colon, port = address.rpartition(":")
    return head.strip("[]") if colon and port.isdigit() else address


def _by_peer(store: Store, sql: str, numbers: dict[int, int], peers: _Peers) -> dict[str, Array]:
    """The rows of a query, with both processes as columns source and target; -1: not known."""
    found = _columns(store, sql)
    found["process"] = _numbered(found["process"], numbers)
    return _with_target(found, peers)


def _with_target(found: dict[str, Array], peers: _Peers) -> dict[str, Array]:
    """Replaces the columns process and peer by source and target, the numbers of both processes.

    Looks up each peer once, as there are many rows of few peers. The column address is that of the
    peer's end of a path, without a port.
    """
    source = found.pop("process")
    codes: dict[str, int] = {}
    code = np.array(
        [codes.setdefault(one, len(codes)) for one in found.pop("peer").tolist()], np.int64
    )
    record = found.pop("connection", np.full(len(source), -1)).astype(np.int64)
    known, rows = distinct(source, code, record)
    names = [host_of(str(one)) for one in codes]
    ends = zip(*known.tolist(), strict=True)
    targets = [
        peers.of_connection.get((one, at), peers.of_address.get((one, names[name]), -1))
        for one, name, at in ends
    ]
    target = np.array(targets, np.int64)[rows] if targets else np.zeros(0, np.int64)
    address = np.array(names, object)[code] if names else np.zeros(0, object)
    return found | {"source": source, "target": target, "address": address}


def _losses(store: Store, numbers: dict[int, int], peers: _Peers) -> dict[str, Array]:
    """Segments that were found lost, by time, process, peer and path."""
    sql = (
        "SELECT process, coalesce(peer, '') AS peer, path, "
        "coalesce(connection, -1)::BIGINT AS connection, time_ns, value AS segments FROM events "
        "WHERE what = 'loss' AND time_ns IS NOT NULL ORDER BY time_ns"
    )
    return _by_peer(store, sql, numbers, peers)


def _downs(store: Store, numbers: dict[int, int], peers: _Peers) -> dict[str, Array]:
    """Events that say that a path, flow or process failed, fell silent or recovered, by time.

    The event process_stalled tells that its own process did not run and has resumed; its value is
    how long it did not run, in ns. That of host_drops is how many datagrams the kernel dropped.
    """
    sql = (
        "SELECT process, coalesce(peer, '') AS peer, coalesce(path, 0) AS path, "
        "coalesce(connection, -1)::BIGINT AS connection, time_ns, what, "
        "coalesce(value, 0) AS value, coalesce(status, 0) AS status FROM events "
        "WHERE what IN ('path_down', 'path_up', 'timeout', 'peer_dead', 'peer_quiet', 'flow_stuck',"
        " 'flow_failed', 'process_stalled', 'host_drops') AND time_ns IS NOT NULL ORDER BY time_ns"
    )
    return _by_peer(store, sql, numbers, peers)


def _cpu_waits(store: Store, numbers: dict[int, int]) -> dict[str, Array]:
    """For how long the thread of a process that waited most had no core, in the time before."""
    sql = (
        "SELECT process, time_ns, value::BIGINT AS waited_ns, status * 1000000::BIGINT AS over_ns "
        "FROM events WHERE what = 'cpu_wait' AND time_ns IS NOT NULL AND value IS NOT NULL "
        "AND value < 1000000000000 AND status > 0 ORDER BY time_ns"
    )
    found = _columns(store, sql)
    return found | {"source": _numbered(found.pop("process"), numbers)}


def _samples(store: Store, numbers: dict[int, int], peers: _Peers) -> dict[str, Array]:
    """Samples of the state of paths, sorted by time."""
    sql = (
        "SELECT process, coalesce(peer, '') AS peer, path, time_ns, coalesce(rtt_ns, 0) AS rtt_ns, "
        "segments_sent, segments_lost, usable FROM paths WHERE time_ns IS NOT NULL ORDER BY time_ns"
    )
    return _by_peer(store, sql, numbers, peers)


def _sent(store: Store, numbers: dict[int, int]) -> dict[str, Array]:
    """Segments sent on each path over time: segments of a stripe times the path's part of them."""
    shares = ", ".join(f"segments::DOUBLE * coalesce(path_{at}, 0) / 255.0" for at in range(32))
    sql = f"""
      WITH part AS (
        SELECT process, connection, end_ns AS time_ns, segments,
          unnest([{shares}]) AS sent, unnest(range(32)) AS path
        FROM stripes WHERE sends AND segments > 0 AND end_ns IS NOT NULL)
      SELECT a.process, b.process AS other, path, time_ns, sent
      FROM part p JOIN connections a ON a.process = p.process AND a.id = p.connection
      JOIN connections b ON a.pair = b.pair AND (a.process <> b.process OR a.id <> b.id)
      WHERE sent > 0 ORDER BY time_ns"""
    found = _columns(store, sql)
    found["source"] = _numbered(found.pop("process"), numbers)
    found["target"] = _numbered(found.pop("other"), numbers)
    return found
