"""Gathers the records of one process into the rows of the store's tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.ground.collectives import ELEMENT_BYTES
from transport.trace.folder import ProcessFiles
from transport.trace.layout import VERSION, TraceError
from transport.trace.segment import Rows, SegmentRows, read_rows
from transport.trace.tables import PATHS_NAMED

Columns = dict[str, NDArray[Any]]
TIME_MAX = 12 * 10**17  # largest plausible CLOCK_MONOTONIC, in ns: 38 years
KINDS = ("collective", "p2p", "copies")


@dataclass(slots=True)
class ProcessRecords:
    """All records of one process.

    rows: name of a kind -> its records, file after file.
    ended: whether its last file has an end; None: unknown.
    ahead_ns: add it to a record's time to get nanoseconds since 1970.
    """

    ahead_ns: int
    rows: dict[str, Rows] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    files: int = 0
    bytes: int = 0
    dropped: int = 0
    damage: str = ""
    ended: bool | None = None
    closed_at_ns: int | None = None

    @property
    def records(self) -> int:
        return sum(rows.size for rows in self.rows.values())

    @property
    def closed_ns(self) -> int | None:
        """When the process closed its trace; None: it did not, or the time is impossible."""
        at_ns = self.closed_at_ns
        return at_ns + self.ahead_ns if self.ended and at_ns and abs(at_ns) < TIME_MAX else None

    def span_ns(self) -> tuple[int | None, int | None]:
        """The times of the first and of the last record."""
        times = [rows["time_ns"] for rows in self.rows.values()]
        times = [one[is_possible(one)] for one in times]
        times = [one for one in times if one.size]
        if not times:
            return None, None
        first, last = min(int(one.min()) for one in times), max(int(one.max()) for one in times)
        return first + self.ahead_ns, last + self.ahead_ns


def read_process(files: ProcessFiles, ahead_ns: int, until_ns: int | None = None) -> ProcessRecords:
    """Reads all files of a process. Unreadable parts are left out, and `damage` describes them.

    until_ns: leaves out records with a later time, in nanoseconds since 1970.
    """
    found = ProcessRecords(ahead_ns)
    parts: dict[str, list[Rows]] = {}
    damage = [missing(*gap) for gap in files.gaps]
    for _, (path, header) in sorted(files.paths.items()):
        if header.version != VERSION:
            damage.append(f"{path.name}: version {header.version}, read as version {VERSION}")
        try:
            segment = read_rows(path)
        except TraceError as error:
            damage.append(str(error))
            found.ended = None
            continue
        _add(segment, found, parts)
        found.ended = segment.ended
        found.closed_at_ns = segment.closed_ns
        if segment.damage:
            damage.append(f"{path.name}: {segment.damage}")
    for kind, rows in parts.items():
        same = [one for one in rows if one.dtype == rows[0].dtype]
        if len(same) < len(rows):
            damage.append(f"records of the kind {kind} differ between its files")
        every = np.concatenate(same)
        found.rows[kind] = (
            every if until_ns is None else every[every["time_ns"] <= until_ns - ahead_ns]
        )
    found.damage = "; ".join(damage)
    return found


def missing(first: int, last: int) -> str:
    """Says which files of a process are missing between others."""
    return f"file {first} is missing" if first == last else f"files {first} to {last} are missing"


def _add(segment: SegmentRows, found: ProcessRecords, parts: dict[str, list[Rows]]) -> None:
    found.files += 1
    found.bytes += segment.bytes
    found.dropped = max(found.dropped, segment.dropped)
    found.texts.update(segment.texts)
    for kind, rows in segment.rows.items():
        parts.setdefault(kind, []).append(rows)


def is_possible(times: NDArray[Any]) -> NDArray[np.bool_]:
    """For each time, whether CLOCK_MONOTONIC can have it; if not, it is damage."""
    inside: NDArray[np.bool_] = (times > -TIME_MAX) & (times < TIME_MAX)
    return inside


class _Reader:
    """Reads the columns of one kind of record; missing rows and missing fields are masked."""

    def __init__(self, of: ProcessRecords, kind: str, index: NDArray[np.int64] | None = None):
        """index: which rows to read, in this order (-1: a masked row); None: all rows."""
        self._of = of
        self._rows = of.rows.get(kind)
        count = 0 if self._rows is None else self._rows.size
        self._index = np.arange(count) if index is None else index
        self._absent = self._index < 0

    def number(self, name: str, zero_is_none: bool = False) -> NDArray[Any]:
        if self._rows is None or name not in (self._rows.dtype.names or ()) or not self._rows.size:
            nothing = np.zeros(self._index.size, np.int64)
            return np.ma.array(nothing, mask=True)
        values: NDArray[Any] = self._rows[name][self._index]
        absent = self._absent | (values == 0) if zero_is_none else self._absent
        return np.ma.array(values, mask=absent) if absent.any() else values

    def flag(self, name: str) -> NDArray[Any]:
        return self.number(name).astype(np.bool_)

    def time(self, name: str = "time_ns", zero_is_none: bool = False) -> NDArray[Any]:
        """Nanoseconds since 1970; impossible times, which would overflow, are masked."""
        values = self.number(name, zero_is_none).astype(np.int64)
        possible = is_possible(np.ma.getdata(values))
        if not possible.all():
            values = np.ma.masked_where(~possible, values)
        return values + self._of.ahead_ns

    def text(self, name: str) -> NDArray[Any]:
        ids, absent = self._plain(name)
        known, inverse = np.unique(ids, return_inverse=True)
        texts = np.array([self._of.texts.get(one, "") for one in known.tolist()] or [""], object)
        out: NDArray[Any] = texts[inverse] if ids.size else np.empty(0, object)
        out[absent] = None
        return out

    def words(self, name: str, words: tuple[str, ...]) -> NDArray[Any]:
        """For each record, words[value of the field]; None if the value is no index of `words`."""
        values, absent = self._plain(name)
        table = np.array([*words, None], object)
        out: NDArray[Any] = table[np.minimum(values, len(words))]
        out[absent] = None
        return out

    def _plain(self, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        values = self.number(name)
        return np.ma.filled(values, 0), np.ma.getmaskarray(values)


def _paired(of: ProcessRecords, begin: str, end: str) -> tuple[NDArray[Any], _Reader, _Reader]:
    """The ids of all records of a kind, a reader of these records, and one of their end records.

    Of several records with the same id only the first counts, because every file repeats the
    open communicators. An end record without a begin record gets a row as well.
    """
    none = np.empty(0, np.uint32)
    begins = of.rows[begin]["id"] if begin in of.rows else none
    ends = of.rows[end]["id"] if end in of.rows else none
    ids, at = np.unique(begins, return_index=True)
    end_ids, end_at = np.unique(ends, return_index=True)
    every = np.union1d(ids, end_ids)

    def rows_of(known: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.int64]:
        index = np.full(every.size, -1, np.int64)
        index[np.searchsorted(every, known)] = rows
        return index

    first, last = _Reader(of, begin, rows_of(ids, at)), _Reader(of, end, rows_of(end_ids, end_at))
    return every, first, last


def _comms(of: ProcessRecords) -> Columns:
    ids, begin, end = _paired(of, "communicator", "communicator_end")
    numbers = {name: begin.number(name) for name in ("comm_id", "rank")}
    # Versions 1 to 3 of NCCL's profiler interface give neither ranks nor nodes: both are 0.
    sizes = {name: begin.number(name, zero_is_none=True) for name in ("ranks", "nodes")}
    times = {"begin_ns": begin.time(), "end_ns": end.time()}
    return {"id": ids, "name": begin.text("name"), **numbers, **sizes, **times}


def _operations(of: ProcessRecords) -> Columns:
    ids, begin, end = _paired(of, "operation", "operation_end")
    names = ("sequence", "count", "channels", "tag")
    columns = {"id": ids, **{name: begin.number(name) for name in names}}
    columns["comm"] = begin.number("communicator", zero_is_none=True)
    columns |= {n: begin.text(n) for n in ("function", "datatype", "algorithm", "protocol")}
    columns["kind"] = begin.words("kind", KINDS)
    root = begin.number("root")
    columns["root"] = np.ma.masked_where(np.ma.filled(root, -1) == -1, root)
    columns["captured"] = begin.flag("captured")
    columns["called_ns"] = begin.time("called_ns", True)
    known, inverse = np.unique(columns["datatype"].astype(str), return_inverse=True)
    sizes = np.array([ELEMENT_BYTES.get(one, 0) for one in known.tolist()] or [0], np.uint64)
    size = sizes[inverse] if ids.size else np.empty(0, np.uint64)
    columns["bytes"] = np.ma.masked_where(size == 0, columns["count"].astype(np.uint64) * size)
    return columns | {"begin_ns": begin.time(), "end_ns": end.time()}


def _channels(of: ProcessRecords) -> Columns:
    ids, begin, end = _paired(of, "channel", "channel_end")
    columns = {"id": ids, "comm": begin.number("communicator", zero_is_none=True)}
    columns["operation"] = begin.number("operation", zero_is_none=True)
    columns |= {name: begin.number(name) for name in ("channel", "peer", "chunk_bytes")}
    columns |= {"sends": begin.flag("sends"), "steps_planned": begin.number("steps")}
    names = ("bytes", "gpu_wait_ns", "peer_wait_ns", "network_wait_ns", "steps", "messages")
    columns |= {name: end.number(name) for name in names}
    return columns | {"begin_ns": begin.time(), "end_ns": end.time()}


def _kernels(of: ProcessRecords) -> Columns:
    found = _Reader(of, "kernel")
    columns = {"id": found.number("id"), "operation": found.number("operation", zero_is_none=True)}
    columns |= {"channel": found.number("channel"), "time_ns": found.time()}
    return columns | {n: found.number(n, True) for n in ("gpu_start_ns", "gpu_stop_ns")}


def _connections(of: ProcessRecords) -> Columns:
    ids, begin, end = _paired(of, "connection", "connection_end")
    columns = {"id": ids, **{name: begin.number(name) for name in ("pair", "flows", "paths")}}
    columns |= {"peer": begin.text("peer"), "datapath": begin.text("datapath")}
    times = {"begin_ns": begin.time(), "end_ns": end.time()}
    return columns | times | {"status": end.number("status")}


def _messages(of: ProcessRecords) -> Columns:
    found = _Reader(of, "message")
    columns = {name: found.number(name) for name in ("connection", "message", "bytes", "status")}
    columns |= {"sends": found.flag("sends"), "channel_id": found.number("channel", True)}
    return columns | {"posted_ns": found.time("posted_ns"), "end_ns": found.time()}


def _stripes(of: ProcessRecords) -> Columns:
    found = _Reader(of, "stripe")
    names = ("connection", "message", "engine", "bytes", "segments", "resent", "status")
    shares = (*(f"path_{at}" for at in range(PATHS_NAMED)), "path_others")
    columns = {name: found.number(name) for name in (*names, *shares)}
    columns |= {name: found.time(name, True) for name in ("first_ns", "last_ns")}
    times = {"posted_ns": found.time("posted_ns"), "end_ns": found.time()}
    return columns | times | {"sends": found.flag("sends")}


def _paths(of: ProcessRecords) -> Columns:
    found = _Reader(of, "path")
    names = ("engine", "path", "bytes_sent", "segments_sent", "segments_lost", "rtt_ns")
    columns = {name: found.number(name) for name in names}
    columns |= {"peer": found.text("peer"), "usable": found.flag("usable")}
    return columns | {"time_ns": found.time()}


def _events(of: ProcessRecords) -> Columns:
    found = _Reader(of, "event")
    columns = {name: found.number(name) for name in ("path", "value", "status")}
    columns |= {"what": found.text("what"), "peer": found.text("peer"), "time_ns": found.time()}
    return columns | {"connection": found.number("connection", True)}


# Table -> the function that makes its columns, except `process`.
GATHERED: Mapping[str, Callable[[ProcessRecords], Columns]] = {
    "comms": _comms,
    "operations": _operations,
    "channels": _channels,
    "kernels": _kernels,
    "connections": _connections,
    "messages": _messages,
    "stripes": _stripes,
    "paths": _paths,
    "events": _events,
}
