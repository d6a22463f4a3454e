"""Reads dumps of PyTorch's Flight Recorder: what each rank last called, and where it stood.

ProcessGroupNCCL writes one file for each rank when its watchdog finds a timeout, as pickle, and
torch.distributed's HTTP handler gives JSON (torch/csrc/distributed/c10d/FlightRecorder.hpp).
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from transport.ground.collectives import PER_RANK
from transport.trace.imported import Import, Source, hashed, size_of
from transport.trace.layout import TraceError
from transport.trace.torch_names import function_of, nccl_type

FILE_BYTES_MAX = 256 << 20
ENTRIES_MAX = 1_000_000
FRAMES_MAX = 32  # of a stack; deeper frames are left out
TEXT_MAX = 400
RANK_IN_NAME = re.compile(r"(\d{1,9})(?:\.(?:json|pkl|pickle|bin))?(?:\.gz)?$")
PAIR = re.compile(r"(\d{1,9})\s*(->|<-)\s*(\d{1,9})")
STATES = ("scheduled", "started", "completed")


class _BuiltinsOnly(pickle.Unpickler):
    """Loads dictionaries, lists, texts and numbers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it names an object outside of the file")


@dataclass(frozen=True)
class _Group:
    """A process group. ranks: of the job, in the group's order; empty: not told."""

    name: str
    label: str
    ranks: tuple[int, ...]


class FlightDumps:
    """Reads dumps one after the other; each is of one rank."""

    def __init__(self) -> None:
        self.found = Import("flight")
        self._ranks: set[int] = set()

    def read(self, file: Path) -> None:
        """Reads one dump. TraceError if the file is none."""
        dump = _load(file)
        entries = dump.get("entries")
        if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
            raise TraceError(f"{file} is no dump of the Flight Recorder: it has no entries")
        named = RANK_IN_NAME.search(file.name)
        rank = _whole(dump.get("rank"))
        if rank is None and named is not None:
            rank = int(named[1])
        if rank is None:
            raise TraceError(f"{file} does not tell its rank: name it nccl_trace_rank_N")
        if rank in self._ranks:
            raise TraceError(f"{file} is another dump of rank {rank}: import one job at a time")
        self._ranks.add(rank)
        groups = _groups(dump.get("pg_config"))
        sizes = [len(one.ranks) for one in groups.values()]
        world = max(sizes, default=0)
        host = dump.get("hostname")
        source = self.found.source(
            rank,
            file,
            host=host if isinstance(host, str) else "",
            pid=_whole(dump.get("pid")),
            rank=rank,
            world_size=world or None,
        )
        _File(self.found, source, rank, groups).add(entries)

    def finish(self) -> Import:
        """Everything that was read from all dumps."""
        if self.found.read["operations"] == 0:
            self.found.notes.append("there are no operations: no entry is of NCCL")
        if self.found.read["operations that have not ended"]:
            self.found.notes.append(
                "a dump is taken to be as old as its oldest operation's timeout: dumps do not tell "
                "when they were written"
            )
        return self.found


class _File:
    """Adds the entries of one dump to `found`."""

    def __init__(self, found: Import, source: Source, rank: int, groups: dict[str, _Group]) -> None:
        self._found = found
        self._source = source
        self._rank = rank
        self._groups = groups
        self._comms: dict[str, int] = {}

    def add(self, entries: list[Any]) -> None:
        last: dict[str, Any] | None = None
        for entry in entries:
            if not isinstance(entry, dict) or not isinstance(entry.get("profiling_name"), str):
                self._found.unknown["entries that are no calls"] += 1
                continue
            if self._operation(entry):
                last = entry
        if last is not None:
            self._stack(last)

    def _operation(self, entry: dict[str, Any]) -> bool:
        name = str(entry["profiling_name"]).removeprefix("nccl:")
        function = function_of(name)
        if function is None:
            self._found.unknown[name[:40] or "no name"] += 1
            return False
        group = self._group(entry)
        begin_ns = _whole(entry.get("time_created_ns"))
        ended = entry.get("state") == "completed" or entry.get("retired") is True
        end_ns = max(_whole(entry.get("time_discovered_completed_ns")) or 0, begin_ns or 0)
        p2p = function in ("Send", "Recv")
        sequence = _whole(entry.get("p2p_seq_id" if p2p else "collective_seq_id"))
        datatype = _datatype(entry)
        count = _count(function, entry, len(group.ranks))
        self._found.read["operations"] += 1
        self._found.add(
            "operations",
            self._source,
            id=self._source.next_id(),
            comm=self._comm(group),
            function=function,
            kind="p2p" if p2p else "collective",
            count=count,
            datatype=datatype,
            bytes=size_of(datatype, count),
            algorithm="",
            protocol="",
            root=_peer(name) if p2p else None,
            tag=0,
            captured=False,
            called_ns=None,
            begin_ns=begin_ns,
            end_ns=end_ns if ended else None,
            sequence=sequence,
        )
        if not ended:
            self._found.read["operations that have not ended"] += 1
            timeout_ms = _whole(entry.get("timeout_ms"))
            if begin_ns is not None and timeout_ms is not None and timeout_ms > 0:
                self._source.saw(begin_ns + timeout_ms * 1_000_000)
        return True

    def _stack(self, entry: dict[str, Any]) -> None:
        """The Python stack of the rank's last call."""
        frames = entry.get("frames")
        if not isinstance(frames, list):
            return
        for depth, frame in enumerate(frames[:FRAMES_MAX]):
            if isinstance(frame, dict):
                where = f"{frame.get('filename', '?')}:{frame.get('line', '?')}"
                self._found.add(
                    "events",
                    self._source,
                    time_ns=_whole(entry.get("time_created_ns")),
                    what="python_frame",
                    peer=f"{where} in {frame.get('name', '?')}"[:TEXT_MAX],
                    value=depth,
                )

    def _group(self, entry: dict[str, Any]) -> _Group:
        named = entry.get("process_group")
        words = [str(one)[:TEXT_MAX] for one in named] if isinstance(named, list) else []
        name = words[0] if words else str(entry.get("pg_id", ""))
        known = self._groups.get(name)
        return known if known is not None else _Group(name, words[-1] if words else name, ())

    def _comm(self, group: _Group) -> int:
        known = self._comms.get(group.name)
        if known is None:
            known = self._comms[group.name] = self._source.next_id()
            self._found.read["communicators"] += 1
            inside = self._rank in group.ranks
            self._found.add(
                "comms",
                self._source,
                id=known,
                comm_id=hashed("flight", group.name, group.ranks),
                name=group.label,
                ranks=len(group.ranks) or None,
                rank=group.ranks.index(self._rank) if inside else None,
            )
        return known


def _load(file: Path) -> dict[str, Any]:
    """The dictionary in a dump. TraceError if the file is damaged or could run code."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise TraceError(f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB: it is no dump")
        data = file.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as zipped:
                data = zipped.read(FILE_BYTES_MAX + 1)
    except (OSError, EOFError) as error:
        raise TraceError(f"cannot read {file}: {error.args[-1]}") from None
    try:
        is_pickle = data[:1] == b"\x80"
        found = _BuiltinsOnly(io.BytesIO(data)).load() if is_pickle else json.loads(data)
    except (ValueError, RecursionError, MemoryError, pickle.UnpicklingError, EOFError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{file} is no dump of the Flight Recorder: {text}") from None
    except Exception as error:  # the unpickler raises whatever a damaged file leads it to
        kind = type(error).__name__
        raise TraceError(f"{file} is no dump of the Flight Recorder: {kind}") from None
    if not isinstance(found, dict):
        raise TraceError(f"{file} is no dump of the Flight Recorder: it is no dictionary")
    return found


def _groups(config: Any) -> dict[str, _Group]:
    """Name of each process group -> the group."""
    made: dict[str, _Group] = {}
    for key, one in config.items() if isinstance(config, dict) else ():
        if not isinstance(one, dict):
            continue
        ranks = one.get("ranks")
        if isinstance(ranks, str) and len(ranks) < TEXT_MAX * 100:
            try:
                ranks = json.loads(ranks)
            except (ValueError, RecursionError):
                ranks = None
        known = [_whole(rank) for rank in ranks] if isinstance(ranks, list) else []
        whole = tuple(rank for rank in known if rank is not None and rank >= 0)
        name = str(one.get("name", key))[:TEXT_MAX]
        label = str(one.get("desc") or name)[:TEXT_MAX]
        made[str(key)[:TEXT_MAX]] = _Group(name, label, whole if len(whole) == len(known) else ())
    return made


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 63:
        return None
    return value


def _datatype(entry: dict[str, Any]) -> str | None:
    for name in ("input_dtypes", "output_dtypes"):
        words = entry.get(name)
        if isinstance(words, list) and words and isinstance(words[0], str):
            return nccl_type(words[0][:40])
    return None


def _elements(sizes: Any) -> int | None:
    """The elements of all tensors of a call; None: not told."""
    if not isinstance(sizes, list) or not sizes:
        return None
    total = 0
    for shape in sizes:
        if not isinstance(shape, list) or not all(_whole(one) is not None for one in shape):
            return None
        total += prod(shape)
    return total if 0 <= total < 1 << 62 else None


def _count(function: str, entry: dict[str, Any], ranks: int) -> int | None:
    """NCCL's argument `count`: the elements of one rank's part."""
    into, out = _elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))
    if function in ("ReduceScatter", "Scatter", "Recv"):
        return out
    if function in PER_RANK and function not in ("AllGather", "Gather"):
        return into // ranks if into is not None and ranks else None
    return into


def _peer(name: str) -> int | None:
    """The other rank of a send or receive, from its name: "send 0->1", "recv 1<-0"."""
    ends = PAIR.search(name)
    return int(ends[3]) if ends is not None else None
