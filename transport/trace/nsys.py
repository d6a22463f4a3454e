"""Reads NCCL's kernels and NVTX ranges from SQLite exports of Nsight Systems.

The tables are those of the SQLite Export Schema Reference in NVIDIA's documentation of Nsight
Systems (docs.nvidia.com/nsight-systems). Versions leave out tables and columns.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from transport.ground.collectives import ELEMENT_BYTES
from transport.trace.file_names import NamedError, rank_of
from transport.trace.imported import Import, Source, hashed
from transport.trace.kernel_names import KernelName, kernel_name
from transport.trace.layout import TraceError
from transport.trace.nsys_calls import Call, Kernel, Range, calls_of
from transport.trace.nsys_payload import COMM, PEER, RANK, RANKS, ROOT, SIZE, Payloads, of_json

HEAD = b"SQLite format 3\0"
HELD_MAX = 4_000_000  # kernels and ranges of NCCL that are read from a file
THREAD_MASK = (1 << 24) - 1  # of a globalTid; the process id is in the 24 bits above
KERNELS, RUNTIME, RANGES = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"),
    "NVTX_EVENTS",
)
NAMES = "(SELECT id FROM StringIds WHERE value LIKE 'nccl%' OR value LIKE 'void nccl%')"
PUSH_POP, START_END = 59, 60  # eventType of ranges
RANKS_MAX = 1 << 20


@dataclass(slots=True)
class _Process:
    """A process of a report. kernels, ranges: NCCL's."""

    global_pid: int
    kernels: list[Kernel] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)


@dataclass(slots=True)
class _Report:
    """What one file has. base_ns: time of its 0, in nanoseconds since 1970."""

    host: str = ""
    base_ns: int | None = None
    processes: dict[int, _Process] = field(default_factory=dict)
    damage: str = ""

    def process(self, global_id: int) -> _Process:
        key = global_id & ~THREAD_MASK
        return self.processes.setdefault(key, _Process(key))


class NsysReports:
    """Reads exports one after the other. ranks: of the files in their order, if given."""

    def __init__(self, ranks: Sequence[int] = ()) -> None:
        self.found = Import("nsys")
        self._ranks = [*ranks]
        self._files = 0
        self._without_base = 0
        self._tell: Counter[str] = Counter()

    def read(self, file: Path) -> None:
        """Reads one export. TraceError if the file is none, or has nothing of NCCL."""
        report = _read(file)
        given = self._ranks[self._files] if self._files < len(self._ranks) else None
        self._files += 1
        used = [one for one in report.processes.values() if one.kernels or one.ranges]
        if not used:
            raise TraceError(
                f"{file} has no kernels and no NVTX ranges of NCCL: record with nsys profile "
                "--trace=cuda,nvtx"
            )
        if len(used) > 1 and given is not None:
            raise TraceError(f"{file} has {len(used)} processes with NCCL: leave --rank out")
        self._without_base += report.base_ns is None
        for one in used:
            named = given if given is not None or len(used) > 1 else _named(file, False)
            self._add(file, report, one, named)

    def finish(self) -> Import:
        """Everything that was read from all exports."""
        self._name_ranks()
        notes = self.found.notes
        unknown = sum(one.facts.get("rank") is None for one in self.found.sources.values())
        if unknown:
            notes.append(
                f"{unknown} processes do not tell their rank: name the files report.RANK.sqlite, "
                "or give --rank for each"
            )
        if self._tell["unsized"]:
            notes.append(
                f"the sizes of {self._tell['unsized']} operations are not known (?): export with "
                "nsys export --type sqlite --include-blobs=true"
            )
        if self._without_base:
            notes.append(
                f"{self._without_base} files do not tell when they began, so their times do not "
                "compare with those of other files"
            )
        return self.found

    def _add(self, file: Path, report: _Report, process: _Process, rank: int | None) -> None:
        pid = process.global_pid >> 24 & THREAD_MASK
        source = self.found.source(
            (self._files, process.global_pid),
            file,
            host=report.host,
            pid=pid,
            rank=rank,
            damage=report.damage,
        )
        if rank is None and len(report.processes) == 1:
            source.facts["numbered"] = _named(file, True)
        writer = _Writer(self.found, source, report.base_ns or 0, self._tell)
        writer.add(process)

    def _name_ranks(self) -> None:
        """The rank in the largest communicator, else the number at the end of the file's name."""
        sources = [*self.found.sources.values()]
        sizes = [one.facts.pop("largest", None) for one in sources]
        world = max((ranks for _, ranks in filter(None, sizes)), default=0)
        for source, known in zip(sources, sizes, strict=True):
            numbered = source.facts.pop("numbered", None)
            if known is not None and known[1] == world:
                source.facts["world_size"] = world
                numbered = known[0]
            if source.facts.get("rank") is None:
                source.facts["rank"] = numbered
        ranks = [one.facts.get("rank") for one in sources]
        twice = [rank for rank, count in Counter(ranks).items() if rank is not None and count > 1]
        if twice:
            raise TraceError(
                f"several files are of rank {twice[0]}: import one run at a time, and name the "
                "files report.RANK.sqlite or give --rank for each"
            )


class _Writer:
    """Adds the rows of one process to `found`."""

    def __init__(self, found: Import, source: Source, base_ns: int, tell: Counter[str]) -> None:
        self._found = found
        self._source = source
        self._base_ns = base_ns
        self._tell = tell
        # Communicator -> rank and ranks. The rank of several GPUs of a process is None.
        self._members: dict[int, tuple[int | None, int]] = {}
        self._comms: dict[tuple[str, str], int] = {}
        self._counts: Counter[int] = Counter()

    def add(self, process: _Process) -> None:
        for one in process.ranges:
            self._read_member(one.payload)
        known = [(rank, ranks) for rank, ranks in self._members.values() if rank is not None]
        if known:
            self._source.facts["largest"] = max(known, key=lambda one: one[1])
        calls, alone = calls_of(process.ranges, process.kernels)
        for call in calls:
            self._operation(call)
        for kernel in alone:
            self._kernel(kernel, None)
            self._found.read["kernels of no known operation"] += 1

    def _read_member(self, payload: dict[str, int]) -> None:
        """Ranges of communicators that begin have this process's rank and the number of ranks."""
        comm, rank, ranks = (payload.get(one) for one in (COMM, RANK, RANKS))
        if comm is None or rank is None or ranks is None or not 0 <= rank < ranks <= RANKS_MAX:
            return
        known = self._members.setdefault(comm, (rank, ranks))
        if known[0] != rank:
            self._members[comm] = (None, ranks)

    def _operation(self, call: Call) -> None:
        named = [one.name for one in call.kernels]
        algorithm = next((one.algorithm for one in named if one.algorithm), "")
        datatype = next((one.datatype for one in named if one.datatype), None)
        p2p = call.function in ("Send", "Recv")
        size = call.payload.get(SIZE)
        element = ELEMENT_BYTES.get(datatype or "")
        self._tell["unsized"] += size is None
        comm = self._comm(call)
        self._counts[comm] += not p2p
        id_ = self._source.next_id()
        self._found.read["operations"] += 1
        self._found.add(
            "operations",
            self._source,
            id=id_,
            comm=comm,
            function=call.function,
            kind="p2p" if p2p else "collective",
            sequence=None if p2p else self._counts[comm] - 1,
            count=size // element if size is not None and element else None,
            datatype=datatype,
            bytes=size,
            algorithm=algorithm if not p2p else "",
            protocol="",
            root=call.payload.get(PEER, call.payload.get(ROOT)),
            tag=0,
            begin_ns=self._base_ns + call.begin_ns,
            end_ns=self._base_ns + call.end_ns,
        )
        for one in call.kernels:
            self._kernel(one, id_)

    def _kernel(self, kernel: Kernel, operation: int | None) -> None:
        self._found.read["kernels"] += 1
        self._found.add(
            "kernels",
            self._source,
            id=self._source.next_id(),
            operation=operation,
            gpu_start_ns=self._base_ns + kernel.start_ns,
            gpu_stop_ns=self._base_ns + kernel.stop_ns,
            time_ns=self._base_ns + kernel.stop_ns,
        )

    def _comm(self, call: Call) -> int:
        """The communicator of a call: of its payload, else one for each stream of each GPU."""
        named = call.payload.get(COMM)
        stream = next((one.stream for one in call.kernels), "")
        key = ("stream", stream) if named is None else ("id", str(named))
        known = self._comms.get(key)
        if known is None:
            known = self._comms[key] = self._source.next_id()
            rank, ranks = self._members.get(-1 if named is None else named, (None, None))
            self._found.read["communicators"] += 1
            self._found.add(
                "comms",
                self._source,
                id=known,
                comm_id=hashed("nsys", self._source.number, stream) if named is None else named,
                name=f"stream {stream}" if named is None and stream else "",
                ranks=ranks,
                rank=rank,
            )
        return known


def _named(file: Path, last_number: bool) -> int | None:
    try:
        return rank_of(file.name, last_number)
    except NamedError as error:
        raise TraceError(f"{file}: {error}") from None


def _read(file: Path) -> _Report:
    """Reads an export without writing to it. TraceError if the file is none."""
    try:
        with file.open("rb") as raw:
            head = raw.read(len(HEAD))
        if head != HEAD:
            raise TraceError(
                f"{file} is no SQLite export of Nsight Systems: make one with nsys export "
                "--type sqlite --include-blobs=true REPORT.nsys-rep"
            )
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            database.execute("PRAGMA query_only = ON")
            database.execute("PRAGMA trusted_schema = OFF")
            return _Reader(database, file).read()
    except OSError as error:
        raise TraceError(f"cannot read {file}: {error.strerror}") from None
    except (sqlite3.Error, OverflowError, MemoryError, UnicodeError) as error:
        raise TraceError(f"{file} is a damaged export of Nsight Systems: {error}") from None


class _Reader:
    """Reads the tables of one export."""

    def __init__(self, database: sqlite3.Connection, file: Path) -> None:
        self._database = database
        self._file = file
        self._report = _Report()
        # Views are not read: one with the name of a table could run forever.
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        wanted = ("StringIds", KERNELS, RUNTIME, RANGES)
        self._tables = {
            name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')}
            for (name,) in names.fetchall()
            if name in wanted or str(name).startswith(("TARGET_INFO_", "NVTX_PAYLOAD_"))
        }
        self._held = 0

    def read(self) -> _Report:
        if "StringIds" not in self._tables:
            raise TraceError(
                f"{self._file} is no SQLite export of Nsight Systems: it has no table StringIds"
            )
        self._about()
        if self._tables.get(KERNELS, set()) >= {"start", "end", "correlationId", "globalPid"}:
            self._kernels()
        if self._tables.get(RANGES, set()) >= {"start", "end", "globalTid"}:
            self._ranges()
        return self._report

    def _about(self) -> None:
        env = "TARGET_INFO_SYSTEM_ENV"
        if self._tables.get(env, set()) >= {"name", "value"}:
            rows = self._database.execute(f"SELECT value FROM {env} WHERE name = 'Hostname'")
            self._report.host = next((str(row[0])[:200] for row in rows), "")
        start = "TARGET_INFO_SESSION_START_TIME"
        if "utcEpochNs" in self._tables.get(start, set()):
            rows = self._database.execute(f"SELECT utcEpochNs FROM {start}")
            base = next((row[0] for row in rows), None)
            self._report.base_ns = base if isinstance(base, int) and base > 0 else None

    def _kernels(self) -> None:
        columns = self._tables[KERNELS]
        names = [one for one in ("demangledName", "shortName") if one in columns]
        if not names:
            return
        launched = self._launched(names[0])
        kernels: dict[str, KernelName | None] = {}
        sql = f"""SELECT k.start, k."end", k.correlationId, k.globalPid,
            {_or_zero(columns, "k", "deviceId")}, {_or_zero(columns, "k", "streamId")}, s.value
            FROM {KERNELS} k JOIN StringIds s ON s.id = k.{names[0]}
            WHERE k.{names[0]} IN {NAMES}"""
        for start, stop, link, global_pid, device, stream, text in self._database.execute(sql):
            if not all(isinstance(one, int) for one in (start, stop, link, global_pid)):
                continue
            if text not in kernels:
                kernels[text] = kernel_name(str(text).removeprefix("void "))
            name = kernels[text]
            if name is None or not self._room():
                continue
            at = launched.get((global_pid & ~THREAD_MASK, link))
            process = self._report.process(global_pid)
            spot = f"{stream}" if not device else f"{stream} of GPU {device}"
            process.kernels.append(Kernel(start, max(start, stop), name, spot, at))

    def _launched(self, name: str) -> dict[tuple[int, int], tuple[int, int]]:
        """Process and correlation of the launches of NCCL's kernels -> thread and time."""
        if not self._tables.get(RUNTIME, set()) >= {"start", "correlationId", "globalTid"}:
            return {}
        sql = f"""SELECT globalTid, correlationId, start FROM {RUNTIME} WHERE correlationId IN
            (SELECT correlationId FROM {KERNELS} WHERE {name} IN {NAMES})"""
        found: dict[tuple[int, int], tuple[int, int]] = {}
        for thread, link, start in self._database.execute(sql):
            if len(found) >= HELD_MAX:
                break
            if all(isinstance(one, int) for one in (thread, link, start)):
                found[thread & ~THREAD_MASK, link] = (thread, start)
        return found

    def _ranges(self) -> None:
        columns = self._tables[RANGES]
        payloads = Payloads()
        payloads.read(self._database, self._tables)
        text = "n.text" if "text" in columns else "NULL"
        join = ""
        if "textId" in columns:
            join = "LEFT JOIN StringIds s ON s.id = n.textId"
            text = f"coalesce({text}, s.value)"
        kind = f"AND n.eventType IN ({PUSH_POP}, {START_END})" if "eventType" in columns else ""
        extra = [
            "n.domainId" if "domainId" in columns else "NULL",
            "CAST(n.binaryData AS BLOB)" if "binaryData" in columns else "NULL",
            "n.jsonText" if "jsonText" in columns else "NULL",
        ]
        sql = f"""SELECT n.start, n."end", n.globalTid, {text} AS name, {", ".join(extra)}
            FROM {RANGES} n {join} WHERE name LIKE 'nccl%' {kind}"""
        for start, stop, thread, name, domain, blob, json in self._database.execute(sql):
            if not all(isinstance(one, int) for one in (start, stop, thread)) or not self._room():
                continue
            payload = payloads.of_blob(domain, blob) or of_json(json)
            one = Range(start, max(start, stop), str(name)[:100], thread, payload)
            self._report.process(thread).ranges.append(one)

    def _room(self) -> bool:
        self._held += 1
        if self._held > HELD_MAX:
            self._report.damage = f"only the first {HELD_MAX} events of NCCL were read"
        return self._held <= HELD_MAX


def _or_zero(columns: set[str], table: str, name: str) -> str:
    return f"{table}.{name}" if name in columns else "0"
