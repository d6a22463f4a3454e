"""Finds and reads the telemetry pages of processes, without their cooperation.

Another process may write a page while it is read, and a page may be damaged: every field is
checked, and PageError is raised if one is wrong. docs/TELEMETRY.md describes the format.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transport.errors import InvalidArgumentError

MAGIC = b"weftpage"
VERSION = 1
DIRECTORY = Path("/dev/shm")
# Limits far above the sizes that weft writes, so that a damaged page costs little to read.
PAGE_BYTES_MAX = 16 << 20
ROWS_MAX = 1 << 16
FIELDS_MAX = 256
HEADER = struct.Struct("<8sIIQIIQQqqQQ")
SECTION = struct.Struct("<16sQII")
SECTIONS_MAX = 64
BOOT_BYTES = 40
SCHEMA_BYTES_MAX = 1 << 20
NAME = re.compile(r"weft-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)\.page")
SCHEMA_LINE = re.compile(
    r"(\w+) (\w+) (?:i64(?:x(\d{1,4}))?|text(\d{1,4})) (\w+) (\w+) (\d{1,9})", re.ASCII
)
NEEDED = ("process", "engine", "peer", "path", "flow")


class PageError(InvalidArgumentError):
    """The file is not a telemetry page, is damaged, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a row, from the page's schema; `kind` is a counter's kind, or "state"."""

    name: str
    unit: str
    kind: str
    offset: int
    text_bytes: int  # size of a text field; 0: the field holds numbers
    numbers: int = 1  # how many numbers the field holds; more than one: it is a histogram

    @property
    def bytes(self) -> int:
        """The size of the field in bytes."""
        return self.text_bytes or 8 * self.numbers


@dataclass(frozen=True, slots=True)
class Row:
    """A row in use: its index and generation, state fields, counters and histograms."""

    index: int
    generation: int
    state: Mapping[str, int | str]
    counters: Mapping[str, int]
    histograms: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PeerRow(Row):
    """A peer's row, with the rows of its paths."""

    paths: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The contents of a page: the counters of a process by scope, at one moment.

    `process_state` is "running", "stopped" (by a signal or a debugger), "gone", or "unknown" for
    a process of another PID namespace. Times in state fields are the host's CLOCK_MONOTONIC;
    `realtime_s()` converts them.
    """

    path: Path
    pid: int
    process_state: str
    boot_id: str
    read_ns: int
    created_ns: int
    created_realtime_ns: int
    process: Row
    engines: tuple[Row, ...]
    peers: tuple[PeerRow, ...]
    flows: tuple[Row, ...]

    def realtime_s(self, monotonic_ns: int) -> float:
        """Converts a time of a state field to seconds since 1970."""
        return (self.created_realtime_ns + monotonic_ns - self.created_ns) / 1e9


@dataclass(frozen=True, slots=True)
class _Section:
    offset: int
    row_bytes: int
    rows: int
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    file_bytes: int
    pid: int
    start_ticks: int
    pid_namespace: int
    monotonic_ns: int
    realtime_ns: int
    boot_id: str
    sections: Mapping[str, _Section]


def directory() -> Path:
    """The directory of pages: WEFT_TELEMETRY if it is an absolute path, else /dev/shm."""
    text = os.environ.get("WEFT_TELEMETRY", "")
    return Path(text) if text.startswith("/") else DIRECTORY


def pages(where: Path | str | None = None, pid: int | None = None) -> list[Path]:
    """This user's pages in a directory, or for root all users', oldest first.

    PageError if the directory cannot be listed.
    """
    root = directory() if where is None else Path(where)
    found = []
    try:
        names = os.listdir(root)
    except OSError as error:
        raise PageError(f"cannot list {root}: {error.strerror}") from None
    user = os.geteuid()
    for name in names:
        match = NAME.fullmatch(name)
        if match is not None and user in (0, int(match[1])) and pid in (None, int(match[3])):
            found.append(((int(match[4]), int(match[3]), int(match[5])), root / name))
    return [path for _, path in sorted(found)]


def read_page(path: Path | str) -> Page:
    """Reads a page. PageError if the file is not a complete page."""
    where = Path(path)
    try:
        # pread, because a mapped file that shrinks raises SIGBUS. O_NONBLOCK, because FIFOs block.
        file = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError) as error:
        raise PageError(f"cannot open {where}: {error}") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PageError(f"{where}: not a regular file")
        if status.st_size > PAGE_BYTES_MAX:
            raise PageError(f"{where}: {status.st_size} bytes are too many for a telemetry page")
        # A row is valid if its generation is the same in all three reads.
        before, data, after = (os.pread(file, status.st_size, 0) for _ in range(3))
    except OSError as error:
        raise PageError(f"cannot read {where}: {error.strerror}") from None
    finally:
        os.close(file)
    try:
        return _decode(where, before, data, after)
    except PageError as error:
        raise PageError(f"{where}: {error}") from None


def _decode(where: Path, before: bytes, data: bytes, after: bytes) -> Page:
    read_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    layout = _layout(data)
    if min(len(before), len(after)) < layout.file_bytes:
        raise PageError("the file shrank while it was read")
    images = (before, data, after)
    rows = {name: _rows(layout.sections[name], images) for name in NEEDED if name != "path"}
    if not rows["process"]:
        raise PageError("the process's row is not in use")
    paths = layout.sections["path"]
    if sum(_count(row) for row in rows["peer"]) > paths.rows:
        raise PageError("the peers have more paths than the section `path` has rows")
    return Page(
        path=where,
        pid=layout.pid,
        process_state=_process_state(layout),
        boot_id=layout.boot_id,
        read_ns=read_ns,
        created_ns=layout.monotonic_ns,
        created_realtime_ns=layout.realtime_ns,
        process=rows["process"][0],
        engines=rows["engine"],
        peers=tuple(_with_paths(row, paths, data) for row in rows["peer"]),
        flows=rows["flow"],
    )


def _layout(data: bytes) -> _Layout:
    if len(data) < HEADER.size or not any(data[: len(MAGIC)]):
        raise PageError("not a telemetry page, or not complete yet")
    header = HEADER.unpack_from(data)
    magic, version, header_bytes, file_bytes, pid, count, ticks, space, monotonic, real = header[
        :10
    ]
    if magic != MAGIC:
        raise PageError("not a telemetry page")
    if version != VERSION:
        raise PageError(f"its version is {version}; this reader supports version {VERSION}")
    if file_bytes > len(data):
        raise PageError(f"truncated: {len(data)} bytes of {file_bytes}")
    sections_end = HEADER.size + count * SECTION.size
    if count > SECTIONS_MAX or not sections_end + BOOT_BYTES <= header_bytes <= file_bytes:
        raise PageError("damaged header: its sizes are inconsistent")
    schema_offset, schema_bytes = header[10:]
    if schema_bytes > SCHEMA_BYTES_MAX or schema_offset + schema_bytes > file_bytes:
        raise PageError("damaged header: its schema lies outside the file")
    fields = _schema(data[schema_offset : schema_offset + schema_bytes])
    sections = {}
    for index in range(count):
        raw, offset, row_bytes, rows = SECTION.unpack_from(data, HEADER.size + index * SECTION.size)
        name = _text(raw)
        if row_bytes == 0 or rows > ROWS_MAX or offset + row_bytes * rows > file_bytes:
            raise PageError(f"damaged header: its section {name} lies outside the file")
        mine = tuple(fields.get(name, {}).values())
        inside = all(field.offset + field.bytes <= row_bytes for field in mine)
        # Fields that overlap would multiply the cost of reading a damaged page.
        if len(mine) > FIELDS_MAX or not inside or sum(field.bytes for field in mine) > row_bytes:
            raise PageError(f"damaged schema: the fields of section {name} exceed a row")
        sections[name] = _Section(offset, row_bytes, rows, mine)
    if sum(each.rows * each.row_bytes for each in sections.values()) > file_bytes:
        raise PageError("damaged header: its sections overlap")
    for name in NEEDED:
        if name not in sections:
            raise PageError(f"section {name} is missing")
        generation = fields.get(name, {}).get("generation")
        if name != "path" and (generation is None or generation.bytes != 8):
            raise PageError(f"damaged schema: section {name} has no field generation")
    boot_id = _text(data[sections_end : sections_end + BOOT_BYTES])
    return _Layout(file_bytes, pid, ticks, space, monotonic, real, boot_id, sections)


def _schema(text: bytes) -> dict[str, dict[str, Field]]:
    fields: dict[str, dict[str, Field]] = {}
    for line in text.decode("ascii", "replace").splitlines():
        match = SCHEMA_LINE.fullmatch(line)
        if match is None or any(size is not None and int(size) == 0 for size in match.group(3, 4)):
            raise PageError("damaged schema: a line cannot be parsed")
        section, name, count, size, unit, kind, offset = match.groups()
        fields.setdefault(section, {})[name] = Field(
            name, unit, kind, int(offset), int(size or 0), int(count or 1)
        )
    return fields


def _text(raw: bytes) -> str:
    """A zero-terminated text, with unprintable characters replaced."""
    text = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
    return "".join(one if one.isprintable() else "?" for one in text)


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little", signed=True)


def _rows(section: _Section, images: tuple[bytes, bytes, bytes]) -> tuple[Row, ...]:
    generation = next(field.offset for field in section.fields if field.name == "generation")
    if section.rows == 0:
        return ()
    first, numbers, last = (
        np.ndarray(section.rows, "<i8", image, section.offset + generation, section.row_bytes)
        for image in images
    )
    (used,) = np.nonzero((numbers % 2 == 1) & (first == numbers) & (numbers == last))
    return tuple(_row(section, images[1], int(at), int(numbers[at])) for at in used)


def _row(section: _Section, data: bytes, index: int, generation: int) -> Row:
    at = section.offset + index * section.row_bytes
    state: dict[str, int | str] = {}
    counters: dict[str, int] = {}
    histograms: dict[str, tuple[int, ...]] = {}
    for field in section.fields:
        where = at + field.offset
        if field.text_bytes:
            state[field.name] = _text(data[where : where + field.text_bytes])
        elif field.kind == "histogram":
            numbers = (_number(data, where + 8 * i) for i in range(field.numbers))
            histograms[field.name] = tuple(numbers)
        elif field.kind != "state":
            counters[field.name] = _number(data, where)
        elif field.name != "generation":
            state[field.name] = _number(data, where)
    return Row(index, generation, state, counters, histograms)


def _count(row: Row) -> int:
    count = row.state.get("paths")
    if not isinstance(count, int) or count < 0:
        raise PageError("damaged row: a peer has no valid path count")
    return count


def _with_paths(row: Row, paths: _Section, data: bytes) -> PeerRow:
    first, count = row.state.get("first_path"), _count(row)
    if not isinstance(first, int) or first < 0 or first + count > paths.rows:
        raise PageError("damaged row: a peer's paths lie outside the section path")
    mine = (_row(paths, data, index, row.generation) for index in range(first, first + count))
    return PeerRow(row.index, row.generation, row.state, row.counters, row.histograms, tuple(mine))


def _process_state(layout: _Layout) -> str:
    try:
        if os.stat("/proc/self/ns/pid").st_ino != layout.pid_namespace:
            return "unknown"
        text = Path(f"/proc/{layout.pid}/stat").read_text(errors="replace")
    except FileNotFoundError:
        return "gone"
    except OSError:
        return "unknown"
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or int(fields[19]) != layout.start_ticks or fields[0] in "ZX":
        return "gone"
    return "stopped" if fields[0] in "Tt" else "running"
