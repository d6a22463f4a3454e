"""Finds and reads the telemetry pages of processes, without their cooperation.

Another process may write a page while it is read, and a page may be damaged: every field is
checked, and PageError is raised if one is wrong. docs/LIVE.md describes the format, and which
pages are trusted: any user can write into the directory, so a file's name proves nothing.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transport.errors import InvalidArgumentError
from transport.ground.units import binary_text

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
# Root reads the pages of all users, but at most this many bytes of each other user at a time.
USER_BYTES_MAX = 64 << 20
ROOT = 0
IGNORED = "ignored "  # begins the line about pages that other users made or can change
NAME = re.compile(r"weft-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)\.page")
SCHEMA_LINE = re.compile(
    r"(\w+) (\w+) (?:i64(?:x(\d{1,4}))?|text(\d{1,4})) (\w+) (\w+) (\d{1,9})", re.ASCII
)
NEEDED = ("process", "engine", "peer", "path", "flow")


class PageError(InvalidArgumentError):
    """The file is not a telemetry page, is damaged, or cannot be read."""


class ForeignPageError(PageError):
    """The page is not of the user or process that its name states, or other users can change it."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a row, from the page's schema; `kind` is a counter's kind, or "state"."""

    name: str
    unit: str
    kind: str
    offset: int
    text_bytes: int  # size of a text field; 0: the field holds numbers
    numbers: int = 1  # count of numbers in the field; more than one: it is a histogram

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

    `user` owns the file, and so made it. `process_state` is "running", "stopped" (by a signal or a
    debugger), "gone", or "unknown" for a process of another PID namespace. Times in state fields
    are the host's CLOCK_MONOTONIC; `realtime_s()` converts them.
    """

    path: Path
    user: int
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

    @property
    def identity(self) -> str:
        """USER-NAMESPACE-PID-START-NUMBER: unique among the pages of this host.

        The same pid may exist in several PID namespaces, and a process may have several endpoints.
        """
        return identity_of(self.path)

    @property
    def process_identity(self) -> str:
        """USER-NAMESPACE-PID-START: all pages of a process share it, and no other page has it."""
        return self.identity.rpartition("-")[0]

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


def identity_of(path: Path) -> str:
    """Page.identity of the page in this file."""
    return path.name.removeprefix("weft-").removesuffix(".page")


def directory() -> Path:
    """The directory of pages: WEFT_TELEMETRY if it is an absolute path, else /dev/shm."""
    text = os.environ.get("WEFT_TELEMETRY", "")
    return Path(text) if text.startswith("/") else DIRECTORY


def pages(where: Path | str | None = None, pid: int | None = None) -> list[Path]:
    """This user's pages in a directory, or for root all users', oldest first.

    Files that do not belong to the user in their name are left out. PageError if the directory
    cannot be listed.
    """
    return [path for path in _named(where, pid) if _is_honest(path)]


def _is_honest(path: Path) -> bool:
    name = NAME.fullmatch(path.name)
    try:
        return name is not None and path.lstat().st_uid == int(name[1])
    except OSError:
        return False


def _named(where: Path | str | None = None, pid: int | None = None) -> list[Path]:
    """The files that have names of telemetry pages, oldest first."""
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


@dataclass(frozen=True, slots=True)
class PagesRead:
    """All pages of a directory at one moment, oldest first.

    problems: why others were not read, a line each. ignored: number of pages that other users made
    or can change; one line of `problems` is about them.
    """

    pages: tuple[Page, ...]
    problems: tuple[str, ...]
    ignored: int


def read_pages(where: Path | str | None = None, pids: Collection[int] = ()) -> PagesRead:
    """Reads the pages in a directory: all, or those of some processes.

    PageError if the directory cannot be listed.
    """
    root = directory() if where is None else Path(where)
    found: list[Page] = []
    problems: list[str] = []
    foreign: list[str] = []
    left_bytes: dict[int, int] = {}
    unread: dict[int, int] = {}  # user -> pages not read because of USER_BYTES_MAX

    def may_read(user: int, size: int) -> bool:
        if user == os.geteuid():
            return True
        left_bytes[user] = left_bytes.get(user, USER_BYTES_MAX) - size
        return left_bytes[user] >= 0

    for path in _named(root):
        name = NAME.fullmatch(path.name)
        if name is None or (pids and int(name[3]) not in pids):
            continue
        try:
            found.append(_read(path, may_read))
        except _TooManyBytesError:
            unread[int(name[1])] = unread.get(int(name[1]), 0) + 1
        except ForeignPageError as error:
            foreign.append(str(error))
        except PageError as error:
            if path.exists():  # a process that just ended has removed its page
                problems.append(str(error))
    if foreign:
        more = f", and {len(foreign) - 1} more like it" if len(foreign) > 1 else ""
        problems.append(f"{IGNORED}{foreign[0]}{more}")
    for user, count in unread.items():
        most = binary_text(USER_BYTES_MAX)
        problems.append(
            f"{count} pages of uid {user} in {root} are not read: its pages exceed {most}"
        )
    return PagesRead(tuple(found), tuple(problems), len(foreign))


def read_page(path: Path | str) -> Page:
    """Reads a page. PageError if the file is not a complete page, or is not trusted."""
    return _read(Path(path), lambda _user, _size: True)


class _TooManyBytesError(PageError):
    """The user has more bytes of pages than one reading takes."""


def _read(where: Path, may_read: Callable[[int, int], bool]) -> Page:
    """Reads a page. may_read(user, size): called after the header; False: do not read the rest."""
    try:
        # pread, because a mapped file that shrinks raises SIGBUS. O_NONBLOCK, because FIFOs block.
        file = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError) as error:
        raise PageError(f"cannot open {where}: {error}") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise PageError(f"{where}: not a regular file")
        user = _owner(where, status)
        # The header states how many bytes to read, so that a huge sparse file costs nothing.
        head = os.pread(file, HEADER.size, 0)
        size = _file_bytes(head, status.st_size)
        if not may_read(user, size):
            raise _TooManyBytesError(
                f"{where}: with its {size} bytes, its user's pages exceed their limit"
            )
        # A row is valid if its generation is the same in all three reads.
        before, data, after = (os.pread(file, size, 0) for _ in range(3))
        return _decode(where, user, before, data, after)
    except OSError as error:
        raise PageError(f"cannot read {where}: {error.strerror}") from None
    except (ForeignPageError, _TooManyBytesError):
        raise
    except PageError as error:
        raise PageError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
    finally:
        os.close(file)


def _owner(where: Path, status: os.stat_result) -> int:
    """The user who owns the open file; ForeignPageError if the page is not trusted.

    A user reads only their own pages, and root reads those of all users. A page with a second
    name (a hard link) is refused, because it would be counted twice.
    """
    user, name = status.st_uid, NAME.fullmatch(where.name)
    claimed = user if name is None else int(name[1])
    us = os.geteuid()
    if user != claimed or us not in (user, ROOT) or (name is None and user != us):
        raise ForeignPageError(
            f"{where}: it belongs to uid {user}, not to uid {us if name is None else claimed}"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_nlink > 1:
        raise ForeignPageError(
            f"{where}: others than its owner can change it (mode {stat.S_IMODE(status.st_mode):04o}"
            f", {status.st_nlink} names)"
        )
    return user


def _file_bytes(head: bytes, size: int) -> int:
    """The size that the header states, checked against the size of the file."""
    if len(head) < HEADER.size or not any(head[: len(MAGIC)]):
        raise PageError("not a telemetry page, or not complete yet")
    magic, version, _, file_bytes = HEADER.unpack(head)[:4]
    if magic != MAGIC:
        raise PageError("not a telemetry page")
    if version != VERSION:
        raise PageError(f"the page has version {version}; this reader supports version {VERSION}")
    if file_bytes > PAGE_BYTES_MAX:
        raise PageError(f"{file_bytes} bytes are too many for a telemetry page")
    if file_bytes > size:
        raise PageError(f"truncated: the file has {size} bytes, its header says {file_bytes}")
    return int(file_bytes)


def _decode(where: Path, user: int, before: bytes, data: bytes, after: bytes) -> Page:
    read_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    layout = _layout(data)
    state = _checked_state(where, user, layout)
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
        user=user,
        pid=layout.pid,
        process_state=state,
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
    file_bytes = _file_bytes(data[: HEADER.size], len(data))
    header = HEADER.unpack_from(data)
    header_bytes, _, pid, count, ticks, space, monotonic, real = header[2:10]
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


def _checked_state(where: Path, user: int, layout: _Layout) -> str:
    """The state of the page's process; ForeignPageError if the page is of another process.

    A user could write a page that names a process of somebody else, so the process must run as
    the page's owner. Pages of this user and of root are not checked for that.
    """
    name = NAME.fullmatch(where.name)
    named = (layout.pid_namespace, layout.pid, layout.start_ticks)
    if name is not None and tuple(map(int, name.group(2, 3, 4))) != named:
        raise ForeignPageError(
            f"{where}: it is the page of another process than its name says: pid {layout.pid}"
        )
    state = _process_state(layout)
    if state in ("running", "stopped") and user not in (os.geteuid(), ROOT):
        users = _users_of(layout.pid)
        if users and users != {user}:
            raise ForeignPageError(
                f"{where}: it belongs to uid {user}, and process {layout.pid} runs as uid "
                f"{', '.join(map(str, sorted(users)))}"
            )
    return state


def _users_of(pid: int) -> set[int]:
    """The real, effective and saved user of a process; empty if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    found = next((line for line in lines if line.startswith("Uid:")), "")
    return {int(one) for one in found.split()[1:4]}


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
