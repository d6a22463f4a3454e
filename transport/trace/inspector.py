"""Reads what NCCL's Inspector wrote: a line of JSON for each operation that ended.

The format is that of NCCL's repository, plugins/profiler/inspector (ext-profiler/inspector before
NCCL 2.30): README.md and inspector_json.cc, version v4.0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport.trace.imported import Import, Source
from transport.trace.layout import TraceError
from transport.trace.nccl_log import read_lines

ENDINGS = ("*.log", "*.log.gz", "*.jsonl", "*.jsonl.gz", "*.json", "*.json.gz")
LINE_MAX = 1 << 18  # bytes of a record; those with event traces of 64 channels have about 14,000
RANKS_MAX = 1 << 20
US_MAX = 1 << 53
NAMES = {"All2All": "AlltoAll", "AllToAll": "AlltoAll"}
FUNCTIONS = {
    *("AllReduce", "AllGather", "AllGatherV", "ReduceScatter", "Broadcast", "Reduce", "AlltoAll"),
    *("Send", "Recv"),
}
# Collectives between the first and the last of a function that were not written. NCCL counts the
# collectives of each function of a communicator.
_MISSING = """
SELECT coalesce(sum(span - count), 0)::BIGINT FROM (
  SELECT max(sequence)::HUGEINT - min(sequence) + 1 AS span, count(DISTINCT sequence) AS count
  FROM operations WHERE kind = 'collective' AND sequence IS NOT NULL
  GROUP BY process, comm, function)
"""


@dataclass(slots=True)
class _Comm:
    """A communicator at one of its ranks."""

    source: Source
    id: int
    rank: int
    ranks: int


@dataclass(slots=True)
class _Process:
    """slots: communicator -> its ranks in this process, in the order in which they were seen."""

    slots: dict[str, list[int]] = field(default_factory=dict)


class InspectorLogs:
    """Reads files one after the other; a file is of one process, which may have several GPUs."""

    def __init__(self) -> None:
        self.found = Import("inspector")
        self._processes: dict[tuple[str, int], _Process] = {}
        self._comms: dict[tuple[int, str, int], _Comm] = {}
        self._by_cpu = 0
        self._untimed = 0

    def read(self, path: Path) -> None:
        """Reads a file, or all files of a folder. TraceError if there is no record."""
        if not path.is_dir():
            self._read_file(path)
            return
        files = sorted({file for ending in ENDINGS for file in path.rglob(ending)})
        if not files:
            raise TraceError(f"{path} has no files of NCCL's Inspector: {', '.join(ENDINGS)}")
        for file in files:
            self._read_file(file)

    def finish(self) -> Import:
        """Everything that was read from all files."""
        self._name_ranks()
        notes = self.found.notes
        if not self.found.read["operations"]:
            notes.append("there are no operations: no record has coll_perf or p2p_perf")
            return self.found
        ((missing,),) = self.found.run(_MISSING)
        if missing:
            notes.append(
                f"{missing} collectives between the first and the last are not in the files: they "
                "were smaller than NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES, or dropped"
            )
        if self._untimed:
            notes.append(
                f"the files do not tell when {self._untimed} operations ran, only for how long: "
                "set NCCL_INSPECTOR_DUMP_VERBOSE=1"
            )
        if self._by_cpu:
            notes.append(f"{self._by_cpu} operations were timed by the CPU, not by the GPU")
        if any(len(ranks) > 1 for one in self._processes.values() for ranks in one.slots.values()):
            notes.append("processes with several GPUs count as one process for each GPU")
        return self.found

    def _read_file(self, file: Path) -> None:
        before = self.found.read["operations"]
        for line in read_lines(file, LINE_MAX):
            self.found.read["lines"] += 1
            record = _record(line)
            if record is None:
                self.found.read["lines that are no records"] += 1 if line.strip() else 0
            else:
                self._add(record, file)
        if self.found.read["operations"] == before:
            raise TraceError(
                f"{file} has no records of NCCL's Inspector: each line must be a JSON object with "
                "header, metadata, and coll_perf or p2p_perf"
            )

    def _add(self, record: dict[str, Any], file: Path) -> None:
        comm = self._comm(record["header"], _object(record.get("metadata")), file)
        if comm is None:
            self.found.unknown["records without a communicator"] += 1
            return
        p2p = "p2p_perf" in record
        perf = _object(record.get("p2p_perf" if p2p else "coll_perf"))
        word = "p2p" if p2p else "coll"
        name = perf.get(word)
        function = NAMES.get(name, name) if isinstance(name, str) else None
        if function not in FUNCTIONS:
            self.found.unknown[str(name)[:40]] += 1
            return
        times = _object(perf.get("event_trace_ts"))
        begin_ns, end_ns = (_ns(times.get(f"{word}_{which}_ts")) for which in ("start", "stop"))
        peer = _whole(perf.get("p2p_peer"), RANKS_MAX) if p2p else None
        operation = comm.source.next_id()
        self.found.read["operations"] += 1
        self.found.add(
            "operations",
            comm.source,
            id=operation,
            comm=comm.id,
            function=function,
            kind="p2p" if p2p else "collective",
            sequence=_whole(perf.get(f"{word}_sn"), 1 << 64),
            bytes=_whole(perf.get(f"{word}_msg_size_bytes"), 1 << 62),
            algorithm="",
            protocol="",
            root=peer,
            tag=0,
            captured=None,
            begin_ns=begin_ns,
            end_ns=end_ns if end_ns is None or begin_ns is None else max(begin_ns, end_ns),
        )
        self._add_time(comm.source, operation, perf, word, times)

    def _add_time(
        self, source: Source, operation: int, perf: dict[str, Any], word: str, times: dict[str, Any]
    ) -> None:
        """The time of the operation's kernel, which ended when its last channel did."""
        took_ns = _ns(perf.get(f"{word}_exec_time_us"))
        events = times.get("kernel_events")
        stops = [
            _ns(one.get("kernel_stop_ts"))
            for one in (events if isinstance(events, list) else ())
            if isinstance(one, dict)
        ]
        stop_ns = max((one for one in stops if one), default=None)
        self._untimed += stop_ns is None
        if not took_ns:
            return
        self._by_cpu += str(perf.get(f"{word}_timing_source", "")).endswith("_cpu")
        start_ns = 0 if stop_ns is None else max(stop_ns - took_ns, 0)
        self.found.read["times"] += 1
        self.found.add(
            "kernels",
            source,
            id=source.next_id(),
            operation=operation,
            gpu_start_ns=start_ns,
            gpu_stop_ns=start_ns + took_ns,
            time_ns=stop_ns,
        )

    def _comm(self, header: dict[str, Any], metadata: dict[str, Any], file: Path) -> _Comm | None:
        name = header.get("id")
        rank, ranks = (_whole(header.get(one), RANKS_MAX) for one in ("rank", "n_ranks"))
        if not isinstance(name, str) or rank is None or not ranks or rank >= ranks:
            return None
        host = metadata.get("hostname")
        host = host[:200] if isinstance(host, str) else ""
        pid = _whole(metadata.get("pid"), 1 << 32)
        # Without metadata, each file counts as a process.
        key = (host, pid) if pid is not None else (str(file), -1)
        slots = self._processes.setdefault(key, _Process()).slots.setdefault(name[:40], [])
        if rank not in slots:
            slots.append(rank)
        source = self.found.source((*key, slots.index(rank)), file, host=host, pid=pid)
        known = self._comms.get((source.number, name, rank))
        if known is None:
            known = _Comm(source, source.next_id(), rank, ranks)
            self._comms[source.number, name, rank] = known
            self._add_comm(known, name, header)
        return known

    def _add_comm(self, comm: _Comm, name: str, header: dict[str, Any]) -> None:
        label = header.get("comm_name")
        self.found.read["communicators"] += 1
        self.found.add(
            "comms",
            comm.source,
            id=comm.id,
            comm_id=_id(name),
            name=label[:200] if isinstance(label, str) and label != "unknown" else "",
            ranks=comm.ranks,
            nodes=_whole(header.get("nnodes"), RANKS_MAX),
            rank=comm.rank,
        )

    def _name_ranks(self) -> None:
        """A process's rank in the largest communicator is its rank in the job."""
        world = max((comm.ranks for comm in self._comms.values()), default=0)
        for comm in self._comms.values():
            if comm.ranks == world:
                comm.source.facts.setdefault("rank", comm.rank)
                comm.source.facts["world_size"] = world


def _record(line: str) -> dict[str, Any] | None:
    """The record in a line; None: it has none."""
    try:
        found = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("header"), dict):
        return None
    return found if "coll_perf" in found or "p2p_perf" in found else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any, limit: int) -> int | None:
    return value if type(value) is int and 0 <= value < limit else None


def _ns(value: Any) -> int | None:
    """Nanoseconds from microseconds; 0, which the Inspector writes for an unknown time: None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < US_MAX:
        return None
    return round(value * 1000)


def _id(name: str) -> int | None:
    """The number of a communicator's hash, such as 0x7f8c496ae9f661."""
    try:
        found = int(name, 16)
    except ValueError:
        return None
    return found if 0 <= found < 1 << 64 else None
