"""Writes trace files for tests, with the records that native/telemetry/trace_layout.h lists."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path

from transport.native import crc32c

LAYOUT = Path(__file__).resolve().parents[2] / "native" / "telemetry" / "trace_layout.h"
FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}
AHEAD_NS = 1_700_000_000_000_000_000  # CLOCK_REALTIME minus CLOCK_MONOTONIC of every host
STANDING = 0xFFFF_FFFF


def layouts() -> dict[str, tuple[int, list[tuple[str, str, str]]]]:
    """Name of a kind -> its number and the type, name and unit of its fields."""
    text = LAYOUT.read_text()
    numbers = re.findall(r"\bR\((\d+), (\w+), (\w+), (WEFT_TRACE_\w+)\)", text)
    found = {}
    for number, name, _, macro in numbers:
        body = re.search(rf"#define {macro}\(F\)((?:.*\\\n)*.*)", text)
        assert body is not None
        found[name] = int(number), re.findall(r"F\((\w+), (\w+), (\w+),", body[1])
    return found


LAYOUTS = layouts()


def schema() -> str:
    lines = []
    for name, (number, fields) in LAYOUTS.items():
        offset = 16
        described = []
        for type_, field_name, unit in fields:
            described.append(f"field {field_name} {type_} {unit} {offset}\n")
            offset += struct.calcsize(FORMATS[type_])
        lines += [f"record {number} {name} {offset}\n", *described]
    return "".join(lines)


def sealed(data: bytes, at: int) -> bytes:
    """The bytes with their CRC-32C written at offset `at`."""
    zeroed = data[:at] + bytes(4) + data[at + 4 :]
    return data[:at] + struct.pack("<I", crc32c(zeroed)) + data[at + 4 :]


def header(
    identity: str, number: int, *, text: str = "", version: int = 1, ahead_ns: int = AHEAD_NS
) -> bytes:
    texts = (text or schema()).encode() + identity.encode()
    size = (56 + len(texts) + 7) // 8 * 8
    schema_bytes = len(texts) - len(identity.encode())
    sizes = (version, size, schema_bytes, len(identity.encode()), number)
    start = struct.pack("<8sIIIIQqqII", b"weftrace", *sizes, 1000, 1000 + ahead_ns, 0, 0)
    return sealed((start + texts).ljust(size, b"\0"), 48)


def block(records: bytes, *, number: int = 0, dropped: int = 0, ring: int = 0) -> bytes:
    head = struct.pack("<IIIIQQ", 0x6B6C6277, len(records), ring, 0, number, dropped)
    return sealed(head + records, 12)


@dataclass
class Process:
    """One process that writes a trace. Times are on CLOCK_MONOTONIC of its host.

    ended: whether the last record of each file says that the trace has ended.
    """

    folder: Path
    host: str = "node0"
    pid: int = 100
    name: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    ahead_ns: int = AHEAD_NS
    ids: int = 0
    texts: dict[str, int] = field(default_factory=dict)
    standing: bytes = b""
    records: bytes = b""
    files: int = 0
    dropped: int = 0
    ended: bool = True

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def put(self, record: str, id_: int, time_ns: int, /, **values: int | str) -> int:
        """Adds a record and returns its id; fields that are not given are 0."""
        number, fields = LAYOUTS[record]
        body = b""
        for type_, name, unit in fields:
            value = values.pop(name, 0)
            if unit == "text" and isinstance(value, str):
                value = self.text(value) if value else 0
            body += struct.pack("<" + FORMATS[type_], value)
        assert not values, values
        data = struct.pack("<HHIq", number, 16 + len(body), id_, time_ns) + body
        self.records += data
        if record == "communicator":
            self.standing += data
        return id_

    def new(self, record: str, time_ns: int, /, **values: int | str) -> int:
        return self.put(record, self.next_id(), time_ns, **values)

    def text(self, text: str) -> int:
        if text not in self.texts:
            self.texts[text] = self.next_id()
            data = text.encode()
            data = data.ljust((len(data) + 7) // 8 * 8, b"\0")
            head = struct.pack("<HHIq", 1, 16 + len(data), self.texts[text], 0)
            self.standing += head + data
        return self.texts[text]

    def write(self, **options: int | str) -> Path:
        """Writes the records since the last call to the next file."""
        variables = {"host": self.host, "pid": str(self.pid), "start_ticks": "5", **self.variables}
        identity = "".join(f"{name} {value}\n" for name, value in variables.items())
        name = self.name or f"{crc32c(f'{self.host} {self.pid}'.encode()):016x}"
        path = self.folder / f"weft-{name}-{self.files:06d}.trace"
        options = {"ahead_ns": self.ahead_ns, **options}
        data = header(identity, self.files, **options)  # type: ignore[arg-type]
        data += block(self.standing, ring=STANDING, dropped=self.dropped)
        if self.records:
            data += block(self.records, number=1, dropped=self.dropped)
        if self.ended:
            end = struct.pack("<HHIq", LAYOUTS["end"][0], 16, self.next_id(), 0)
            data += block(end, number=2, dropped=self.dropped)
        path.write_bytes(data)
        self.files += 1
        self.records = b""
        return path


def rank_of(folder: Path, rank: int, size: int, per_node: int = 1, **more: str) -> Process:
    """A process of the given rank in the job, on node number rank / per_node."""
    variables = {"RANK": str(rank), "WORLD_SIZE": str(size), **more}
    return Process(folder, f"node{rank // per_node}", 100 + rank, f"{rank + 1:016x}", variables)


def communicator(
    process: Process, comm_id: int, rank: int, ranks: int, time_ns: int = 0, **more: int | str
) -> int:
    values = {"comm_id": comm_id, "rank": rank, "ranks": ranks, "nodes": 1, "name": "", **more}
    return process.new("communicator", time_ns, **values)


def operation(
    process: Process, comm: int, function: str, begin_ns: int, end_ns: int, **more: int | str
) -> int:
    """Adds an operation: a ring AllReduce of floats, unless `more` has other values."""
    values: dict[str, int | str] = {
        "communicator": comm,
        "function": function,
        "datatype": "ncclFloat32",
        "algorithm": "RING",
        "protocol": "SIMPLE",
        "channels": 1,
        "root": -1,
    }
    id_ = process.new("operation", begin_ns, **values | more)
    process.put("operation_end", id_, end_ns)
    return id_


def channel(
    process: Process,
    comm: int,
    op: int,
    peer: int,
    size: int,
    begin_ns: int,
    end_ns: int,
    sends: int = 1,
    number: int = 0,
) -> int:
    values = {"operation": op, "communicator": comm, "peer": peer, "sends": sends}
    id_ = process.new("channel", begin_ns, channel=number, **values)
    process.put("channel_end", id_, end_ns, bytes=size, messages=1, steps=1)
    return id_


def message(
    process: Process,
    connection: int,
    number: int,
    size: int,
    posted_ns: int,
    end_ns: int,
    sends: int,
    channel_id: int = 0,
    status: int = 0,
) -> None:
    values = {"message": number, "bytes": size, "posted_ns": posted_ns, "sends": sends}
    values |= {"status": status} if status else {}
    process.new("message", end_ns, connection=connection, channel=channel_id, **values)
