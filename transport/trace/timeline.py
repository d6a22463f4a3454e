"""Writes a trace as a timeline for Perfetto: tracks of ranks, communicators, channels and paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from transport.trace.perfetto import NANOSECONDS, Args, PerfettoWriter
from transport.trace.places import ChoiceError, Places, chosen_comms, places_of
from transport.trace.protobuf import MASK
from transport.trace.store import Store
from transport.trace.timeline_sql import SECTIONS, Section
from transport.trace.torch_names import COLLECTIVES, DATATYPES, elements, ranks_text

NAMED_MAX = 8  # ranks that an error names
FOREVER = 1 << 63
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Choice:
    """The part of the trace that is written.

    ranks: labels of rows as in a matrix; empty: all. comm: name or id of a communicator.
    from_ns, to_ns: what began in this span, in nanoseconds since the first record.
    limit: the largest number of events.
    """

    ranks: tuple[str, ...] = ()
    comm: str | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    limit: int = 1_000_000


@dataclass(slots=True)
class Written:
    """Numbers of events that were written, and left out.

    left_out: kind of events -> how many were cut by the limit.
    untimed: operations whose begin is not known.
    """

    events: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)
    untimed: int = 0


def write_timeline(store: Store, file: BinaryIO, choice: Choice | None = None) -> Written:
    """Writes the timeline. ChoiceError if the choice names what the trace does not have."""
    choice = choice or Choice()
    comms = chosen_comms(store, choice.comm)
    places = places_of(store, None, False)
    processes = _processes(store, places, choice.ranks, comms)
    ((first_ns,),) = store.rows("SELECT coalesce(min(first_ns), 0) FROM processes")
    timeline = _Timeline(store, file, places, processes, first_ns)
    written = Written()
    span = (None if ns is None else first_ns + ns for ns in (choice.from_ns, choice.to_ns))
    values = [processes, comms, *span]
    for section in SECTIONS:
        before = timeline.writer.events
        _write_section(store, timeline, section, values, choice.limit)
        count = timeline.writer.events - before
        written.by_kind[section.name] = count
        if timeline.writer.events >= choice.limit:
            ((total,),) = store.rows(f"SELECT count(*) FROM ({section.sql})", *values)
            if total > count:
                written.left_out[section.name] = total - count
    timeline.writer.flush()
    written.events = timeline.writer.events
    sql = "SELECT count(*) FROM operations WHERE begin_ns IS NULL AND list_contains(?, process)"
    ((written.untimed,),) = store.rows(sql, processes)
    return written


def _write_section(
    store: Store, timeline: _Timeline, section: Section, values: list[Any], limit: int
) -> None:
    if timeline.writer.events >= limit:
        return
    add = timeline.adders[section.name]
    timeline.next_section()
    for rows in store.batches(f"{section.sql} ORDER BY {section.order}", *values):
        for row in rows:
            add(row)
            if timeline.writer.events >= limit:
                return


def _processes(
    store: Store, places: Places, ranks: tuple[str, ...], comms: list[int] | None
) -> list[int]:
    """The processes that are shown."""
    found = [process for (process,) in store.rows("SELECT process FROM processes ORDER BY 1")]
    if ranks:
        known = {places.labels[at]: at for at in places.of_process.values()}
        for one in ranks:
            if one not in known:
                said = ", ".join([*known][:NAMED_MAX]) + (", ..." if len(known) > NAMED_MAX else "")
                raise ChoiceError(f"the trace has no rank {one}; it has {said or 'none'}")
        rows = {known[one] for one in ranks}
        found = [process for process in found if places.of_process.get(process) in rows]
    if comms is not None:
        sql = "SELECT DISTINCT process FROM comms WHERE list_contains(?, comm_id)"
        members = {process for (process,) in store.rows(sql, comms)}
        found = [process for process in found if process in members]
    return found


class _Timeline:
    """The tracks that were described so far, and how a row of each kind is written."""

    def __init__(
        self,
        store: Store,
        file: BinaryIO,
        places: Places,
        processes: list[int],
        first_ns: int,
    ) -> None:
        self.writer = PerfettoWriter(file, first_ns)
        self.adders: dict[str, Callable[[Row], None]] = {
            "operations": self.add_operation,
            "events": self.add_event,
            "kernels": self.add_kernel,
            "channels": self.add_channel,
            "samples": self.add_sample,
            "messages": self.add_message,
            "stripes": self.add_stripe,
        }
        self._places = places
        self._tracks: dict[tuple[Any, ...], int] = {}
        # Names of a track -> [end of the last slice, number] of each track with these names.
        self._lanes: dict[tuple[Any, ...], list[list[int]]] = {}
        self._comms = {
            (row[0], row[1]): row[2:]
            for row in store.rows("SELECT process, id, comm_id, name, ranks, rank FROM comms")
        }
        self._groups = _groups(places)
        self._add_processes(store, processes)

    def next_section(self) -> None:
        self._lanes.clear()

    def _add_processes(self, store: Store, processes: list[int]) -> None:
        sql = "SELECT process, host, pid FROM processes ORDER BY process"
        known = [row for row in store.rows(sql) if row[0] in set(processes)]
        pids = [pid for _, _, pid in known]
        # Perfetto merges processes with the same id, even if they ran on different hosts.
        own = len(set(pids)) == len(pids) and all(0 < (pid or 0) < 1 << 31 for pid in pids)
        for process, host, pid in known:
            at = self._places.of_process.get(process)
            name = f"{host}:{pid}"
            if at is not None and self._places.what != "process":
                name = f"rank {self._places.labels[at]} ({name})"
            number = pid if own else process + 1
            self._tracks[process,] = self.writer.track(name, pid=number)

    def _track(self, *names: Any, unit: int | str | None = None) -> int:
        """The track with these names from the process down, described when it is first used."""
        known = self._tracks.get(names)
        if known is None:
            parent = self._track(*names[:-1])
            known = self._tracks[names] = self.writer.track(names[-1], parent, unit=unit)
        return known

    def _lane(self, names: tuple[Any, ...], begin_ns: int, end_ns: int | None) -> int:
        """A track with these names that has no other slice in this span.

        Perfetto shows tracks with the same name and parent as one.
        """
        lanes = self._lanes.setdefault(names, [])
        end = FOREVER if end_ns is None else max(begin_ns, end_ns)
        for lane in lanes:
            if lane[0] <= begin_ns:
                lane[0] = end
                return lane[1]
        at = len(lanes)
        track = self._tracks.get((*names, at))
        if track is None:
            parent = self._track(*names[:-1])
            track = self._tracks[(*names, at)] = self.writer.track(names[-1], parent)
        lanes.append([end, track])
        return track

    def _comm_names(self, process: int, comm: int | None) -> tuple[Any, ...]:
        facts = self._comms.get((process, comm)) if comm is not None else None
        if facts is None:
            return (process, "unknown communicator")
        comm_id, name, ranks, _ = facts
        of = f" of {ranks} ranks" if ranks else ""
        return (process, f"communicator {_group_name(name, comm_id)}{of}")

    def _channel_names(self, row: Row) -> tuple[Any, ...]:
        """Names of the track of a row: that of its channel, or of its connection if it has none."""
        process = row["process"]
        if row["channel"] is None:
            peer = row["connection_peer"] or "an unknown peer"
            return (process, f"connection {row['connection']} to {peer}")
        if row["channel_sends"] is None:
            way = ""
        else:
            way = f" to {row['peer']}" if row["channel_sends"] else f" from {row['peer']}"
        return (*self._comm_names(process, row["comm"]), f"channel {row['channel']}{way}")

    def add_operation(self, row: Row) -> None:
        ends = (row["end_ns"], row["used_ns"])
        end = max((one for one in ends if one is not None), default=None)
        names = self._comm_names(row["process"], row["comm"])
        function = row["function"] or "unknown"
        facts = self._comms.get((row["process"], row["comm"]), (None, None, None, None))
        name = event_name(function, facts[3], row["root"])
        args = self._operation_args(row, function, facts)
        track = self._lane((*names, "operations"), row["begin_ns"], end)
        self.writer.slice(track, name, row["begin_ns"], end, args)

    def _operation_args(self, row: Row, function: str, facts: tuple[Any, ...]) -> Args:
        comm_id, comm_name, ranks, rank = facts
        args: dict[str, Any] = {"Collective name": COLLECTIVES.get(function, ("", function))[1]}
        if row["count"] is not None:
            known = elements(function, row["count"], ranks or 1)
            if ranks or known[0] == known[1]:
                args["In msg nelems"], args["Out msg nelems"] = known
        args["Group size"] = ranks
        args["dtype"] = DATATYPES.get(row["datatype"] or "", row["datatype"])
        if comm_id is not None:
            args["Process Group Name"] = _group_name(comm_name, comm_id)
            args["Process Group Ranks"] = self._groups.get(comm_id)
            args["communicator"] = f"{comm_id:016x}"
        args["Rank"] = rank
        root = {"Send": "Dst Rank", "Recv": "Src Rank"}.get(function, "root")
        args[root] = row["root"]
        for name in ("bytes", "algorithm", "protocol", "channels", "sequence"):
            args[name] = row[name] if row[name] != "" else None
        args["tag"] = row["tag"] or None
        args["captured"] = row["captured"] or None
        args["enqueued for ns"] = None if row["end_ns"] is None else row["end_ns"] - row["begin_ns"]
        return args

    def add_channel(self, row: Row) -> None:
        names = self._channel_names(row)
        track = self._lane((*names, "work"), row["begin_ns"], row["end_ns"])
        args = {name: row[name] for name in CHANNEL_ARGS}
        name = row["function"] or ("send" if row["channel_sends"] else "receive")
        self.writer.slice(track, name, row["begin_ns"], row["end_ns"], args)

    def add_kernel(self, row: Row) -> None:
        names = self._comm_names(row["process"], row["comm"])
        track = self._lane((*names, "kernels"), row["begin_ns"], row["end_ns"])
        name = f"kernel of {row['function'] or 'an unknown operation'}"
        args = {"operation": row["operation"], "channel": row["channel"]}
        self.writer.slice(track, name, row["begin_ns"], row["end_ns"], args)

    def add_message(self, row: Row) -> None:
        names = (*self._channel_names(row), "messages")
        track = self._lane(names, row["begin_ns"], row["end_ns"])
        args = {name: row[name] for name in ("message", "bytes", "status", "connection")}
        arrows = [] if row["side"] is None else [arrow(row["pair"], row["side"], row["message"])]
        self.writer.slice(
            track,
            "send" if row["sends"] else "receive",
            row["begin_ns"],
            row["end_ns"],
            args,
            starts=arrows if row["sends"] else (),
            ends=() if row["sends"] else arrows,
        )

    def add_stripe(self, row: Row) -> None:
        path = f"path {row['path']}" if row["path"] >= 0 else "other paths"
        track = self._lane((*self._channel_names(row), path), row["begin_ns"], row["end_ns"])
        args = {name: row[name] for name in STRIPE_ARGS}
        args["share of the path"] = row["share"] / 255
        self.writer.slice(track, "segments", row["begin_ns"], row["end_ns"], args)

    def add_event(self, row: Row) -> None:
        if row["what"] == "cpu_wait" and row["status"] and row["value"] is not None:
            track = self._track(row["process"], "events", "without a CPU core", unit="%")
            # Perfetto shows a value from its time on, and a reading is of the time before it.
            since_ns = max(row["begin_ns"] - row["status"] * 1_000_000, 0)
            self.writer.count(track, since_ns, min(row["value"] // (row["status"] * 10_000), 100))
            return
        track = self._track(row["process"], "events")
        args = {name: row[name] for name in ("peer", "connection", "path", "value", "status")}
        self.writer.instant(track, row["what"] or "unknown", row["begin_ns"], args)

    def add_sample(self, row: Row) -> None:
        engine = f"engine {row['engine']} " if row["engine"] else ""
        name = f"{engine}path {row['path']} to {row['peer']}"
        process, at_ns = row["process"], row["begin_ns"]
        if row["rate"] is not None:
            track = self._track(process, "paths", f"{name}: rate", unit="bytes/s")
            self.writer.count(track, at_ns, row["rate"])
        if row["rtt_ns"] is not None and row["rtt_ns"] < FOREVER:
            track = self._track(process, "paths", f"{name}: round trip", unit=NANOSECONDS)
            self.writer.count(track, at_ns, row["rtt_ns"])


CHANNEL_ARGS = (
    *("bytes", "steps", "messages", "chunk_bytes", "steps_planned"),
    *("gpu_wait_ns", "peer_wait_ns", "network_wait_ns"),
)
STRIPE_ARGS = ("message", "bytes", "engine", "segments", "resent", "status")


def event_name(function: str, rank: int | None, root: int | None) -> str:
    """The name of an operation's event, as PyTorch's profiler writes it."""
    name = COLLECTIVES.get(function, (function, ""))[0]
    ends = {"Send": (rank, root), "Recv": (root, rank)}.get(function)
    if ends is None or None in ends:
        return f"nccl:{name}"
    arrow = "->" if function == "Send" else "<-"
    return f"nccl:{name} {rank}{arrow}{root}"


def arrow(pair: int, side: int, message: int) -> int:
    """The number of a message's arrow. pair, side: the connection, and which end of it sends."""
    mixed = (pair * 0x9E3779B97F4A7C15 + (message << 1 | side) * 0xC2B2AE3D27D4EB4F) & MASK
    return (mixed ^ mixed >> 29) or 1


def _group_name(name: str | None, comm_id: int | None) -> str:
    return name or (f"{comm_id:016x}" if comm_id is not None else "unknown")


def _groups(places: Places) -> dict[int, str]:
    """The ranks in the job of each communicator whose members are all known."""
    if places.what == "process":
        return {}
    rows: dict[int, dict[int, int]] = {}
    for (comm_id, rank), at in places.of_member.items():
        rows.setdefault(comm_id, {})[rank] = at
    return {
        comm_id: ranks_text([int(places.labels[own[rank]]) for rank in range(len(own))])
        for comm_id, own in rows.items()
        if sorted(own) == [*range(len(own))]
    }
