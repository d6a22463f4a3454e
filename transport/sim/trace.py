"""Writes the trace of a simulated job: a file for each host, as a real process writes it.

Times are those of the virtual clock, as nanoseconds since 1970. `truth.json` beside the files has
what no host can know: queues, marks and losses at every port.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from transport.sim.network import Array
from transport.sim.result import Result
from transport.trace.write import TraceFile

COMMUNICATOR_BASE = 0x5157_0000_0000_0000  # ids of communicators: this plus the number of the job
PER_RANK = ("AllGather", "ReduceScatter")  # NCCL counts the elements of one rank in these


class _Run:
    """The transfers of a run with their operation, communicator ranks and message numbers."""

    def __init__(self, result: Result) -> None:
        work = result.scenario.work
        self.work, self.network = work, result.scenario.network
        self.transfers, self.times = work.transfers, result.transfers
        count = len(self.transfers)
        self.sends = np.zeros(count, bool)  # True: not part of a collective
        self.turn = np.zeros(count, np.int64)
        at = 0
        for job in work.jobs:
            end = at + len(job.transfers)
            self.sends[at:end] = job.function == ""
            own = job.turn if job.turn is not None else np.zeros(end - at, np.int64)
            self.turn[at:end] = own if job.function else np.arange(end - at)
            at = end
        ranks = np.full((len(work.jobs), len(self.network.node_names)), -1, np.int32)
        for number, hosts in enumerate(work.hosts):
            ranks[number, hosts] = np.arange(len(hosts))
        self.rank = ranks  # [job, host]; -1: the host takes no part
        # Messages are numbered by connection, which is a stream from one host to another one.
        ends = self.transfers[["stream", "from", "to"]]
        _, self.connection = np.unique(ends, return_inverse=True)
        order = np.argsort(self.connection, kind="stable")
        starts = np.searchsorted(self.connection[order], self.connection[order])
        self.message = np.zeros(count, np.int64)
        self.message[order] = np.arange(count) - starts


def write_trace(result: Result, folder: Path) -> int:
    """Writes the files into the folder, which is made; returns their number.

    A transfer that did not end has no message, and its operation no end. OSError if a file cannot
    be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(result)
    outgoing = _by_host(run.transfers["from"])
    incoming = _by_host(run.transfers["to"])
    none = np.zeros(0, np.int64)
    hosts = sorted(outgoing.keys() | incoming.keys())
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
        file = TraceFile(identity)
        _fill(file, run, host, outgoing.get(host, none), incoming.get(host, none))
        # Differs between runs and hosts, so that traces of several runs can share a folder.
        number = (int(result.fingerprint, 16) ^ (host + 1) << 40) & 0xFFFF_FFFF_FFFF_FFFF
        file.write(folder / f"weft-{number:016x}-000000.trace")
    (folder / "truth.json").write_text(json.dumps(truth(result), indent=1) + "\n")
    return world


def truth(result: Result) -> dict[str, Any]:
    """What the simulator knows of the network: one row for each port, and sums by tier."""
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


def _by_host(hosts: Array) -> dict[int, Array]:
    """Host -> the numbers of its transfers, in order."""
    order = np.argsort(hosts, kind="stable")
    found, starts = np.unique(hosts[order], return_index=True)
    return dict(zip(map(int, found), np.split(order, starts[1:]), strict=True))


def _fill(file: TraceFile, run: _Run, host: int, out: Array, into: Array) -> None:
    """Adds the records of one host: `out` and `into` are its transfers."""
    mine = np.concatenate([out, into])
    sends = np.repeat([True, False], [len(out), len(into)])
    jobs = np.unique(run.transfers["job"][mine])
    comms = file.ids(len(jobs))
    comm_of = np.zeros(len(run.work.jobs), np.uint32)
    comm_of[jobs] = comms
    file.put(
        "communicator", comms, np.zeros(len(jobs), np.int64),
        comm_id=COMMUNICATOR_BASE + jobs.astype(np.uint64),
        name=[file.text(run.work.names[job]) for job in jobs],
        ranks=[len(run.work.hosts[job]) for job in jobs],
        nodes=[len(run.work.hosts[job]) for job in jobs],
        rank=run.rank[jobs, host],
    )  # fmt: skip
    connection_of = _connections(file, run, host, mine, sends)
    ends = np.where(sends, run.times["sent_ns"][mine], run.times["received_ns"][mine])
    operation_of = _operations(file, run, mine, sends, ends, comm_of)
    channel_of = _channels(file, run, mine, sends, ends, comm_of, operation_of)
    done = ends >= 0
    file.put(
        "message", file.ids(int(done.sum())), ends[done],
        message=run.message[mine][done], bytes=run.transfers["bytes"][mine][done],
        posted_ns=run.times["ready_ns"][mine][done], connection=connection_of[done],
        channel=channel_of[done], sends=sends[done],
    )  # fmt: skip


def _connections(file: TraceFile, run: _Run, host: int, mine: Array, sends: Array) -> Array:
    """Adds the host's connections; returns the connection id of each transfer."""
    numbers, first, which = np.unique(run.connection[mine], return_index=True, return_inverse=True)
    one = mine[first]
    peers = np.where(sends[first], run.transfers["to"][one], run.transfers["from"][one])
    ids = file.ids(len(numbers))
    file.put(
        "connection", ids, np.zeros(len(ids), np.int64), pair=numbers + 1, flows=1,
        peer=[file.text(run.network.node_names[peer]) for peer in peers],
        datapath=file.text("simulated"),
    )  # fmt: skip
    return ids[which]


def _groups(*keys: Array) -> tuple[Array, Array, int]:
    """Groups rows with equal keys: first row of each group, group of each row, number of groups."""
    rows = np.stack([np.asarray(key, np.int64) for key in keys], axis=1)
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.ravel(), len(first)


def _span(which: Array, count: int, begins: Array, ends: Array) -> tuple[Array, Array]:
    """The earliest begin and the latest end of each group; -1 if a member has no end."""
    begin = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(begin, which, np.where(begins < 0, np.iinfo(np.int64).max, begins))
    end = np.full(count, -1, np.int64)
    np.maximum.at(end, which, ends)
    open_ = np.zeros(count, bool)
    np.logical_or.at(open_, which, ends < 0)
    end[open_] = -1
    begin[begin == np.iinfo(np.int64).max] = -1
    return begin, end


def _operations(
    file: TraceFile, run: _Run, mine: Array, sends: Array, ends: Array, comm_of: Array
) -> Array:
    """Adds the host's operations; returns the operation id of each transfer."""
    job, alone = run.transfers["job"][mine], run.sends[mine]
    # A send and a receive with the same number are different operations, unless both belong to one
    # collective.
    first, which, count = _groups(job, run.turn[mine], alone & sends)
    begin, end = _span(which, count, run.times["ready_ns"][mine], ends)
    ids = file.ids(count)
    one = first
    jobs = [run.work.jobs[number] for number in job[one]]
    ranks = np.array([len(run.work.hosts[number]) for number in job[one]])
    sizes = np.array([each.buffer_bytes for each in jobs], np.int64)
    parts = np.array([each.function in PER_RANK for each in jobs])
    names = [
        each.function or ("Send" if is_send else "Recv")
        for each, is_send in zip(jobs, sends[one], strict=True)
    ]
    other = np.where(sends, run.transfers["to"][mine], run.transfers["from"][mine])
    root = np.where(alone[one], run.rank[job[one], other[one]], -1)
    counts = np.where(parts, sizes // np.maximum(ranks, 1), sizes)
    # If ranks have buffers of different sizes (tokens to experts), count what this host sends.
    sent = np.where(sends, run.transfers["bytes"][mine], 0).astype(np.float64)
    counts = np.where(sizes == 0, np.bincount(which, sent, count), counts)
    counts = np.where(alone[one], run.transfers["bytes"][mine][one], counts)
    begun = begin >= 0
    file.put(
        "operation", ids[begun], begin[begun], sequence=run.turn[mine][one][begun],
        count=counts[begun], communicator=comm_of[job[one]][begun],
        function=np.array([file.text(name) for name in names])[begun],
        datatype=file.text("ncclInt8"), protocol=file.text("SIMPLE"),
        algorithm=np.array([file.text(each.algorithm) for each in jobs])[begun],
        root=root[begun], channels=1, kind=alone[one][begun],
    )  # fmt: skip
    done = end >= 0
    file.put("operation_end", ids[done], end[done])
    return ids[which]


def _channels(
    file: TraceFile, run: _Run, mine: Array, sends: Array, ends: Array, comm_of: Array,
    operation_of: Array,
) -> Array:  # fmt: skip
    """Adds a channel for each operation, stream, peer and direction; returns its id by transfer."""
    other = np.where(sends, run.transfers["to"][mine], run.transfers["from"][mine])
    stream = run.transfers["stream"][mine]
    first, which, count = _groups(operation_of, stream, other, sends)
    begins = run.times["ready_ns"][mine]
    begin, end = _span(which, count, begins, ends)
    ids = file.ids(count)
    job = run.transfers["job"][mine][first]
    steps = np.bincount(which, minlength=count)
    begun = begin >= 0
    file.put(
        "channel", ids[begun], begin[begun], operation=operation_of[first][begun],
        communicator=comm_of[job][begun], peer=run.rank[job, other[first]][begun],
        steps=steps[begun], channel=stream[first][begun] & 0xFFFF, sends=sends[first][begun],
    )  # fmt: skip
    done = end >= 0
    sizes = np.bincount(which, run.transfers["bytes"][mine].astype(np.float64), count)
    waits = np.bincount(which, np.maximum(ends - begins, 0).astype(np.float64), count)
    file.put(
        "channel_end", ids[done], end[done], bytes=sizes[done].astype(np.uint64),
        network_wait_ns=waits[done].astype(np.uint64), steps=steps[done], messages=steps[done],
    )  # fmt: skip
    return ids[which]
