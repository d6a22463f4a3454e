"""Encodes and decodes fields of Protocol Buffers messages."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")
_ONE_BYTE = [bytes([value]) for value in range(128)]
MASK = (1 << 64) - 1


def varint(value: int) -> bytes:
    """An unsigned number of at most 64 bits; a negative one as its two's complement."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    value &= MASK
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A field of an integer type other than sint and fixed, of an enum, or bool."""
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + _FIXED64.pack(value & MASK)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + _DOUBLE.pack(value)


def data(field: int, value: bytes) -> bytes:
    """A field of the type bytes, or a message that is encoded already."""
    return varint(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode("utf-8", "replace"))


class WireError(ValueError):
    """The bytes are no message."""


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The unsigned number at a place, and the place after it. WireError if it does not end."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & MASK, at
        shift += 7
    raise WireError("a number does not end")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field: bytes of texts, messages and fixed numbers, else an int."""
    at = 0
    while at < len(message):
        key, at = read_varint(message, at)
        kind = key & 7
        if kind == 0:
            number_, at = read_varint(message, at)
            yield key >> 3, number_
            continue
        if kind == 2:
            size, at = read_varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise WireError(f"a field has the wire type {kind}")
        if size > len(message) - at:
            raise WireError("a field is longer than its message")
        yield key >> 3, message[at : at + size]
        at += size


def signed(value: int) -> int:
    """A number of a signed type other than sint, from its unsigned form."""
    return value - (1 << 64) if value >> 63 else value
