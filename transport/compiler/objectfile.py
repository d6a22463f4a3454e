"""Reads the undefined and defined global symbols of an ELF object."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SYMTAB = 2
_DYNSYM = 11


@dataclass(frozen=True)
class Symbols:
    """Names of the undefined and defined global symbols of an ELF object."""

    undefined: frozenset[str]
    defined: frozenset[str]


def symbols(image: bytes, dynamic: bool = False) -> Symbols:
    """The global symbols of a 64-bit little-endian ELF file; `dynamic`: of its dynamic table."""
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (table_at,) = struct.unpack_from("<Q", image, 40)
    entry_bytes, count = struct.unpack_from("<HH", image, 58)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", image, table_at + i * entry_bytes) for i in range(count)
    ]
    undefined: set[str] = set()
    defined: set[str] = set()
    for section in sections:
        if section[1] != (_DYNSYM if dynamic else _SYMTAB):
            continue
        offset, size, strings_at = section[4], section[5], sections[section[6]][4]
        for at in range(offset, offset + size, 24):
            name_at, info, _other, where = struct.unpack_from("<IBBH", image, at)
            start = strings_at + name_at
            name = image[start : image.index(b"\0", start)].decode()
            if name and info >> 4:  # binding is global or weak, not local
                (defined if where else undefined).add(name)
    return Symbols(frozenset(undefined), frozenset(defined))
