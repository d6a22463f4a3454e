"""Writes the trace of a simulated job: a file for each host, as a real process writes it.

Times are those of the virtual clock, as nanoseconds since 1970. `truth.json` beside the files has
what no host can know: queues, marks and losses at every port.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transport.ground import created
from transport.ground.collectives import PER_RANK
from transport.plan import routes
from transport.sim.network import Array
from transport.sim.program import BEGIN, END, LAUNCH, RECEIVE, ROOTED, SEND, Program
from transport.sim.result import Result
from transport.sim.trace_network import add_events, add_paths, add_stripes, routes_of
from transport.sim.work import Job
from transport.trace.write import TraceFile

PEER_DEAD = 5  # the status of native/core/status.h
# Time from the death of a process until its peers record it. In reality they notice it when the
# kernel closes its control sockets, which the simulator does not have.
DEATH_NOTICED_NS = 100_000
# A process notices that it was stopped if a thread that sleeps for WAKES_NS wakes up STALL_NS late.
STALL_NS, WAKES_NS = 100_000_000, 100_000_000
COMMUNICATOR_BASE = 0x5157_0000_0000_0000  # ids of communicators: this plus the index in _Run.comms


class _Run:
    """The transfers of a run with their operations, communicators and message numbers.

    Operations and communicators are numbered over all jobs.
    """

    def __init__(self, result: Result) -> None:
        work = result.scenario.work
        self.work, self.network = work, result.scenario.network
        self.transfers, self.times = work.transfers, result.transfers
        self.local, self.local_times = work.local, result.local
        self.comms: list[tuple[str, Array]] = []  # name, and hosts in the order of ranks
        self.operations: list[_Operation] = []
        # (operation, host) -> the call that the host makes instead, by a fault of kind wrong_call.
        self.wrong: dict[tuple[int, int], _Operation] = {}
        # The operation of each transfer at its sender and at its receiver.
        self.sent_by = np.zeros(len(self.transfers), np.int64)
        self.received_by = np.zeros(len(self.transfers), np.int64)
        self.first = np.zeros(len(work.jobs), np.int64)  # first operation of each job
        at = 0
        for number, job in enumerate(work.jobs):
            self.first[number] = len(self.operations)
            end = at + len(job.transfers)
            self.sent_by[at:end], self.received_by[at:end] = self._add(number, job)
            at = end
        # The lowest stream of each communicator, from which its channels are counted.
        self.first_stream = np.full(len(self.comms), np.iinfo(np.int64).max)
        of = np.array([one.comm for one in self.operations], np.int64)[self.sent_by]
        np.minimum.at(self.first_stream, of, self.transfers["stream"].astype(np.int64))
        self.alone = np.array([one.alone for one in self.operations], bool)
        self.comm = np.array([one.comm for one in self.operations], np.int64)
        ranks = np.full((len(self.comms), len(self.network.node_names)), -1, np.int32)
        for number, (_, hosts) in enumerate(self.comms):
            ranks[number, hosts] = np.arange(len(hosts))
        self.rank = ranks  # [communicator, host]; -1: the host is no member
        # Messages are numbered by connection, which is a stream from one host to another one.
        ends = self.transfers[["stream", "from", "to"]]
        _, self.connection = np.unique(ends, return_inverse=True)
        self.stream = _by_ends(self.transfers)
        self.traced = result.traced
        self.silences = result.scenario.silences
        self.ended_ns = int(result.totals["ended_ns"])
        order = np.argsort(self.connection, kind="stable")
        starts = np.searchsorted(self.connection[order], self.connection[order])
        self.message = np.zeros(len(self.transfers), np.int64)
        self.message[order] = np.arange(len(self.transfers)) - starts

    def stopped_ns(self, host: int) -> int | None:
        """When the host's process stopped for ever or died; None: it did neither."""
        times = [one.at_ns for one in self.silences if one.host == host and one.until_ns is None]
        return min(times, default=None)

    def pauses(self, host: int) -> list[tuple[int, int]]:
        """The times (from, until) between which the host's process was stopped, if it resumed."""
        return [
            (one.at_ns, one.until_ns)
            for one in self.silences
            if one.host == host and one.until_ns is not None
        ]

    def _add(self, number: int, job: Job) -> tuple[Array, Array]:
        """Adds a job's operations; returns those of its transfers, at sender and receiver."""
        name, hosts, first = self.work.names[number], self.work.hosts[number], self.first[number]
        if job.program is not None and job.turn is not None and job.received_turn is not None:
            self._add_program(name, hosts, job.program)
            return job.turn + first, job.received_turn + first
        self.comms.append((name, hosts))
        comm = len(self.comms) - 1
        if not job.function:
            sizes = job.transfers["bytes"].tolist()
            self.operations += [_Operation(comm, at, "", "", size) for at, size in enumerate(sizes)]
            own = np.arange(len(sizes))
        else:
            own = job.turn if job.turn is not None else np.zeros(len(job.transfers), np.int64)
            self.operations += [
                _Operation(comm, at, job.function, job.algorithm, job.buffer_bytes, root=job.root)
                for at in range(int(own.max(initial=-1)) + 1)
            ]
        return own + first, own + first

    def _add_program(self, name: str, hosts: Array, program: Program) -> None:
        """Adds a program's communicators and operations; no transfer belongs to a computation."""
        members: dict[int, dict[int, None]] = {}
        for one in program.operations:
            if one.function:
                there = members.setdefault(one.communicator, {})
                both = one.ranks if one.peers is None else np.concatenate([one.ranks, one.peers])
                there |= dict.fromkeys(both.tolist())
        base = {number: len(self.comms) + at for at, number in enumerate(members)}
        order = {number: np.array(sorted(ranks)) for number, ranks in members.items()}
        self.comms += [(f"{name} {number}", hosts[ranks]) for number, ranks in order.items()]
        wrong: dict[int, list[tuple[int, str, int]]] = {}
        for (at, rank), (function, size_bytes) in program.wrong.items():
            wrong.setdefault(at, []).append((int(hosts[rank]), function, size_bytes))
        counts: dict[tuple[int, str], int] = {}
        for at, one in enumerate(program.operations):
            for host, function, size_bytes in wrong.get(at, ()):
                # It has the number that its function's next call has.
                number = counts.get((one.communicator, function), 0)
                comm = base.get(one.communicator, 0)
                called = _Operation(comm, number, function, one.algorithm, size_bytes)
                self.wrong[len(self.operations), host] = called
            key = (one.communicator, one.function)
            counts[key] = counts.get(key, 0) + 1
            root = -1
            if one.function in ROOTED:
                root = int(np.searchsorted(order[one.communicator], one.ranks[one.root]))
            self.operations.append(
                _Operation(
                    base.get(one.communicator, 0),
                    counts[key] - 1,
                    one.function,
                    one.algorithm,
                    one.size_bytes,
                    one.function in (SEND, RECEIVE),
                    root,
                )
            )

    def step_name(self, job: int, operation: int) -> str:
        """The name of an operation of a job's program."""
        program = self.work.jobs[job].program
        assert program is not None
        return program.operations[operation].name


def _by_ends(transfers: Array) -> Array:
    """The number of each transfer's connection as the simulator numbers it."""
    _, numbers = np.unique(transfers[["from", "to", "stream"]], return_inverse=True)
    return numbers


@dataclass(frozen=True)
class _Operation:
    comm: int
    sequence: int
    function: str  # empty: a Send at the sender, a Recv at the receiver
    algorithm: str
    size_bytes: int  # 0: the ranks have buffers of different sizes
    is_message: bool = False
    root: int = -1  # rank of the communicator; -1: none

    @property
    def alone(self) -> bool:
        """Whether the operation is a single message, and not a collective."""
        return self.is_message or not self.function


def write_trace(result: Result, folder: Path) -> int:
    """Writes the files into the folder, creating it if needed; returns their number.

    A host has a file if it communicates or computes; if none does, every host of the jobs has one.
    A transfer that did not end has no record of its message, and its operation has no record of its
    end. OSError if a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(result)
    shown = np.array([not job.hidden for job in run.work.jobs], bool)[run.transfers["job"]]
    outgoing = _by_host(run.transfers["from"], shown)
    incoming = _by_host(run.transfers["to"], shown)
    none = np.zeros(0, np.int64)
    busy = outgoing.keys() | incoming.keys() | set(run.local["rank"].tolist())
    hosts = sorted(busy or {int(host) for own in run.work.hosts for host in own})
    world = len(hosts)
    for rank, host in enumerate(hosts):
        identity = {
            "host": run.network.node_names[host],
            "pid": str(host + 1),
            "clock": "simulated",
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "WEFT_TRACE_JOB": f"sim-{result.scenario.name}-{result.fingerprint}",
        }
        file = TraceFile(
            identity, ended_ns=run.ended_ns, until_ns=run.stopped_ns(host), pauses=run.pauses(host)
        )
        _fill(file, run, host, outgoing.get(host, none), incoming.get(host, none))
        _steps(file, run, host)
        # Differs between runs and hosts, so that traces of several runs can share a folder.
        number = (int(result.fingerprint, 16) ^ (host + 1) << 40) & 0xFFFF_FFFF_FFFF_FFFF
        file.write(folder / f"weft-{number:016x}-000000.trace")
    if run.traced is not None:
        routes_of(run.traced, run.network).write(folder / routes.FILE)
    created.write_output(folder / "truth.json", json.dumps(truth(result), indent=1) + "\n")
    return world


def truth(result: Result) -> dict[str, Any]:
    """The simulator's own counts of the network: one row for each port, and sums by tier."""
    network, ports = result.scenario.network, result.ports
    names = [name for name in ports.dtype.names or () if ports[name].ndim == 1]
    rows = [
        {"port": at} | {name: int(ports[name][at]) for name in names} for at in range(len(ports))
    ]
    ends = network.ports
    for row, end in zip(rows, ends, strict=True):
        row |= {
            name: network.node_names[int(end[name])]
            for name in ("from", "to")
            if name in (ends.dtype.names or ())
        }
    return {"fingerprint": result.fingerprint, "tiers": result.tiers, "ports": rows}


def _by_host(hosts: Array, shown: Array) -> dict[int, Array]:
    """Host -> the numbers of its transfers that are to be shown, in order."""
    if not shown.any():
        return {}
    order = np.argsort(hosts, kind="stable")
    order = order[shown[order]]
    found, starts = np.unique(hosts[order], return_index=True)
    return dict(zip(map(int, found), np.split(order, starts[1:]), strict=True))


def _fill(file: TraceFile, run: _Run, host: int, out: Array, into: Array) -> None:
    """Adds the records of one host. out, into: numbers of the transfers it sends and receives."""
    mine = np.concatenate([out, into])
    sends = np.repeat([True, False], [len(out), len(into)])
    operation = np.concatenate([run.sent_by[out], run.received_by[into]])
    comms = np.unique(run.comm[operation])
    ids = file.ids(len(comms))
    comm_of = np.zeros(len(run.comms), np.uint32)
    comm_of[comms] = ids
    sizes = [len(run.comms[comm][1]) for comm in comms]
    file.put(
        "communicator",
        ids,
        np.zeros(len(comms), np.int64),
        comm_id=COMMUNICATOR_BASE + comms.astype(np.uint64),
        name=[file.text(run.comms[comm][0]) for comm in comms],
        ranks=sizes,
        nodes=sizes,
        rank=run.rank[comms, host],
    )
    connection_of = _connections(file, run, host, mine, sends)
    ends = np.where(sends, run.times["sent_ns"][mine], run.times["received_ns"][mine])
    begun = _operations(file, run, host, mine, sends, ends, operation, comm_of)
    channel_of = _channels(file, run, mine, sends, ends, operation, comm_of, *begun)
    done = ends >= 0
    file.put(
        "message",
        file.ids(int(done.sum())),
        ends[done],
        message=run.message[mine][done],
        bytes=run.transfers["bytes"][mine][done],
        posted_ns=run.times["ready_ns"][mine][done],
        connection=connection_of[done],
        channel=channel_of[done],
        sends=sends[done],
    )
    _network(file, run, host, mine, done & sends, connection_of)


def _network(
    file: TraceFile, run: _Run, host: int, mine: Array, sent: Array, connection_of: Array
) -> None:
    """Adds how the host's messages crossed the network, if the run recorded it."""
    if run.traced is None:
        return
    which = mine[sent]
    add_stripes(
        file,
        run.traced,
        which,
        connection=connection_of[sent],
        message=run.message[which],
        size_bytes=run.transfers["bytes"][which],
        posted_ns=run.times["ready_ns"][which],
        end_ns=run.times["sent_ns"][which],
    )
    names = run.network.node_names
    paths, events = run.traced.paths_of(host), run.traced.events_of(host)
    for from_ns, until_ns in run.pauses(host):
        # Leave out what the host recorded while its process was stopped: it would record nothing.
        paths, events = (
            rows[(rows["at_ns"] < from_ns) | (rows["at_ns"] >= until_ns)]
            for rows in (paths, events)
        )
    add_paths(file, paths, names)
    # Simulated connections are numbered by from, to and stream.
    records = dict(zip(run.stream[mine].tolist(), connection_of.tolist(), strict=True))
    add_events(file, events, names, records)
    for from_ns, until_ns in run.pauses(host):
        # When a process records that it was stalled: as in native/engine/trace/trace_writer.cc.
        stalled_ns = until_ns - from_ns - WAKES_NS
        if stalled_ns >= STALL_NS and until_ns <= run.ended_ns:
            file.put(
                "event",
                file.ids(1),
                np.array([until_ns]),
                value=stalled_ns,
                what=file.text("process_stalled"),
            )


def _steps(file: TraceFile, run: _Run, host: int) -> None:
    """Adds an event for each operation of training steps at the host, with its name.

    The value is the time that the operation took; 0 if it did not end.
    """
    if run.local_times is None:
        return
    named = [job.program is not None and not job.program.is_trace for job in run.work.jobs]
    here = np.flatnonzero(run.local["rank"] == host)
    here = here[np.array(named, bool)[run.local["job"][here]]]
    # The n-th BEGIN event and the n-th END event are of the same operation.
    begun = here[run.local["kind"][here] == BEGIN]
    begin = run.local_times["ready_ns"][begun]
    end = run.local_times["ready_ns"][here[run.local["kind"][here] == END]]
    had = begin >= 0
    spent = np.where(end >= 0, end - begin, 0)
    numbers = zip(run.local["job"][begun[had]], run.local["operation"][begun[had]], strict=True)
    texts = [file.text(run.step_name(job, operation)) for job, operation in numbers]
    file.put("event", file.ids(len(texts)), begin[had], what=texts, value=spent[had])


def _connections(file: TraceFile, run: _Run, host: int, mine: Array, sends: Array) -> Array:
    """Adds the host's connections; returns the connection id of each transfer."""
    numbers, first, which = np.unique(run.connection[mine], return_index=True, return_inverse=True)
    one = mine[first]
    peers = np.where(sends[first], run.transfers["to"][one], run.transfers["from"][one])
    ids = file.ids(len(numbers))
    file.put(
        "connection",
        ids,
        np.zeros(len(ids), np.int64),
        pair=numbers + 1,
        flows=1,
        peer=[file.text(run.network.node_names[peer]) for peer in peers],
        datapath=file.text("simulated"),
    )
    for silence in run.silences:
        if silence.dead and silence.at_ns + DEATH_NOTICED_NS < run.ended_ns:
            lost = ids[peers == silence.host]
            when = np.full(len(lost), silence.at_ns + DEATH_NOTICED_NS)
            file.put("connection_end", lost, when, status=PEER_DEAD)
    return ids[which]


def _groups(*keys: Array) -> tuple[Array, Array, int]:
    """Groups rows with equal keys: first row of each group, group of each row, number of groups."""
    rows = np.stack([np.asarray(key, np.int64) for key in keys], axis=1)
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.ravel(), len(first)


def _span(which: Array, count: int, begins: Array, ends: Array) -> tuple[Array, Array]:
    """The earliest begin and the latest end of each group; -1 as end if a row has none."""
    begin = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(begin, which, np.where(begins < 0, np.iinfo(np.int64).max, begins))
    end = np.full(count, -1, np.int64)
    np.maximum.at(end, which, ends)
    open_ = np.zeros(count, bool)
    np.logical_or.at(open_, which, ends < 0)
    end[open_] = -1
    begin[begin == np.iinfo(np.int64).max] = -1
    return begin, end


def _sequences(run: _Run, host: int, number: Array, rows: list[_Operation]) -> Array:
    """The sequence numbers of a host's operations. NCCL counts the calls of each function, so after
    a call of a wrong function those of the right one are a number behind."""
    made = np.array([each.sequence for each in rows], np.int64)
    functions = np.array([each.function for each in rows])
    for at, one in enumerate(number.tolist()):
        usual = run.operations[one].function
        if (one, host) not in run.wrong or rows[at].function == usual:
            continue
        later = (run.comm[number] == run.comm[one]) & (number > one)
        made[later & (functions == usual)] -= 1
        made[later & (functions == rows[at].function)] += 1
    return made


def _operations(
    file: TraceFile,
    run: _Run,
    host: int,
    mine: Array,
    sends: Array,
    ends: Array,
    operation: Array,
    comm_of: Array,
) -> tuple[Array, Array]:
    """Adds the host's operations; returns, for each transfer, the id and begin of its operation."""
    alone = run.alone[operation]
    # A send and a receive of one message are different operations.
    first, which, count = _groups(operation, alone & sends)
    begin, end = _span(which, count, run.times["ready_ns"][mine], ends)
    number = operation[first]
    begin, end = _enqueued(run, host, number, begin, end)
    ids = file.ids(count)
    rows = [run.wrong.get((one, host), run.operations[one]) for one in number.tolist()]
    comms = run.comm[number]
    ranks = np.array([len(run.comms[comm][1]) for comm in comms])
    names = [
        each.function or ("Send" if is_send else "Recv")
        for each, is_send in zip(rows, sends[first], strict=True)
    ]
    other = np.where(sends, run.transfers["to"][mine], run.transfers["from"][mine])
    roots = np.array([each.root for each in rows], np.int64)
    root = np.where(alone[first], run.rank[comms, other[first]], roots)
    sent = np.where(sends, run.transfers["bytes"][mine], 0).astype(np.float64)
    counts = _element_counts(rows, ranks, sent, which)
    counts = np.where(alone[first], run.transfers["bytes"][mine][first], counts)
    begun = begin >= 0
    file.put(
        "operation",
        ids[begun],
        begin[begun],
        sequence=_sequences(run, host, number, rows)[begun],
        count=counts[begun],
        communicator=comm_of[comms][begun],
        function=np.array([file.text(name) for name in names])[begun],
        datatype=file.text("ncclInt8"),
        protocol=file.text("SIMPLE"),
        algorithm=np.array([file.text(each.algorithm) for each in rows])[begun],
        root=root[begun],
        kind=alone[first][begun],
        channels=_channel_counts(run, mine, which, count)[begun],
    )
    done = end >= 0
    file.put("operation_end", ids[done], end[done])
    return ids[which], begin[which]


def _element_counts(rows: list[_Operation], ranks: Array, sent: Array, which: Array) -> Array:
    """NCCL's element count of each collective. sent: bytes that the host sends, by transfer.

    ranks: of the communicator of each operation. which: the operation of each transfer.
    """
    sizes = np.array([each.size_bytes for each in rows], np.int64)
    parts = np.array([each.function in PER_RANK for each in rows])
    # A buffer that cannot be divided by the ranks counts as the next larger one that can.
    counts = np.where(parts, -(-sizes // np.maximum(ranks, 1)), sizes)
    # If ranks have buffers of different sizes (tokens to experts), the count is the mean of the
    # parts that this host sends to the other ranks.
    part = np.round(np.bincount(which, sent, len(rows)) / np.maximum(ranks - 1, 1))
    return np.where(sizes == 0, part, counts)


def _channel_counts(run: _Run, mine: Array, which: Array, count: int) -> Array:
    """The number of channels that each operation uses."""
    pairs = np.unique(np.stack([which, run.transfers["stream"][mine]], axis=1), axis=0)
    return np.bincount(pairs[:, 0].astype(np.int64), minlength=count)


def _enqueued(run: _Run, host: int, number: Array, begin: Array, end: Array) -> tuple[Array, Array]:
    """Begin and end of the host's operations; for programs, the times of local events."""
    if run.local_times is None or len(run.local) == 0:
        return begin, end
    here = np.flatnonzero(run.local["rank"] == host)
    own = run.first[run.local["job"][here]] + run.local["operation"][here]
    begin, end = begin.copy(), end.copy()
    # The host enqueues an operation when it launches it, or else when it begins.
    for kind, times in ((BEGIN, begin), (LAUNCH, begin), (END, end)):
        of_kind = run.local["kind"][here] == kind
        order = np.argsort(own[of_kind])
        known = own[of_kind][order]
        at = np.searchsorted(known, number)
        had = at < len(known)
        had[had] = known[at[had]] == number[had]
        found = run.local_times["ready_ns"][here][of_kind][order]
        times[had] = found[at[had]]
    return begin, end


def _channels(
    file: TraceFile,
    run: _Run,
    mine: Array,
    sends: Array,
    ends: Array,
    operation: Array,
    comm_of: Array,
    operation_of: Array,
    called_ns: Array,
) -> Array:
    """Adds a channel for each operation, stream, peer and direction; returns its id by transfer."""
    other = np.where(sends, run.transfers["to"][mine], run.transfers["from"][mine])
    stream = run.transfers["stream"][mine]
    first, which, count = _groups(operation_of, stream, other, sends)
    begins = run.times["ready_ns"][mine]
    begin, end = _span(which, count, begins, ends)
    # A channel begins with its operation, also if it has nothing to carry yet.
    begin = np.where(begin < 0, called_ns[first], begin)
    ids = file.ids(count)
    comm = run.comm[operation[first]]
    number = np.minimum(stream[first].astype(np.int64) - run.first_stream[comm], 0xFFFF)
    steps = np.bincount(which, minlength=count)
    begun = begin >= 0
    file.put(
        "channel",
        ids[begun],
        begin[begun],
        operation=operation_of[first][begun],
        communicator=comm_of[comm][begun],
        peer=run.rank[comm, other[first]][begun],
        steps=steps[begun],
        channel=number[begun],
        sends=sends[first][begun],
    )
    done = end >= 0
    sizes = np.bincount(which, run.transfers["bytes"][mine].astype(np.float64), count)
    waits = np.bincount(which, np.maximum(ends - begins, 0).astype(np.float64), count)
    file.put(
        "channel_end",
        ids[done],
        end[done],
        bytes=sizes[done].astype(np.uint64),
        network_wait_ns=waits[done].astype(np.uint64),
        steps=steps[done],
        messages=steps[done],
    )
    return ids[which]
