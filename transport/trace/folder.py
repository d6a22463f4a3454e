"""Finds the trace files below a folder, and groups them by the process that wrote them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from transport.trace.layout import HEADER, HEADER_BYTES_MAX, Header, TraceError, read_header

NAME = re.compile(r"weft-([0-9a-f]{16})-[0-9]{6,}\.trace")
NUMBER = re.compile(r"-?[0-9]{1,9}")
# Environment variables that name the job; the first that is set counts. torchrun's id may be
# "none".
JOBS = ("WEFT_TRACE_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "TORCHELASTIC_RUN_ID")
RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
ATTEMPTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(slots=True)
class ProcessFiles:
    """The files of one process's trace.

    trace: the part of the file names that identifies the process.
    paths: number of a file -> its path and header.
    """

    trace: str
    identity: Mapping[str, str]
    paths: dict[int, tuple[Path, Header]] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return self.identity.get("host", "")

    @property
    def clock(self) -> str:
        """The name of the clock of the record times: the host, or what a simulator wrote."""
        return self.identity.get("clock", self.host)

    @property
    def rank(self) -> int | None:
        return number(self.identity, *RANKS)

    @property
    def job(self) -> str:
        found = (self.identity.get(name, "") for name in JOBS)
        return next((job for job in found if job not in ("", "none")), "")

    @property
    def attempt(self) -> int:
        return number(self.identity, *ATTEMPTS) or 0

    @property
    def first(self) -> Header:
        """The header of the oldest file."""
        return self.paths[min(self.paths)][1]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The first and last number of each run of files that are missing between others."""
        return [(a + 1, b - 1) for a, b in pairwise(sorted(self.paths)) if b > a + 1]


def number(identity: Mapping[str, str], *names: str) -> int | None:
    """The value of the first variable in `names` whose value is a number; None: there is none."""
    found = (identity.get(name, "") for name in names)
    return next((int(text) for text in found if NUMBER.fullmatch(text)), None)


def scan(folder: Path) -> tuple[list[ProcessFiles], list[str]]:
    """The processes with traces below the folder, sorted by job, attempt and rank; and a line
    for each file that was not read."""
    found: dict[tuple[str, ...], ProcessFiles] = {}
    problems: list[str] = []
    for path in _files(folder, problems):
        try:
            header = _header(path)
        except TraceError as error:
            problems.append(f"{path.relative_to(folder)} is left out: {error}")
            continue
        named = NAME.fullmatch(path.name)
        trace = named[1] if named else path.name
        identity = header.identity
        key = (trace, *(identity.get(name, "") for name in ("host", "pid", "start_ticks")))
        process = found.setdefault(key, ProcessFiles(trace, identity))
        if header.number in process.paths:
            # Of several copies of a file, read the longest: copying the others may have failed.
            first = process.paths[header.number][0]
            sizes = path.stat().st_size, first.stat().st_size
            kept, other = (path, first) if sizes[0] > sizes[1] else (first, path)
            how = "a copy" if sizes[0] == sizes[1] else "a shorter copy"
            names = other.relative_to(folder), kept.relative_to(folder)
            problems.append(f"{names[0]} is left out: it is {how} of {names[1]}")
            if kept is first:
                continue
        process.paths[header.number] = (path, header)
    return sorted(found.values(), key=_order), problems


def _files(folder: Path, problems: list[str]) -> list[Path]:
    """The files below the folder that are named like traces; `problems` gets a line for each
    folder that cannot be read."""

    def failed(error: OSError) -> None:
        where = Path(error.filename).relative_to(folder)
        problems.append(f"{where} is left out: cannot be read: {error.strerror}")

    found = []
    for place, _, names in os.walk(folder, onerror=failed):
        found += [Path(place, name) for name in names if name.endswith(".trace")]
    return sorted(found)


def _header(path: Path) -> Header:
    if not path.is_file():  # opening a named pipe would wait for its writer
        raise TraceError("it is not a file")
    try:
        with path.open("rb") as file:
            start = file.read(HEADER.size)
            size = HEADER.unpack(start)[2] if len(start) == HEADER.size else 0
            start += file.read(min(max(size - len(start), 0), HEADER_BYTES_MAX))
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}") from None
    if not start:
        raise TraceError("it is empty")
    return read_header(start)


def _order(process: ProcessFiles) -> tuple[str, int, float, str, int, str]:
    rank = math.inf if process.rank is None else process.rank
    began = process.first.realtime_ahead_ns
    return process.job, process.attempt, rank, process.host, began, process.trace
