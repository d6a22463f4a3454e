"""Reads operations and kernels of NCCL from traces of PyTorch's profiler (Kineto, Chrome JSON)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport.ground.collectives import PER_RANK
from transport.trace.file_names import NamedError, host_of, rank_of
from transport.trace.imported import Import, Source, hashed, size_of
from transport.trace.json_stream import JsonError, read_object
from transport.trace.kernel_names import kernel_name
from transport.trace.kineto_calls import INTO, LAUNCHES, OUT, SIZE, Event, args_of, matched, time_of
from transport.trace.layout import TraceError
from transport.trace.torch_names import function_of, nccl_type

RANKS_MAX = 1 << 20  # maximum number of ranks of a group
HELD_MAX = 2_000_000  # maximum number of NCCL's events that are read from a file
RECORD = "record_param_comms"
NAME = "Collective name"
# Names of events that are no operations: waits, and groups whose operations are events as well.
NO_OPERATIONS = {"wait", "coalesced", "init", "end_coalescing", "start_coalescing"}
# Fields and arguments of an event that are kept.
FIELDS = ("name", "ts", "dur", "pid", "tid")
ARGS = (
    *(NAME, "External id", "dtype", INTO, OUT, SIZE, "Seq", "stream", "correlation"),
    *("Process Group Name", "Process Group Description", "Process Group Ranks"),
    *("Global rank start", "Global rank stride", "Dst Rank", "Src Rank", "Root Rank"),
    *("Input Dims", "Input dims", "Input type"),
)
GROUP_ARGS = ("Process Group Name", "Process Group Ranks", "Global rank start")
UNNAMED = "unnamed"  # argument of calls that do not name their process group
UNPLACED = "operations of unknown communicators"
ASSUMED = "operations that count as of all ranks"


@dataclass(slots=True)
class _Contents:
    """The parts of one file that are read.

    calls: records of operations with their arguments. annotations: named ranges, which are the
    operations of a file without such records. around: other records, and PyTorch's operators.
    kernels: NCCL's kernels. launches: process, thread, time and correlation of each.
    """

    info: dict[str, Any] = field(default_factory=dict)
    base_ns: int = 0
    events: int = 0
    calls: list[Event] = field(default_factory=list)
    annotations: list[Event] = field(default_factory=list)
    around: list[Event] = field(default_factory=list)
    launches: list[tuple[Any, Any, float, int]] = field(default_factory=list)
    kernels: list[Event] = field(default_factory=list)
    damage: str = ""


@dataclass(frozen=True, slots=True)
class _Group:
    """A process group. ranks: its members as ranks of the job, if they are known."""

    id: int
    name: str
    size: int | None
    ranks: tuple[int, ...]

    def rank_of(self, rank: int | None) -> int | None:
        return self.ranks.index(rank) if rank is not None and rank in self.ranks else None


class KinetoTraces:
    """Reads traces one after the other; each is of one process.

    assume_world: operations that tell no communicator are taken for those of all ranks.
    """

    def __init__(self, assume_world: bool = False) -> None:
        self.found = Import("kineto")
        self._assume_world = assume_world

    def read(self, file: Path) -> None:
        """Reads one trace. TraceError if the file is not a trace of Kineto."""
        contents = _read(file)
        self.found.read["events"] += contents.events
        calls = contents.calls or contents.annotations
        host, pid = host_of(file.name)
        rank = self._rank(file, contents)
        if pid is None:
            pid = next((_whole(one.get("pid")) for one in calls), None)
        source = self.found.source(
            len(self.found.sources),
            file,
            host=host,
            pid=pid,
            rank=rank,
            damage=contents.damage,
            world_size=_whole(contents.info.get("world_size")),
        )
        _File(self.found, source, contents, rank, self._assume_world).add(calls)

    def _rank(self, file: Path, contents: _Contents) -> int | None:
        """The rank that the trace tells, else that of the file's name."""
        told = _whole(contents.info.get("rank"))
        named = _rank_of(file, told is not None)
        if told is not None and named is not None and told != named:
            self.found.notes.append(f"{file.name} is of rank {told}, by its distributedInfo")
        return named if told is None else told

    def finish(self) -> Import:
        """Everything that was read from all traces."""
        ranks = [one.facts.get("rank") for one in self.found.sources.values()]
        known = [one for one in ranks if one is not None]
        if len(set(known)) < len(known):
            self.found.notes.append("several files are of the same rank: sums count all of them")
        if len(known) < len(ranks):
            count = len(ranks) - len(known)
            self.found.notes.append(
                f"{count} files do not tell their rank (distributedInfo): name them rankN.json"
            )
        if self.found.read["operations"] == 0:
            self.found.notes.append(
                f"there are no operations: no event is named {RECORD} or nccl:..."
            )
        self._note_groups()
        return self.found

    def _note_groups(self) -> None:
        assumed, unplaced = self.found.read[ASSUMED], self.found.read[UNPLACED]
        if assumed:
            self.found.notes.append(
                f"{assumed} operations do not tell their communicator: they count as operations of "
                "all ranks (--assume-world)"
            )
        if unplaced:
            self.found.notes.append(
                f"{unplaced} operations do not tell which ranks take part, so who sent what is not "
                "known: if the job has no other process groups, import with --assume-world"
            )


def _rank_of(file: Path, told: bool = False) -> int | None:
    try:
        return rank_of(file.name)
    except NamedError as error:
        if told:
            return None
        raise TraceError(f"{file}: {error}") from None


class _File:
    """Adds the rows of one file to `found`."""

    def __init__(
        self,
        found: Import,
        source: Source,
        contents: _Contents,
        rank: int | None,
        assume_world: bool,
    ) -> None:
        self._found = found
        self._source = source
        self._contents = contents
        self._rank = rank
        self._world = _whole(contents.info.get("world_size"))
        self._assume_world = assume_world
        self._configs = _configs(contents.info)
        self._comms: dict[_Group, int] = {}
        self._counts: dict[int, int] = {}
        self._streams: dict[int, int | None] = {}

    def add(self, calls: list[Event]) -> None:
        launched = matched(calls, self._contents.around, self._contents.launches)
        known: dict[int, Event] = {}
        for one in calls:
            link = _whole(args_of(one).get("External id"))
            if link is not None:
                # If several operations have a kernel's External id, the first gets the kernel.
                known.setdefault(link, one)
        kernels: dict[int, list[Event]] = {}
        alone = []
        for one in self._contents.kernels:
            call = self._call_of(one, known, launched)
            if call is None:
                alone.append(one)
            else:
                kernels.setdefault(id(call), []).append(one)
        # With newer versions of PyTorch a kernel names its collective: no CPU event is needed.
        described = [one for one in alone if isinstance(args_of(one).get(NAME), str)]
        events = [(one, False) for one in calls] + [(one, True) for one in described]
        events.sort(key=lambda pair: time_of(pair[0], "ts"))
        of_events = [
            (one, [one] if is_kernel else kernels.get(id(one), []), is_kernel)
            for one, is_kernel in events
        ]
        self._read_streams(of_events)
        for one, own, is_kernel in of_events:
            self._operation(one, own, is_kernel)
        taken = set(map(id, described))
        for one in alone:
            if id(one) not in taken:
                self._kernel(one, None)
                self._found.read["kernels of no known operation"] += 1

    def _call_of(
        self, kernel: Event, known: dict[int, Event], launched: dict[int, Event]
    ) -> Event | None:
        """The call of a kernel, by External id, or by the launch with its correlation.

        Versions before 2.2 write the correlation as the External id, which then names no call.
        """
        args = args_of(kernel)
        link, correlation = (_whole(args.get(one)) for one in ("External id", "correlation"))
        if link is not None and (link != correlation or not self._contents.launches):
            call = known.get(link)
            if call is not None:
                return call
        return None if correlation is None else launched.get(correlation)

    def _read_streams(self, events: list[tuple[Event, list[Event], bool]]) -> None:
        """PyTorch has a stream for each communicator; notes the sizes that its calls tell."""
        for event, kernels, _ in events:
            args = args_of(event)
            stream = _stream(kernels)
            if stream is None or any(name in args for name in GROUP_ARGS):
                continue
            size = _whole(args.get(SIZE))
            known = self._streams.setdefault(stream, size)
            self._streams[stream] = size if known is None else known

    def _add_group(self, args: dict[str, Any], kernels: list[Event]) -> None:
        """Adds what is known of the communicator of a call that does not name it."""
        if any(name in args for name in GROUP_ARGS):
            return
        stream = _stream(kernels)
        size = _whole(args.get(SIZE))
        if size is None and stream is not None:
            size = self._streams.get(stream)
        if size is None and self._assume_world and self._world is not None:
            size = self._world
            self._found.read[ASSUMED] += 1
        if size is not None:
            args[SIZE] = size
        if size is None or size != self._world:
            self._found.read[UNPLACED] += 1
        # The streams of several ranks have different numbers.
        order = [*self._streams].index(stream) if stream in self._streams else -1
        args["Process Group Name"] = f"stream {order}" if stream is not None else ""
        args[UNNAMED] = True

    def _operation(self, event: Event, kernels: list[Event], is_kernel: bool) -> None:
        args = args_of(event)
        name = args.get(NAME)
        if not isinstance(name, str):
            name = str(event.get("name", "")).removeprefix("nccl:")
        if name in NO_OPERATIONS:
            self._found.read["waits"] += 1
            return
        function = function_of(name)
        if function is None:
            self._found.unknown[name[:40] or "no name"] += 1
            return
        self._add_group(args, kernels)
        group = self._group(args)
        comm = self._comm(group)
        word = args.get("dtype")
        datatype = nccl_type(word) if isinstance(word, str) else _kernel_type(kernels)
        count = _count(function, args, group.size)
        p2p = function in ("Send", "Recv")
        begin_ns, end_ns = self._span(event)
        # For a kernel without its call, the call's end is unknown, so it is set to the begin.
        row: dict[str, Any] = {
            "id": self._source.next_id(),
            "comm": comm,
            "function": function,
            "kind": "p2p" if p2p else "collective",
            "count": count,
            "datatype": datatype,
            "bytes": size_of(datatype, count),
            "algorithm": _algorithm(function, kernels),
            "protocol": "",
            "root": _root(args),
            "tag": 0,
            "captured": False,
            "called_ns": None,
            "begin_ns": begin_ns,
            "end_ns": begin_ns if is_kernel else end_ns,
            "sequence": _sequence(args, None if p2p else self._counts.get(comm, 0)),
        }
        if not p2p:
            self._counts[comm] = self._counts.get(comm, 0) + 1
        self._found.read["operations"] += 1
        self._found.add("operations", self._source, **row)
        for one in kernels:
            self._kernel(one, row["id"])

    def _kernel(self, event: Event, operation: int | None) -> None:
        begin_ns, end_ns = self._span(event)
        if begin_ns is None or end_ns is None:
            return
        self._found.read["kernels"] += 1
        self._found.add(
            "kernels",
            self._source,
            id=self._source.next_id(),
            operation=operation,
            gpu_start_ns=begin_ns,
            gpu_stop_ns=end_ns,
            time_ns=end_ns,
        )

    def _span(self, event: Event) -> tuple[int | None, int | None]:
        """Begin and end of an event, in nanoseconds since 1970."""
        ts, took = time_of(event, "ts"), time_of(event, "dur")
        if not math.isfinite(ts):
            return None, None
        begin_ns = self._contents.base_ns + round(ts * 1000)
        return begin_ns, begin_ns + round(took * 1000) if math.isfinite(took) else None

    def _group(self, args: dict[str, Any]) -> _Group:
        name = args.get("Process Group Name")
        text = str(name)[:200] if isinstance(name, str | int) else ""
        config = self._configs.get(text, {})
        ranks = _ranks(config.get("ranks")) or _ranks(args.get("Process Group Ranks"))
        start, stride = (_whole(args.get(f"Global rank {word}")) for word in ("start", "stride"))
        size = _whole(args.get(SIZE)) or len(ranks) or None
        if not ranks and start is not None and stride and size and 0 < size <= RANKS_MAX:
            ranks = tuple(range(start, start + size * stride, stride))
        if not ranks and size is not None and size == self._world:
            ranks = tuple(range(min(size, RANKS_MAX)))
        described = args.get("Process Group Description") or config.get("pg_desc")
        label = described if isinstance(described, str) and described != "undefined" else text
        # Nothing tells that two processes' communicators without name and ranks are the same.
        own = (self._source.number,) if UNNAMED in args and not ranks else ()
        return _Group(hashed("kineto", text, ranks, size, *own), label[:200], size, ranks)

    def _comm(self, group: _Group) -> int:
        known = self._comms.get(group)
        if known is None:
            known = self._comms[group] = self._source.next_id()
            self._found.read["communicators"] += 1
            self._found.add(
                "comms",
                self._source,
                id=known,
                comm_id=group.id,
                name=group.name,
                ranks=group.size,
                rank=group.rank_of(self._rank),
            )
        return known


def _read(file: Path) -> _Contents:
    """Reads events of operations and NCCL's kernels. TraceError if the file is no Kineto trace."""
    contents = _Contents()
    has_events = False
    try:
        for name, value in read_object(file, "traceEvents"):
            if name == "traceEvents":
                has_events = True
                _sort_in(contents, value)
            elif name == "distributedInfo" and isinstance(value, dict):
                contents.info = value
            elif name == "baseTimeNanoseconds":
                contents.base_ns = _whole(value) or 0
    except JsonError as error:
        if not (has_events and error.ends_early):
            raise TraceError(f"{file} is no trace of PyTorch's profiler: {error}") from None
        contents.damage = "the file ends early"
    if not has_events:
        raise TraceError(f"{file} is no trace of PyTorch's profiler: it has no traceEvents")
    return contents


def _sort_in(contents: _Contents, event: Any) -> None:
    contents.events += 1
    if not isinstance(event, dict) or event.get("ph") != "X":
        return
    name, kind = event.get("name"), event.get("cat")
    if not isinstance(name, str):
        return
    kept: list[Event]
    if kind == "kernel" and kernel_name(name) is not None:
        kept = contents.kernels
    elif name == RECORD and NAME in args_of(event):
        if not contents.calls:
            # Such records tell everything, so the events around and in them are not needed.
            contents.around.clear()
            contents.annotations.clear()
        kept = contents.calls
    elif name.startswith(LAUNCHES):
        _add_launch(contents, event)
        return
    elif contents.calls:
        return
    elif name.startswith("nccl:") and kind != "gpu_user_annotation":
        kept = contents.annotations
    elif name == RECORD or name.startswith("c10d::"):
        kept = contents.around
    else:
        return
    lists = (contents.calls, contents.kernels, contents.annotations, contents.around)
    if sum(map(len, lists)) >= HELD_MAX:
        contents.damage = f"only the first {HELD_MAX} events of NCCL were read"
        return
    args = args_of(event)
    slim: Event = {one: event[one] for one in FIELDS if one in event}
    slim["args"] = {one: args[one] for one in ARGS if one in args}
    kept.append(slim)


def _add_launch(contents: _Contents, event: Event) -> None:
    correlation, at = _whole(args_of(event).get("correlation")), time_of(event, "ts")
    if correlation is None or not math.isfinite(at):
        return
    if len(contents.launches) >= HELD_MAX:
        contents.damage = f"only the first {HELD_MAX} launches of kernels were read"
        return
    contents.launches.append((event.get("pid"), event.get("tid"), at, correlation))


def _whole(value: Any) -> int | None:
    """A whole number from a JSON number or from text; None: the value is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value):
        return int(value)
    return value if isinstance(value, int) and abs(value) < 1 << 63 else None


def _ranks(value: Any) -> tuple[int, ...]:
    """The ranks of a group, from a list or its text; () if the list is not complete."""
    if isinstance(value, str) and len(value) < 16 * RANKS_MAX and "..." not in value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return ()
    if not isinstance(value, list) or len(value) > RANKS_MAX:
        return ()
    ranks = tuple(_whole(one) for one in value)
    known = tuple(one for one in ranks if one is not None and 0 <= one < 1 << 31)
    return known if len(set(known)) == len(ranks) else ()


def _configs(info: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name of a process group -> its entry in distributedInfo."""
    entries = info.get("pg_config")
    pairs: Iterator[Any] = iter(entries if isinstance(entries, list) else [])
    return {str(one.get("pg_name")): one for one in pairs if isinstance(one, dict)}


def _count(function: str, args: dict[str, Any], ranks: int | None) -> int | None:
    """NCCL's argument `count`, from the numbers of elements of the input and the output."""
    into, out = _whole(args.get("In msg nelems")), _whole(args.get("Out msg nelems"))
    if function in ("ReduceScatter", "Scatter") and out is not None:
        return out
    if function in PER_RANK and function not in ("AllGather", "Gather"):
        return into // ranks if into is not None and ranks else None
    return into


def _root(args: dict[str, Any]) -> int | None:
    """The peer of a Send or Recv, or the root of a collective if the event has it."""
    found = (_whole(args.get(name)) for name in ("Dst Rank", "Src Rank", "Root Rank"))
    return next((one for one in found if one is not None and one >= 0), None)


def _sequence(args: dict[str, Any], count: int | None) -> int | None:
    given = _whole(args.get("Seq"))
    return count if given is None or given < 0 else given


def _algorithm(function: str, kernels: list[Event]) -> str:
    """The algorithm in the names of the kernels; "": unknown.

    RING may also be NVLS, CollNet or PAT, if NCCL runs them in a kernel with the ring's name.
    """
    if function in ("Send", "Recv", "AlltoAll", "Barrier"):
        return ""
    found = (kernel_name(str(one.get("name"))) for one in kernels)
    return next((one.algorithm for one in found if one and one.algorithm), "")


def _kernel_type(kernels: list[Event]) -> str | None:
    found = (kernel_name(str(one.get("name"))) for one in kernels)
    return next((one.datatype for one in found if one and one.datatype), None)


def _stream(kernels: list[Event]) -> int | None:
    found = (_whole(args_of(one).get("stream")) for one in kernels)
    return next((one for one in found if one is not None), None)
