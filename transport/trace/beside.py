"""Finds what other tools wrote about a job beside its trace: dumps of the Flight Recorder, logs of
NCCL, and statuses of its RAS service."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from transport.trace.flight import FlightDumps
from transport.trace.layout import TraceError
from transport.trace.nccl_log import ZIPPED, NcclLogs
from transport.trace.nccl_ras import KIND as RAS, RasStatus, RasStatuses, is_status
from transport.trace.store import Store

FILES_MAX = 20_000  # files of a folder whose names are looked at
FOUND_BYTES_MAX = 1 << 30  # larger files are only read if a user names them
HEAD_BYTES = 1 << 18  # bytes of a file that are read to tell what it is
# Name of each kind in verdicts.
NAMES = {"flight": "Flight Recorder", "nccl-log": "NCCL's log", RAS: "NCCL RAS"}
READERS: dict[str, type[FlightDumps] | type[NcclLogs] | type[RasStatuses]] = {
    "flight": FlightDumps,
    "nccl-log": NcclLogs,
    RAS: RasStatuses,
}
# Files that are looked at: logs and dumps; what weft writes has other suffixes.
LOOKED_AT = re.compile(r"(?:\.(?:log|out|err|txt|json|pkl|pickle|bin|gz|\d+)|(?:^|[_-])\d+)$")
DUMP = (b"pg_config", b"profiling_name", b"nccl_comm_state")
LOG = re.compile(
    rb" NCCL (?:INFO|WARN|VERSION|TRACE) |Watchdog caught collective operation timeout"
)


@dataclass
class Beside:
    """One kind of files about a job, as tables. name: of the tool that wrote them.

    kind: as `weft trace import` names it; empty: the folder of a trace. statuses: of NCCL's RAS, by
    time, of which the tables have only processes and communicators.
    """

    name: str
    store: Store
    notes: tuple[str, ...] = ()
    kind: str = ""
    statuses: tuple[RasStatus, ...] = ()


def kind_of(file: Path) -> str:
    """What a file is by its first bytes: a key of NAMES; empty: none of these.

    TraceError if it cannot be read.
    """
    if not file.is_file():  # opening a named pipe would wait for its writer
        raise TraceError(f"{file} is not a file")
    try:
        with file.open("rb") as raw:
            head = raw.read(HEAD_BYTES)
        if head.startswith(ZIPPED):
            with gzip.open(file) as zipped:
                head = zipped.read(HEAD_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return ""
    except OSError as error:
        raise TraceError(f"cannot read {file}: {error.strerror}") from None
    if (head[:1] == b"\x80" or head.lstrip()[:1] == b"{") and any(one in head for one in DUMP):
        return "flight"
    if is_status(head):
        return RAS
    return "nccl-log" if LOG.search(head) else ""


def found_in(folder: Path) -> dict[Path, str]:
    """The dumps, logs and statuses below a folder, each with its kind; files that cannot be read
    are left out."""
    found: dict[Path, str] = {}
    seen = 0
    for place, _, names in os.walk(folder):
        for name in sorted(names):
            seen += 1
            if seen > FILES_MAX:
                return found
            file = Path(place, name)
            if LOOKED_AT.search(name) and file.is_file():
                try:
                    kind = kind_of(file)
                except TraceError:
                    continue
                if kind:
                    found[file] = kind
    return found


def named(files: Iterable[Path]) -> dict[Path, str]:
    """The kind of each file; of a folder, of the files in it. TraceError if one is of no kind."""
    found: dict[Path, str] = {}
    for file in files:
        own = found_in(file) if file.is_dir() else {file: kind_of(file)}
        if not own:
            raise TraceError(
                f"{file} has no dump of the Flight Recorder, no log of NCCL, no status of its RAS"
            )
        found |= own
    for file, kind in found.items():
        if not kind:
            raise TraceError(
                f"{file} is neither a dump of the Flight Recorder, nor a log of NCCL "
                "(NCCL_DEBUG=INFO), nor a status of its RAS (ncclras -f json -v)"
            )
    return found


def read(given: dict[Path, str], inside: dict[Path, str]) -> tuple[list[Beside], list[str]]:
    """The files as tables, one Beside for each kind, and a line for each file that is left out.

    given: files that a user named; one that cannot be read is a TraceError. inside: files that
    were found; one that cannot be read is left out.
    """
    made, problems = [], []
    files = given | inside
    for kind, name in NAMES.items():
        reader = READERS[kind]()
        count = 0
        for file in (file for file, own in files.items() if own == kind):
            try:
                if file not in given and file.stat().st_size > FOUND_BYTES_MAX:
                    raise TraceError(f"it is larger than {FOUND_BYTES_MAX >> 30} GiB: use --with")
                reader.read(file)
                count += 1
            except TraceError as error:
                if file in given:
                    raise
                problems.append(f"{file.name} is left out: {error}")
        if count:
            found = reader.finish()
            statuses = tuple(reader.statuses) if isinstance(reader, RasStatuses) else ()
            made.append(Beside(name, found.store(), tuple(found.notes), kind, statuses))
    return made, problems


def statuses_of(texts: Iterable[str], name: str) -> Beside:
    """What RAS answered, as a source. name: of the service, for errors. TraceError if it is no
    status."""
    reader = RasStatuses()
    for text in texts:
        reader.add(text, name)
    found = reader.finish()
    return Beside(NAMES[RAS], found.store(), tuple(found.notes), RAS, tuple(reader.statuses))


def name_of(store: Store) -> str:
    """The name of what a store was made from, for verdicts."""
    for kind, name in NAMES.items():
        ((count,),) = store.rows("SELECT count(*) FROM processes WHERE trace LIKE ?", f"{kind} %")
        if count:
            return name
    ((count,),) = store.rows("SELECT count(*) FROM processes WHERE trace LIKE 'kineto %'")
    return "PyTorch's profiler" if count else "weft's trace"
