"""Encodes fields of Protocol Buffers messages."""

from __future__ import annotations

import struct

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
