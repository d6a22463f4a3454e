"""Reads the files of a trace, of which a process writes one after the other.

A process may be writing the file, may have been killed, and the file may be damaged: reading ends
before the first block that is not whole, and `damage` says why. docs/TRACING.md describes the
format.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from transport.errors import InvalidArgumentError
from transport.native import crc32c

MAGIC = b"weftrace"
VERSION = 1
HEADER = struct.Struct("<8sIIIIQqqII")
BLOCK = struct.Struct("<IIIIQQ")
BLOCK_MAGIC = 0x6B6C6277
HEAD = struct.Struct("<HHIq")
TYPES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}
FILE_BYTES_MAX = 1 << 30
HEADER_BYTES_MAX = 1 << 20


class TraceError(InvalidArgumentError):
    """The file is not a trace, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its kind, the id of what it describes, its time (CLOCK_MONOTONIC), its fields.

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
    dropped: records that the process had dropped when the last block was written.
    damage: why reading ended early; "": the file was read to its end.
    """

    identity: Mapping[str, str]
    number: int
    realtime_ahead_ns: int
    records: tuple[Record, ...]
    dropped: int
    damage: str


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    unit: str
    format: struct.Struct
    offset: int


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    bytes: int
    fields: list[_Field]


def read_segment(path: Path | str) -> Segment:
    """Reads one file. TraceError if it is not a trace; `damage` describes a damaged end."""
    where = Path(path)
    try:
        if where.stat().st_size > FILE_BYTES_MAX:
            raise TraceError(f"{where}: too large for a file of a trace")
        data = where.read_bytes()
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot read {where}: {error}") from None
    try:
        return _decode(data)
    except TraceError as error:
        raise TraceError(f"{where}: {error}") from None


def _decode(data: bytes) -> Segment:
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise TraceError("not a trace")
    fields = HEADER.unpack_from(data)
    _, version, header_bytes, schema_bytes, identity_bytes, number, monotonic, real, crc, _ = fields
    if version != VERSION:
        raise TraceError(f"its version is {version}; this reader supports version {VERSION}")
    texts_end = HEADER.size + schema_bytes + identity_bytes
    if not texts_end <= header_bytes <= min(len(data), HEADER_BYTES_MAX):
        raise TraceError("damaged header: its sizes are inconsistent")
    if _checksum(data[:header_bytes], HEADER.size - 8) != crc:
        raise TraceError("damaged header: its checksum is wrong")
    kinds = _schema(data[HEADER.size : HEADER.size + schema_bytes])
    identity = _identity(data[HEADER.size + schema_bytes : texts_end])
    raw, dropped, damage = _blocks(data, header_bytes)
    texts: dict[int, str] = {}
    for kind, head, body in raw:
        if kinds.get(kind) is not None and kinds[kind].name == "text":
            texts[head[2]] = body.rstrip(b"\0").decode("utf-8", "replace")
    records = [_record(kinds[kind], head, body, texts) for kind, head, body in raw if kind in kinds]
    kept = tuple(record for record in records if record.kind != "text")
    return Segment(identity, number, real - monotonic, kept, dropped, damage)


def _checksum(data: bytes, at: int) -> int:
    """CRC-32C of bytes in which the checksum itself, at `at`, counts as 0."""
    return crc32c(data[:at] + b"\0\0\0\0" + data[at + 4 :])


def _schema(text: bytes) -> dict[int, _Kind]:
    kinds: dict[int, _Kind] = {}
    kind: _Kind | None = None
    for line in text.decode("ascii", "replace").splitlines():
        words = line.split(" ")
        try:
            if words[0] == "record":
                _, number, name, size = words
                kind = kinds[int(number)] = _Kind(name, int(size), [])
            elif words[0] == "field" and kind is not None:
                _, name, type_, unit, offset = words
                format_ = struct.Struct("<" + TYPES[type_])
                if not HEAD.size <= int(offset) <= kind.bytes - format_.size:
                    raise ValueError
                kind.fields.append(_Field(name, unit, format_, int(offset)))
            else:
                raise ValueError
        except (ValueError, KeyError):
            raise TraceError(f"damaged schema: the line {line!r} cannot be parsed") from None
    return kinds


def _identity(text: bytes) -> dict[str, str]:
    lines = text.decode("utf-8", "replace").splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


_Raw = tuple[int, tuple[int, int, int, int], bytes]


def _blocks(data: bytes, at: int) -> tuple[list[_Raw], int, str]:
    """The records of all whole blocks, the records dropped so far, and why reading ended early."""
    records: list[_Raw] = []
    dropped = 0
    while at < len(data):
        if at + BLOCK.size > len(data):
            return records, dropped, "the last block is cut off"
        magic, size, _, crc, _, lost = BLOCK.unpack_from(data, at)
        end = at + BLOCK.size + size
        if magic != BLOCK_MAGIC:
            return records, dropped, f"no block begins at byte {at}"
        if end > len(data):
            return records, dropped, "the last block is cut off"
        if _checksum(data[at:end], 12) != crc:
            return records, dropped, f"the checksum of the block at byte {at} is wrong"
        at += BLOCK.size
        while at < end:
            head = HEAD.unpack_from(data, at) if at + HEAD.size <= end else (0, 0, 0, 0)
            if head[1] < HEAD.size or at + head[1] > end:
                return records, dropped, f"the record at byte {at} has a wrong size"
            records.append((head[0], head, data[at + HEAD.size : at + head[1]]))
            at += head[1]
        dropped = lost
    return records, dropped, ""


def _record(
    kind: _Kind, head: tuple[int, int, int, int], body: bytes, texts: dict[int, str]
) -> Record:
    values: dict[str, int | str] = {}
    for field in kind.fields:
        at = field.offset - HEAD.size
        if at + field.format.size > len(body):
            continue  # written by a version whose record is shorter
        (number,) = field.format.unpack_from(body, at)
        values[field.name] = texts.get(number, "") if field.unit == "text" else number
    return Record(kind.name, head[2], head[3], values)
