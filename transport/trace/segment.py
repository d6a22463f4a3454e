"""Reads trace files; each process writes several, one after the other.

The file may still be written, may be incomplete because the process was killed, or may be damaged:
reading ends before the first incomplete or damaged block, and `damage` says why. docs/TRACING.md
describes the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.native import trace_records
from transport.trace.layout import HEAD_BYTES, HEAD_NAMES, Header, Kind, TraceError, read_header

FILE_BYTES_MAX = 1 << 30
SIZE_IS_ODD = "records have another size than the schema says, and were left out"

Rows = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its kind, the id of the described object, its time (CLOCK_MONOTONIC), its fields.

    Fields that name a text have the text as value, "" if it is unknown.
    """

    kind: str
    id: int
    time_ns: int
    fields: Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class Segment:
    """The contents of one file.

    identity: the process's host and pid, and the variables of its launcher, such as RANK.
    number: index of the file in the process's trace, from 0.
    realtime_ahead_ns: add it to a record's time to get nanoseconds since 1970.
    dropped: number of records that the process had dropped when it wrote the last block.
    damage: why reading ended early; "": the file was read to its end.
    ended: whether the trace ends with this file, as its process closed it; None: it cannot tell,
    because an older version of weft wrote it.
    """

    identity: Mapping[str, str]
    number: int
    realtime_ahead_ns: int
    records: tuple[Record, ...]
    dropped: int
    damage: str
    ended: bool | None


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """The contents of one file as arrays.

    rows: name of a kind -> its records in the order of the file, as a structured array.
    places: name of a kind -> the index of each of these records among all records of the file.
    texts: id of a text -> the text.
    """

    header: Header
    bytes: int
    rows: Mapping[str, Rows]
    places: Mapping[str, NDArray[np.int64]]
    texts: Mapping[int, str]
    dropped: int
    damage: str
    ended: bool | None
    closed_ns: int | None  # time of the end record, on the process's clock; None: there is none


def read_rows(path: Path | str) -> SegmentRows:
    """Reads one file into arrays. TraceError if it is not a trace."""
    where = Path(path)
    try:
        if where.stat().st_size > FILE_BYTES_MAX:
            raise TraceError(f"{where} has more than {FILE_BYTES_MAX:,} bytes: it is no trace file")
        data = where.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"cannot read {where}: {error}") from None
    try:
        return decode_rows(data)
    except TraceError as error:
        raise TraceError(f"{where}: {error}") from None


def read_segment(path: Path | str) -> Segment:
    """Reads one file. TraceError if it is not a trace; `damage` describes a damaged end."""
    found = read_rows(path)
    kinds = {kind.name: kind for kind in found.header.kinds.values()}
    placed: list[tuple[int, Record]] = []
    for name, rows in found.rows.items():
        made = _records(kinds[name], rows, found.texts)
        placed += zip(found.places[name].tolist(), made, strict=True)
    placed.sort(key=lambda one: one[0])
    header = found.header
    records = tuple(record for _, record in placed)
    return Segment(
        header.identity,
        header.number,
        header.realtime_ahead_ns,
        records,
        found.dropped,
        found.damage,
        found.ended,
    )


def decode_rows(data: bytes) -> SegmentRows:
    """Decodes the header of a file and whole blocks of it; TraceError if the header is damaged."""
    header = read_header(data)
    packed, dropped, damage = trace_records(data, header.bytes)
    offsets = np.frombuffer(packed, np.uint64).astype(np.int64)
    heads = np.frombuffer(data, "<u2", len(data) // 8 * 4).reshape(-1, 4)[offsets // 8]
    words = np.frombuffer(data, "<u8", len(data) // 8)
    rows: dict[str, Rows] = {}
    places: dict[str, NDArray[np.int64]] = {}
    texts: dict[int, str] = {}
    odd = 0
    ended = closed_ns = None
    for number, kind in header.kinds.items():
        (found,) = np.nonzero(heads[:, 0] == number)
        if kind.name == "text":
            texts.update(_texts(data, offsets[found], heads[found, 1]))
            continue
        if kind.name == "end":
            ended = found.size > 0 and int(found[-1]) == len(offsets) - 1 and not damage
            if ended:
                closed_ns = int(words[offsets[found[-1]] // 8 + 1].astype(np.int64))
            continue
        size = kind.dtype.itemsize
        fits = found[heads[found, 1] == size]
        odd += found.size - fits.size
        if fits.size:
            index = (offsets[fits] // 8)[:, None] + np.arange(size // 8)
            rows[kind.name] = words[index].view(kind.dtype)[:, 0]
            places[kind.name] = fits.astype(np.int64)
    if odd:
        damage = "; ".join(filter(None, (damage, f"{odd} {SIZE_IS_ODD}")))
    return SegmentRows(header, len(data), rows, places, texts, dropped, damage, ended, closed_ns)


def _texts(data: bytes, offsets: NDArray[Any], sizes: NDArray[Any]) -> dict[int, str]:
    found = {}
    for at, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
        body = data[at + HEAD_BYTES : at + size].rstrip(b"\0")
        found[int.from_bytes(data[at + 4 : at + 8], "little")] = body.decode("utf-8", "replace")
    return found


def _records(kind: Kind, rows: Rows, texts: Mapping[int, str]) -> list[Record]:
    names = [name for name in kind.dtype.names or () if name not in HEAD_NAMES]
    columns = {
        name: [texts.get(value, "") for value in rows[name].tolist()]
        if name in kind.texts
        else rows[name].tolist()
        for name in names
    }
    ids, times = rows["id"].tolist(), rows["time_ns"].tolist()
    return [
        Record(kind.name, ids[at], times[at], {name: columns[name][at] for name in names})
        for at in range(len(ids))
    ]
