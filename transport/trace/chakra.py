"""Writes operations as execution traces of Chakra (version 1.0.0): one file for each rank."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from transport.ground import created
from transport.ground.collectives import PER_RANK
from transport.trace.operation_times import OPERATION_TIMES
from transport.trace.places import Places, places_of
from transport.trace.protobuf import data, number, text, varint
from transport.trace.store import Store, new_folder

VERSION = "1.0.0"
SEND_NODE, RECV_NODE, COLLECTIVE_NODE = 5, 6, 7
COLLECTIVES = {
    "AllReduce": 0,
    "Reduce": 1,
    "AllGather": 2,
    "Gather": 3,
    "Scatter": 4,
    "Broadcast": 5,
    "AlltoAll": 6,
    "AllToAll": 6,
    "ReduceScatter": 7,
    "Barrier": 9,
}
# Each operation with the time of its channels in the network, else of its kernels, else of the
# call that enqueued it.
_OPERATIONS = f"""
WITH {OPERATION_TIMES}
SELECT p.spot, o.id, o.process, o.comm, o.function, o.kind, o.bytes, o.root, o.tag, m.comm_id,
  m.name, m.ranks, s.spot AS peer,
  CASE WHEN n.end_ns > n.begin_ns THEN n.begin_ns
    WHEN k.end_ns > k.begin_ns THEN k.begin_ns ELSE o.begin_ns END AS begin_ns,
  CASE WHEN n.end_ns > n.begin_ns THEN n.end_ns
    WHEN k.end_ns > k.begin_ns THEN k.end_ns ELSE o.end_ns END AS end_ns
FROM operations o JOIN place p ON p.process = o.process
LEFT JOIN comms m ON m.process = o.process AND m.id = o.comm
LEFT JOIN network n ON n.process = o.process AND n.operation = o.id
LEFT JOIN kernel k ON k.process = o.process AND k.operation = o.id
LEFT JOIN member s ON s.comm_id = m.comm_id AND s.rank = o.root AND o.kind = 'p2p'
ORDER BY p.spot, o.begin_ns, o.process, o.id
"""


@dataclass(slots=True)
class Exported:
    """Numbers of files and nodes written. left_out: kind of operation -> how many were left out."""

    files: int = 0
    nodes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def write_chakra(store: Store, folder: Path) -> Exported:
    """Writes the files weft.RANK.et to a new or empty folder."""
    places = places_of(store, None, False)
    places.write(store)
    found = Exported()
    with new_folder(folder):
        for spot in sorted(set(places.of_process.values())):
            with created.open_output(folder / f"weft.{_number(places, spot)}.et") as file:
                _write_message(file, text(1, VERSION))
            found.files += 1
        with ExitStack() as stack:
            writer = _Writer(folder, places, found, stack)
            for rows in store.batches(_OPERATIONS):
                for row in rows:
                    writer.add(row)
    return found


class _Writer:
    """Appends nodes to the file of one rank after the other."""

    def __init__(self, folder: Path, places: Places, found: Exported, stack: ExitStack) -> None:
        self._folder = folder
        self._places = places
        self._found = found
        self._stack = stack
        self._spot = -1
        self._file: BinaryIO | None = None
        self._nodes = 0
        # Process and communicator -> the node of its last operation.
        self._last: dict[tuple[Any, Any], int] = {}

    def add(self, row: dict[str, Any]) -> None:
        function = row["function"] or "unknown"
        p2p = {"Send": SEND_NODE, "Recv": RECV_NODE}.get(function)
        if p2p is None and function not in COLLECTIVES:
            self._found.left_out[function] += 1
            return
        if p2p is not None and row["peer"] is None:
            self._found.left_out[f"{function} whose peer has no rank"] += 1
            return
        file = self._opened(row["spot"])
        self._nodes += 1
        body = number(1, self._nodes) + text(2, function)
        body += number(3, COLLECTIVE_NODE if p2p is None else p2p)
        key = (row["process"], row["comm"])
        if key in self._last:
            body += data(5, varint(self._last[key]))
        self._last[key] = self._nodes
        begin_ns, end_ns = row["begin_ns"], row["end_ns"]
        if begin_ns is not None and begin_ns > 0:
            body += number(6, begin_ns // 1000)
            body += number(7, _micros(end_ns - begin_ns) if end_ns is not None else 0)
        body += b"".join(data(10, one) for one in self._attributes(row, function, p2p))
        _write_message(file, body)
        self._found.nodes += 1

    def _attributes(self, row: dict[str, Any], function: str, p2p: int | None) -> list[bytes]:
        """AttributeProto messages: a name, and a value in the field of its type."""
        found = [text(1, "is_cpu_op") + number(27, False)]
        size = row["bytes"]
        if p2p is None:
            found.append(text(1, "comm_type") + number(9, COLLECTIVES[function]))
        else:
            own, peer = (_number(self._places, row[name]) for name in ("spot", "peer"))
            ends = (own, peer) if p2p == SEND_NODE else (peer, own)
            found += [
                text(1, name) + number(7, value)
                for name, value in zip(("comm_src", "comm_dst"), ends, strict=True)
            ]
            found.append(text(1, "comm_tag") + number(7, (row["tag"] or 0) & 0x7FFFFFFF))
        # The call states one rank's part of the input, so the input is `ranks` times as large.
        if size is not None and function in PER_RANK and function not in ("AllGather", "Gather"):
            size = size * row["ranks"] if row["ranks"] else None
        if size is not None and size < 1 << 63:
            found.append(text(1, "comm_size") + number(9, size))
        if row["comm_id"] is not None:
            found.append(text(1, "pg_name") + text(29, row["name"] or f"{row['comm_id']:016x}"))
        return found

    def _opened(self, spot: int) -> BinaryIO:
        if self._file is None or spot != self._spot:
            self._stack.close()
            path = self._folder / f"weft.{_number(self._places, spot)}.et"
            self._file = self._stack.enter_context(path.open("ab"))
            self._spot, self._nodes = spot, 0
            self._last.clear()
        return self._file


def _number(places: Places, spot: int) -> int:
    """The rank that a matrix row stands for, or the row's number if its label is no rank."""
    label = places.labels[spot]
    return int(label) if label.isdecimal() else spot


def _micros(ns: int) -> int:
    """Rounds to whole microseconds; a time above 0 becomes at least 1 us."""
    return 0 if ns <= 0 else max(1, (ns + 500) // 1000)


def _write_message(file: BinaryIO, body: bytes) -> None:
    file.write(varint(len(body)) + body)
