"""Follows the traces that processes of this host write: reads only what is new in their files."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from transport.trace.folder import NAME, ProcessFiles
from transport.trace.gather import ProcessRecords, is_possible
from transport.trace.layout import HEADER, HEADER_BYTES_MAX, TraceError, read_header
from transport.trace.segment import Rows, SegmentRows, decode_rows

BLOCK_BYTES = 32  # size of a block's header
BLOCK_MAGIC = 0x6B6C6277
READ_BYTES_MAX = 256 << 20  # bytes read in one step at most; the rest is read in the next one
CHUNK_BYTES = 16 << 20
FILES_MAX = 100_000  # at most this many trace files are followed
SIMULATED = "simulated"  # the clock in the identity of traces that the simulator writes
SAID_MAX = 1_000  # at most this many different lines are reported


@dataclass
class Trace:
    """The trace of one process, as far as it was read.

    fresh: records, by kind, that take() has not returned yet. standing: communicators and
    connections, and the records of their ends. first_ns, last_ns, closed_ns: times on the
    process's clock. ahead_ns: add it to them to get nanoseconds since 1970.
    """

    files: ProcessFiles
    ahead_ns: int
    texts: dict[int, str] = field(default_factory=dict)
    fresh: dict[str, list[Rows]] = field(default_factory=dict)
    standing: dict[str, Rows] = field(default_factory=dict)
    dropped: int = 0
    ended: bool | None = False
    damage: str = ""
    first_ns: int | None = None
    last_ns: int = 0
    closed_ns: int | None = None

    @property
    def whole(self) -> bool:
        """Whether all records since the process began were read."""
        return min(self.files.paths) == 0 and not (self.files.gaps or self.dropped or self.damage)

    def records(self, rows: dict[str, Rows]) -> ProcessRecords:
        """`rows`, with the communicators and connections, as transport.trace.gather reads them."""
        return ProcessRecords(self.ahead_ns, {**rows, **self.standing}, self.texts)

    def take(self) -> dict[str, Rows]:
        """The records that were read since the last call."""
        found = {
            kind: np.concatenate([one for one in parts if one.dtype == parts[0].dtype])
            for kind, parts in self.fresh.items()
        }
        self.fresh = {}
        return found


@dataclass
class _File:
    """A file that is followed. `at`: where the next block begins. dead: no more is read from it."""

    path: Path
    head: bytes
    trace: Trace
    at: int
    dead: bool = False


STANDING = ("communicator", "communicator_end", "connection", "connection_end")
KEPT_STANDING_MAX = 100_000


class Follower:
    """All traces below a folder.

    window_ns: a file that was last written longer than this before the newest one is not read.
    host: follow only traces of this host; "": of all hosts. simulated: follow those of the
    simulator as well. problems: lines of the last step about what cannot be read, each line once.
    ahead_ns: name of a clock -> how far the time of day is ahead of CLOCK_MONOTONIC; the first
    trace with this clock decides, so that setting the clock later moves no times.
    """

    def __init__(
        self, folder: Path, window_ns: int, host: str = "", simulated: bool = True
    ) -> None:
        self.host = host
        self.simulated = simulated
        self.simulations = 0  # files of simulations that are not followed
        self._left_out: set[Path] = set()
        self.folder = folder
        self.window_ns = window_ns
        self.traces: dict[tuple[str, ...], Trace] = {}
        self.problems: list[str] = []
        self.ahead_ns: dict[str, int] = {}
        self.bytes = 0  # number of bytes read so far
        self._files: dict[Path, _File] = {}
        self._said: set[str] = set()

    def step(self) -> None:
        """Reads what was appended to the traces."""
        self.problems = []
        there = self._listed()
        for path in [one for one in self._files if one not in there]:
            del self._files[path]
        self._left_out &= there.keys()
        left = READ_BYTES_MAX
        # The age of a file counts from the newest file, not from now, so that a job that has hung
        # for long is still read.
        written = [written_s for size, written_s in there.values() if size >= HEADER.size]
        newest_s = max(written, default=0.0)
        for path, (size, written_s) in sorted(there.items()):
            file = self._files.get(path)
            if file is None:
                file = self._begun(path, newest_s - written_s)
            if file is None or file.dead or size <= file.at:
                continue
            left -= self._read(file, min(size - file.at, left))
            if left <= 0:
                self._say("traces grow by more than an interval can read: verdicts come late")
                return

    def _listed(self) -> dict[Path, tuple[int, float]]:
        """Size and time of modification of each trace file."""
        found: dict[Path, tuple[int, float]] = {}
        for place, _, names in os.walk(self.folder, onerror=self._cannot_list):
            for name in names:
                if not name.endswith(".trace") or len(found) >= FILES_MAX:
                    continue
                try:
                    status = os.stat(os.path.join(place, name))
                except OSError:
                    continue  # the file was removed meanwhile
                if stat.S_ISREG(status.st_mode):
                    # A clock that was set may have left times in the future.
                    written_s = min(status.st_mtime, time.time())
                    found[Path(place, name)] = (status.st_size, written_s)
        return found

    def _cannot_list(self, error: OSError) -> None:
        if self.traces or not isinstance(error, FileNotFoundError):  # a job may start later
            self._say(f"{error.filename} cannot be listed: {error.strerror}")

    def _begun(self, path: Path, age_s: float) -> _File | None:
        """Begins to follow a file; None if it is old, incomplete, of another host, or no trace."""
        if path in self._left_out or age_s > self.window_ns / 1e9:
            return None
        try:
            with path.open("rb") as stream:
                head = stream.read(HEADER.size)
                size = HEADER.unpack(head)[2] if len(head) == HEADER.size else 0
                head += stream.read(min(max(size - len(head), 0), HEADER_BYTES_MAX))
            header = read_header(head)
        except OSError as error:
            self._say(f"{path.name} cannot be read: {error.strerror}")
            return None
        except TraceError as error:
            if len(head) >= HEADER.size:
                self._say(f"{path.name} is left out: {error}")
            return None
        named = NAME.fullmatch(path.name)
        identity = header.identity
        if self.host and identity.get("host", "") != self.host:
            self._left_out.add(path)
            return None
        if identity.get("clock") == SIMULATED and not self.simulated:
            self._left_out.add(path)
            self.simulations += 1
            return None
        key = (
            named[1] if named else path.name,
            *(identity.get(name, "") for name in ("host", "pid", "start_ticks")),
        )
        files = ProcessFiles(key[0], identity)
        ahead_ns = self.ahead_ns.setdefault(files.clock, header.realtime_ahead_ns)
        trace = self.traces.setdefault(key, Trace(files, ahead_ns))
        known = trace.files.paths.get(header.number)
        if known is not None and known[0] != path and known[0] in self._files:
            self._say(f"{path} is a copy of {known[0]}: left out")
            self._left_out.add(path)
            return None
        trace.files.paths[header.number] = (path, header)
        file = _File(path, head[: header.bytes], trace, header.bytes)
        self._files[path] = file
        return file

    def _read(self, file: _File, size: int) -> int:
        """Reads whole blocks of a file; returns the number of bytes."""
        done = 0
        while done < size:
            try:
                with file.path.open("rb") as stream:
                    stream.seek(file.at)
                    data = stream.read(CHUNK_BYTES)
            except OSError as error:
                self._say(f"{file.path.name} cannot be read: {error.strerror}")
                break
            whole, sound = blocks(data)
            if whole == 0:
                file.dead = not sound
                if not sound:
                    self._say(
                        f"{file.path.name} is damaged at byte {file.at}: its rest is left out"
                    )
                break
            found = decode_rows(file.head + data[:whole])
            if found.damage:
                file.dead = True
                self._say(f"{file.path.name}: {found.damage}")
            self._add(file.trace, found)
            file.at += whole
            done += whole
        self.bytes += done
        return done

    def _add(self, trace: Trace, found: SegmentRows) -> None:
        trace.texts.update(found.texts)
        trace.dropped = max(trace.dropped, found.dropped)
        trace.ended, trace.closed_ns = found.ended, found.closed_ns
        if found.damage:
            trace.damage = found.damage
        for kind, rows in found.rows.items():
            times = rows["time_ns"][is_possible(rows["time_ns"])]
            if not times.size:
                continue
            trace.last_ns = max(trace.last_ns, int(times.max()))
            known_ns, first_ns = trace.first_ns, int(times.min())
            trace.first_ns = first_ns if known_ns is None else min(known_ns, first_ns)
            if kind in STANDING:
                known = trace.standing.get(kind)
                is_same = known is not None and known.dtype == rows.dtype
                joined = np.concatenate([known, rows]) if is_same else rows
                _, first = np.unique(joined["id"], return_index=True)
                trace.standing[kind] = joined[np.sort(first)][-KEPT_STANDING_MAX:]
            else:
                trace.fresh.setdefault(kind, []).append(rows)

    def forget(self, key: tuple[str, ...]) -> None:
        """Forgets a trace; its files are followed no longer."""
        trace = self.traces.pop(key)
        for file in self._files.values():
            file.dead |= file.trace is trace

    def _say(self, line: str) -> None:
        if line not in self._said and len(self._said) < SAID_MAX:
            self._said.add(line)
            self.problems.append(line)


def blocks(data: bytes) -> tuple[int, bool]:
    """Bytes of the whole blocks at the start, and whether the rest can be an incomplete block."""
    at = 0
    while at + BLOCK_BYTES <= len(data):
        magic = int.from_bytes(data[at : at + 4], "little")
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if magic != BLOCK_MAGIC or size % 8 or size > CHUNK_BYTES - BLOCK_BYTES:
            return at, False
        if at + BLOCK_BYTES + size > len(data):
            break
        at += BLOCK_BYTES + size
    return at, True
