"""Writes a trace file at once, from arrays of records."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.ground import created
from transport.native import crc32c, trace_schema
from transport.trace.layout import CRC_OFFSET, HEADER, MAGIC, VERSION, Kind, read_schema

BLOCK = struct.Struct("<IIIIQQ")
BLOCK_MAGIC = 0x6B6C6277
BLOCK_CRC_OFFSET = 12
BLOCK_BYTES_MAX = 1 << 20
HEAD = struct.Struct("<HHIq")
TEXT_KIND = 1
# The fields of records that are times at which the process did something.
MOMENTS = {"time_ns", "called_ns", "posted_ns", "first_ns", "last_ns"}


class TraceFile:
    """The trace of one process: records are added to it, and written at the end."""

    def __init__(
        self,
        identity: Mapping[str, str],
        realtime_ahead_ns: int = 0,
        *,
        ended_ns: int = 0,
        until_ns: int | None = None,
        pauses: Sequence[tuple[int, int]] = (),
    ) -> None:
        """identity: host, pid and variables of the process. Times plus realtime_ahead_ns are
        nanoseconds since 1970. ended_ns: when the process closed the trace. until_ns: when the
        process stopped; the file has no record of a later time, and no end. pauses: begin and
        end of each time in which the process did not run; records of this time move to its end."""
        kinds = read_schema(trace_schema().encode())
        self._kinds = {kind.name: (number, kind) for number, kind in kinds.items()}
        self._identity = "".join(f"{name} {value}\n" for name, value in identity.items())
        self._ahead_ns = realtime_ahead_ns
        self._texts: dict[str, int] = {}
        self._blocks: list[bytes] = []
        self._ids = 0
        self._until_ns = until_ns
        self._pauses = sorted(pauses)
        self._ended_ns = ended_ns

    def ids(self, count: int) -> NDArray[np.uint32]:
        """New ids for records, unique in the file."""
        self._ids += count
        return np.arange(self._ids - count + 1, self._ids + 1, dtype=np.uint32)

    def text(self, text: str) -> int:
        """The id of a text, for fields that name one; "" has the id 0."""
        if text == "":
            return 0
        if text not in self._texts:
            self._texts[text] = len(self._texts) + 1
        return self._texts[text]

    def put(self, name: str, ids: NDArray[Any], time_ns: NDArray[Any], /, **fields: Any) -> None:
        """Adds records of one kind; each field is a number or an array, and 0 if not given."""
        number, kind = self._kinds[name]
        whole = _with_head(kind)
        made = np.zeros(len(ids), whole)
        made["_kind"], made["_size"] = number, whole.itemsize
        made["id"], made["time_ns"] = ids, time_ns
        for field, values in fields.items():
            made[field] = values
        for from_ns, to_ns in self._pauses:
            for field in MOMENTS & set(made.dtype.names or ()):
                paused = (made[field] >= from_ns) & (made[field] < to_ns)
                made[field][paused] = to_ns
        if self._until_ns is not None:
            made = made[made["time_ns"] <= self._until_ns]
        step = max(BLOCK_BYTES_MAX // whole.itemsize, 1)
        self._blocks += [made[at : at + step].tobytes() for at in range(0, len(made), step)]

    def write(self, path: Path) -> None:
        """Writes the file; OSError, which names the file, if that fails."""
        schema, identity = trace_schema().encode(), self._identity.encode()
        size = (HEADER.size + len(schema) + len(identity) + 7) // 8 * 8
        sizes = (VERSION, size, len(schema), len(identity), 0)
        head = HEADER.pack(MAGIC, *sizes, 0, self._ahead_ns, 0, 0) + schema + identity
        try:
            with created.open_output(path) as file:
                file.write(_sealed(head.ljust(size, b"\0"), CRC_OFFSET))
                blocks = [self._text_records(), *self._blocks]
                if self._until_ns is None:
                    blocks.append(self._end_record())
                for number, records in enumerate(blocks):
                    start = BLOCK.pack(BLOCK_MAGIC, len(records), 0, 0, number, 0)
                    file.write(_sealed(start + records, BLOCK_CRC_OFFSET))
        except OSError as error:
            error.filename = str(path)
            raise

    def _end_record(self) -> bytes:
        """The last record, which says that nothing is missing after it."""
        number, _ = self._kinds["end"]
        return HEAD.pack(number, HEAD.size, self._ids + 1, self._ended_ns)

    def _text_records(self) -> bytes:
        found = b""
        for text, number in self._texts.items():
            body = text.encode()
            body = body.ljust((len(body) + 7) // 8 * 8, b"\0")
            found += HEAD.pack(TEXT_KIND, HEAD.size + len(body), number, 0) + body
        return found


def _with_head(kind: Kind) -> np.dtype[Any]:
    """The layout of a record including its kind and size, which come before its id."""
    fields: Mapping[str, Any] = kind.dtype.fields or {}
    names = ["_kind", "_size", *fields]
    formats = ["<u2", "<u2", *(value[0] for value in fields.values())]
    offsets = [0, 2, *(value[1] for value in fields.values())]
    return np.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": kind.dtype.itemsize}
    )


def _sealed(data: bytes, at: int) -> bytes:
    """The bytes with their CRC-32C written at offset `at`, where `data` must have zeros."""
    return data[:at] + struct.pack("<I", crc32c(data)) + data[at + 4 :]
