"""Tables of columns: joining, choosing rows, and packing them into bytes that are safe to read."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.ground.units import binary_text, bytes_text

Array = NDArray[Any]
Table = dict[str, Array]
MAGIC = b"weftcols"
HEAD = struct.Struct("<8sQQQ")  # magic, size of JSON, size after the head, CRC-32 of all after it
KIND = re.compile(r"<[iuf]8|<[iuf]4|<[iu]2|\|[iu]1|\|b1", re.ASCII)  # types of columns
TEXT_BYTES_MAX = 16 << 20
NAME_BYTES_MAX = 200  # at most this many characters of a text in a column are kept


class ColumnsError(Exception):
    """The file is damaged, truncated or no file of columns; the message says which."""


def rows_of(table: Mapping[str, Array]) -> int:
    return len(next(iter(table.values()))) if table else 0


def chosen(table: Mapping[str, Array], rows: Array) -> Table:
    """The table with the chosen rows only. rows: a mask, or indexes."""
    return {name: column[rows] for name, column in table.items()}


def joined(*tables: Mapping[str, Array]) -> Table:
    """The rows of several tables with the same columns."""
    full = [one for one in tables if rows_of(one)]
    if not full:
        return dict(tables[0]) if tables else {}
    return {name: np.concatenate([one[name] for one in full]) for name in full[0]}


def plain(found: Mapping[str, Any]) -> Table:
    """Columns without masks: -1 stands for NULL; texts are arrays of objects."""
    return {name: _filled(column) for name, column in found.items()}


def _filled(column: Any) -> Array:
    if not np.ma.isMaskedArray(column):
        return np.asarray(column)
    signed = column.astype(np.int64) if column.dtype.kind in "ub" else column
    filled: Array = np.ma.filled(signed, -1)
    return filled


def pack(meta: Mapping[str, Any], tables: Mapping[str, Table]) -> bytes:
    """The tables as a file: its head, a text in JSON that lists the columns, and the columns.

    A column of texts is stored as indexes into a list of texts in the JSON.
    """
    texts: dict[str, list[str]] = {}
    parts: list[bytes] = []
    listed: list[tuple[str, str, int]] = []
    for table, columns in tables.items():
        for name, column in columns.items():
            key = f"{table}.{name}"
            if column.dtype.kind in "OUS":
                known: dict[str, int] = {}
                codes = [known.setdefault(str(one)[:NAME_BYTES_MAX], len(known)) for one in column]
                texts[key] = list(known)
                column = np.array(codes, np.int32)
            listed.append((key, column.dtype.str, len(column)))
            parts.append(column.tobytes())
    text = json.dumps({**meta, "texts": texts, "columns": listed}).encode()
    body = b"".join([text, *parts])
    return HEAD.pack(MAGIC, len(text), len(body), zlib.crc32(body)) + body


def too_large(size_bytes: int, bytes_max: int) -> str:
    """The message for a file whose size_bytes exceed bytes_max."""
    return f"the file has {bytes_text(size_bytes)}, and at most {binary_text(bytes_max)} are read"


def unpack(
    data: bytes, bytes_max: int, wanted: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[dict[str, Any], dict[str, Table]]:
    """The inverse of pack(). ColumnsError if the file is damaged, or larger than bytes_max.

    wanted: table -> its columns; others are passed over. None: all are returned.
    """
    if len(data) > bytes_max:
        raise ColumnsError(too_large(len(data), bytes_max))
    if len(data) < HEAD.size:
        raise ColumnsError("the file is damaged or incomplete")
    magic, text_bytes, body_bytes, check = HEAD.unpack_from(data)
    if magic != MAGIC:
        raise ColumnsError("the file was not written by weft diagnose")
    body = memoryview(data)[HEAD.size :]
    if len(body) != body_bytes or text_bytes > body_bytes or zlib.crc32(body) != check:
        raise ColumnsError("the file is damaged or incomplete")
    try:
        # Short JSON texts can become large objects in memory.
        if text_bytes > TEXT_BYTES_MAX:
            raise ColumnsError(f"the file's head has more than {binary_text(TEXT_BYTES_MAX)}")
        meta = json.loads(bytes(body[:text_bytes]))
        arrays, at = {}, HEAD.size + text_bytes
        for key, kind, count in meta["columns"]:
            # NumPy partly evaluates names of types as Python, so only plain types are accepted.
            if not KIND.fullmatch(kind):
                raise ColumnsError(f"column {key[:NAME_BYTES_MAX]} does not hold numbers")
            dtype = np.dtype(kind)
            column = np.frombuffer(data, dtype, count, at)
            at += column.nbytes
            table, _, name = key.partition(".")
            if wanted is None or name in wanted.get(table, ()):
                arrays[key] = column
        return meta, _tables(arrays, meta["texts"])
    # Even with a correct checksum, the JSON may have another structure.
    except (
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ColumnsError(f"the file is damaged or incomplete ({type(error).__name__})") from None


def _tables(arrays: Mapping[str, Array], texts: Mapping[str, list[str]]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for key, column in arrays.items():
        table, _, name = key.partition(".")
        if key in texts:
            for one in texts[key]:
                one.encode()  # raises if it is half of a surrogate pair, or no text
            names = np.array([*texts[key], ""], object)[:-1]
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < len(names):
                raise ColumnsError(f"column {key} refers to a text that the file lacks")
            column = names[column]
        tables.setdefault(table, {})[name] = column
    for table, columns in tables.items():
        if len({len(column) for column in columns.values()}) > 1:
            raise ColumnsError(f"the columns of {table} differ in length")
    return tables


def read_file(path: Path, bytes_max: int) -> bytes:
    """The bytes of a regular file, bytes_max + 1 at most; OSError for a pipe and the like."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        return file.read(bytes_max + 1)
