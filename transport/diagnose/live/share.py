"""The shared folder of summaries: each agent writes one file, and the collector reads them all."""

from __future__ import annotations

import contextlib
import os
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from transport.diagnose.live.columns import ColumnsError, Table, pack, read_file, too_large, unpack
from transport.diagnose.live.layout import (
    INT32_MAX,
    INT64_MAX,
    PROCESSES_MAX,
    RANKS_MAX,
    TABLES,
    TIME_NS_MAX,
    beyond,
    typed,
)
from transport.ground import created
from transport.ground.units import binary_text

VERSION = 4
NAME = re.compile(r"weft-host-([A-Za-z0-9._-]{1,100})\.summary")
FILE_BYTES_MAX = 32 << 20
FILES_MAX = 4_096
TEXT_MAX = 1_000  # maximum number of characters of a text in a summary
STACK_MAX = 10_000
# Maximum size of all summaries, which the collector holds in memory; the largest are left out.
TOTAL_BYTES_MAX = 1 << 30
BEYOND_TOTAL = (
    f"all summaries have more than {binary_text(TOTAL_BYTES_MAX)}, and it is one of the largest"
)
EVIDENCE_MAX, NOTES_MAX = 16_384, 1_024


@dataclass
class HostFile:
    """The summary of one host. read_ns: its clock when it read its traces.

    processes: one mapping for each, as agent._described() makes it. evidence: what the host
    observed of its processes and devices. notes: lines about what it could not read.
    """

    host: str
    sequence: int
    read_ns: int
    processes: list[dict[str, Any]]
    evidence: list[dict[str, Any]]
    notes: list[str]
    tables: Mapping[str, Table]


def file_of(folder: Path, host: str, tag: str = "") -> Path:
    """The file of a host; characters that do not belong into a file name become _."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", host)[:80] or "unnamed"
    return folder / f"weft-host-{name}{'-' * bool(tag)}{tag}.summary"


def tag_of(traces: Path) -> str:
    """A suffix of the file's name, for agents whose hosts have the same name, as in containers.

    It is the same for all agents that follow this folder in this PID namespace.
    """
    words = [str(traces.absolute())]
    with contextlib.suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        words.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return f"{zlib.crc32(' '.join(words).encode()):08x}"


def write(folder: Path, said: HostFile, tag: str = "") -> int:
    """Writes a host's file, replacing the previous one; returns its size. OSError if it fails.

    tag: see tag_of().
    """
    meta = {
        "weft_summary": VERSION,
        "host": said.host,
        "sequence": said.sequence,
        "read_ns": said.read_ns,
        "processes": said.processes,
        "evidence": said.evidence,
        "notes": said.notes,
    }
    data = pack(meta, typed(said.tables))
    if len(data) > FILE_BYTES_MAX:
        raise OSError(0, f"the summary has {len(data)} bytes, and {FILE_BYTES_MAX} are allowed")
    created.replace(file_of(folder, said.host, tag), data)
    return len(data)


def parse(data: bytes) -> HostFile:
    """The summary in a file's bytes. ColumnsError if they are damaged or of another version."""
    meta, tables = unpack(data, FILE_BYTES_MAX, TABLES)
    if not isinstance(meta, dict) or "weft_summary" not in meta:
        raise ColumnsError("the file is not a summary of weft diagnose")
    if meta["weft_summary"] != VERSION:
        raise ColumnsError(
            f"the summary's version is {meta['weft_summary']!r}, and this weft reads {VERSION}: "
            "run the same weft on all hosts"
        )
    for name, columns in TABLES.items():
        absent = [one for one in columns if one not in tables.get(name, {})]
        if absent:
            raise ColumnsError(f"the summary has no column {name}.{absent[0]}")
        for one, kind in columns.items():
            if tables[name][one].dtype != np.dtype(kind):
                raise ColumnsError(f"the column {name}.{one} has a wrong type")
    if strange := beyond(tables):
        raise ColumnsError(f"the column {strange} has a number out of its range")
    try:
        if len(meta["processes"]) > PROCESSES_MAX:
            raise ColumnsError(f"the summary lists more than {PROCESSES_MAX} processes")
        if len(meta["evidence"]) > EVIDENCE_MAX or len(meta["notes"]) > NOTES_MAX:
            raise ColumnsError(
                f"the summary has more than {EVIDENCE_MAX} observations or {NOTES_MAX} notes"
            )
        processes = [_process(one) for one in meta["processes"]]
        evidence = [_evidence(one) for one in meta["evidence"]]
        if not isinstance(meta["notes"], list):
            raise TypeError
        notes = [_text(one) for one in meta["notes"]]
        made = HostFile(
            _text(meta["host"]),
            _whole(meta["sequence"]),
            _whole(meta["read_ns"], TIME_NS_MAX),
            processes,
            evidence,
            notes,
            tables,
        )
        numbers = {one["number"] for one in processes}
        if len(numbers) < len(processes):
            raise ColumnsError("the summary lists two processes with one number")
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise ColumnsError("the summary's head is damaged") from None
    for name in TABLES:
        absent_ones = {int(one) for one in set(tables[name]["process"].tolist())} - numbers
        if absent_ones:
            raise ColumnsError(f"the table {name} names the unlisted process {min(absent_ones)}")
    return made


def _process(said: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the values to their types; KeyError, TypeError or ValueError if one is wrong."""
    ended = said["ended"]
    made: dict[str, Any] = {
        name: _text(said.get(name, ""))
        for name in ("trace", "host", "job", "start_ticks", "clock_name", "damage")
    }
    state = said.get("state")
    for name, most in (
        ("number", INT32_MAX),
        ("pid", INT32_MAX),
        ("attempt", INT32_MAX),
        ("dropped", INT64_MAX),
    ):
        made[name] = _whole(said[name], most)
    for name, most in (
        ("rank", RANKS_MAX),
        ("world_size", RANKS_MAX),
        ("first_ns", TIME_NS_MAX),
        ("last_ns", TIME_NS_MAX),
        ("closed_ns", TIME_NS_MAX),
    ):
        made[name] = None if said[name] is None else _whole(said[name], most)
    made["state"] = None if state is None else str(state)[:1]
    return made | {"ended": None if ended is None else bool(ended), "whole": bool(said["whole"])}


def _text(value: Any, most: int = TEXT_MAX) -> str:
    """The first characters; ValueError for half of a surrogate pair, which JSON may have."""
    made = str(value)[:most]
    made.encode()
    return made


def _whole(value: Any, most: int = (1 << 63) - 1) -> int:
    """A whole number of at most `most`, also below 0; ValueError if it is not one."""
    number = int(value)
    if isinstance(value, bool) or not -most <= number <= most:
        raise ValueError
    return number


def _evidence(said: Mapping[str, Any]) -> dict[str, Any]:
    number = said.get("process")
    made = {
        "process": None if number is None else _whole(number, INT32_MAX),
        "kind": _text(said["kind"]),
        "text": _text(said["text"]),
        "stack": _text(said.get("stack", ""), STACK_MAX),
        "code": _text(said.get("code", "")),
        "pci": _text(said.get("pci", "")),
        "pid": _whole(said.get("pid", 0), INT32_MAX),
        "time_ns": _whole(said.get("time_ns", -1), TIME_NS_MAX),
    }
    made |= {
        name: _whole(said.get(name, 0), TIME_NS_MAX) for name in ("since_ns", "readings", "ns")
    }
    share = float(said.get("share", 0.0))
    return made | {"share": share if 0.0 <= share <= 1.0 else 0.0}


@dataclass
class _Seen:
    stamp: tuple[int, int, int] = (0, 0, 0)
    said: HostFile | None = None
    problem: str = ""
    changed_s: float = 0.0


@dataclass
class Share:
    """The folder with all summaries. stale_s: files unchanged for this long are ignored."""

    folder: Path
    stale_s: float
    _seen: dict[Path, _Seen] = field(default_factory=dict)
    _lines: dict[Path, str] = field(default_factory=dict)
    _problem: str = ""
    _said: str = ""

    def read(self) -> tuple[list[HostFile], list[str]]:
        """The summaries that are up to date, and lines about files that became bad or good."""
        lines, good = [], []
        there = set(self._files())
        too_many = self._beyond_total(there)
        if self._problem and self._problem != self._said:
            lines.append(self._problem)
        self._said = self._problem
        for path in [one for one in self._seen if one not in there]:
            del self._seen[path]
            self._lines.pop(path, None)
        for path in sorted(there):
            if path in too_many:
                self._seen.pop(path, None)
                seen = _Seen(problem=f"{path.name} is left out: {BEYOND_TOTAL}")
            else:
                seen = self._look(path)
            line = seen.problem
            age_s = time.monotonic() - seen.changed_s
            if not line and age_s > self.stale_s:
                line = (
                    f"{path.name} has not changed for {age_s:.0f} s: weft diagnose --live on "
                    "that host has ended or hangs; its processes are not judged"
                )
            kind = line.partition(" has not changed")[0]
            if line and self._lines.get(path) != kind:
                lines.append(line)
            if not line and path in self._lines:
                lines.append(f"{path.name} is up to date again")
            if line:
                self._lines[path] = kind
            else:
                self._lines.pop(path, None)
                assert seen.said is not None
                good.append(seen.said)
        return good, lines

    def _files(self) -> Iterator[Path]:
        self._problem = ""
        try:
            names = sorted(one.name for one in self.folder.iterdir())
        except OSError as error:
            self._problem = f"cannot read {self.folder}: {error.strerror}: nothing is judged"
            return
        for name in [one for one in names if NAME.fullmatch(one)][:FILES_MAX]:
            yield self.folder / name

    def _beyond_total(self, there: set[Path]) -> set[Path]:
        """The largest files, without which the others have at most TOTAL_BYTES_MAX."""
        sizes = []
        for path in there:
            with contextlib.suppress(OSError):  # _look() reports the error
                sizes.append((path.stat().st_size, path))
        left, beyond_it = TOTAL_BYTES_MAX, set()
        for size, path in sorted(sizes):
            left -= size
            if left < 0 and size <= FILE_BYTES_MAX:
                beyond_it.add(path)
        return beyond_it

    def _look(self, path: Path) -> _Seen:
        """Reads a file if it has changed."""
        is_new = path not in self._seen
        seen = self._seen.setdefault(path, _Seen(changed_s=time.monotonic()))
        try:
            status = path.stat()
            if is_new:
                seen.changed_s -= max(time.time() - status.st_mtime, 0.0)
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == seen.stamp:
                return seen
            if status.st_size > FILE_BYTES_MAX:
                raise ColumnsError(too_large(status.st_size, FILE_BYTES_MAX))
            found = parse(read_file(path, FILE_BYTES_MAX))
        except OSError as error:
            seen.problem = f"{path.name} cannot be read: {error.strerror}: left out"
            return seen
        except ColumnsError as error:
            seen.stamp = stamp
            seen.problem = f"{path.name} is left out: {error}"
            return seen
        before = seen.said
        if before is not None and (before.sequence, before.read_ns) != (
            found.sequence,
            found.read_ns,
        ):
            seen.changed_s = time.monotonic()
        seen.stamp, seen.said, seen.problem = stamp, found, ""
        return seen
