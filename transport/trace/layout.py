"""Decodes the header of a trace file: its texts, and the layout of each kind of record."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transport.errors import InvalidArgumentError
from transport.native import crc32c

MAGIC = b"weftrace"
VERSION = 1
HEADER = struct.Struct("<8sIIIIQqqII")
CRC_OFFSET = HEADER.size - 8
CLOCK_MAX = 3 * 10**18  # largest difference of CLOCK_REALTIME and CLOCK_MONOTONIC, ns
HEAD_BYTES = 16  # size of the head of every record: kind, size, id, time
HEADER_BYTES_MAX = 1 << 20
TYPES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i32": "<i4", "i64": "<i8"}
HEAD_NAMES = ("id", "time_ns")  # fields in the head, which every record has


class TraceError(InvalidArgumentError):
    """The file is not a trace, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The layout of one kind of record.

    dtype: a numpy type of the whole record, with the fields `id`, `time_ns`, and those of the
    schema.
    texts: the fields that hold the id of a text.
    """

    name: str
    dtype: np.dtype[Any]
    texts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file.

    version: version of the file's layout; this reader supports VERSION.
    number: index of the file in the process's trace, from 0.
    realtime_ahead_ns: add it to a record's time to get nanoseconds since 1970.
    identity: the process's host and pid, and the variables of its launcher, such as RANK.
    kinds: number of a kind of record -> its layout.
    """

    bytes: int
    version: int
    number: int
    realtime_ahead_ns: int
    identity: Mapping[str, str]
    kinds: Mapping[int, Kind]


def read_header(data: bytes) -> Header:
    """Decodes the start of a file; TraceError if it is damaged or no trace."""
    if len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise TraceError("not a trace")
    fields = HEADER.unpack_from(data)
    _, version, size, schema_bytes, identity_bytes, number, monotonic, real, crc, _ = fields
    schema_end = HEADER.size + schema_bytes
    texts_end = schema_end + identity_bytes
    sound = texts_end <= size <= min(len(data), HEADER_BYTES_MAX) and size % 8 == 0
    if sound:
        zeroed = data[:CRC_OFFSET] + b"\0\0\0\0" + data[CRC_OFFSET + 4 : size]
        sound = crc32c(zeroed) == crc
    if not sound and version != VERSION:
        raise TraceError(f"the file has version {version}; this reader supports version {VERSION}")
    if not sound:
        raise TraceError("damaged header: its sizes or its checksum are wrong")
    if not -CLOCK_MAX < real - monotonic < CLOCK_MAX:
        raise TraceError("damaged header: its times are impossible")
    kinds = read_schema(data[HEADER.size : schema_end])
    identity = _identity(data[schema_end:texts_end])
    return Header(size, version, number, real - monotonic, identity, kinds)


def read_schema(text: bytes) -> dict[int, Kind]:
    """Number of each kind of record -> its layout; TraceError if a line cannot be parsed."""
    kinds: dict[int, Kind] = {}
    lines = [line.split(" ") for line in text.decode("ascii", "replace").splitlines()]
    starts = [at for at, words in enumerate(lines) if words[0] == "record"]
    if lines and starts[:1] != [0]:
        raise TraceError(f"damaged schema: it begins with {' '.join(lines[0])!r}")
    for at, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        try:
            _, number, name, size = lines[at]
            kinds[int(number)] = _kind(name, int(size), lines[at + 1 : end])
        except (ValueError, KeyError, TypeError):
            what = " ".join(lines[at])
            raise TraceError(f"damaged schema: the record {what!r} cannot be parsed") from None
    return kinds


def _kind(name: str, size: int, fields: list[list[str]]) -> Kind:
    """The layout of a record from its schema lines; ValueError or KeyError if one is wrong."""
    names, formats, offsets = list(HEAD_NAMES), ["<u4", "<i8"], [4, 8]
    texts = set()
    for word, field, type_, unit, offset in fields:
        end = int(offset) + np.dtype(TYPES[type_]).itemsize
        if word != "field" or int(offset) < HEAD_BYTES or end > size or field in names:
            raise ValueError
        names.append(field)
        formats.append(TYPES[type_])
        offsets.append(int(offset))
        if unit == "text":
            texts.add(field)
    if size % 8 != 0 or not HEAD_BYTES <= size <= 0xFFFF or not all(names):
        raise ValueError
    layout = {"names": names, "formats": formats, "offsets": offsets, "itemsize": size}
    return Kind(name, np.dtype(layout), frozenset(texts))  # type: ignore[call-overload]


def _identity(text: bytes) -> dict[str, str]:
    lines = text.decode("utf-8", "replace").splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}
