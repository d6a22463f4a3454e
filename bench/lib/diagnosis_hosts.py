"""Makes summaries of hosts for an invented job, as `weft diagnose --live` writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.live.columns import Table
from transport.diagnose.live.layout import typed
from transport.diagnose.live.share import HostFile

BEGIN_NS = 1_700_000_000_000_000_000
PER_HOST = 8
COUNTS = (2_000_000, 4_000_000)  # elements of the two kinds of all-reduces


@dataclass(frozen=True)
class Shape:
    """A job: hosts with 8 ranks; the ranks of the same index in all hosts form a communicator."""

    ranks: int
    iterations: int = 30
    operations: int = 4
    paths: int = 16
    iteration_ns: int = 400_000_000
    sent_rows: int = 6_000

    @property
    def hosts(self) -> int:
        return self.ranks // PER_HOST


def host_file(shape: Shape, host: int, interval: int, slow_rank: int = -1) -> HostFile:
    """A host's summary of an interval. slow_rank is late by a quarter of an operation's time."""
    chance = np.random.default_rng((host, interval))
    calls = _calls(shape, host, interval, slow_rank, chance)
    edges = _edges(shape, host, calls, chance)
    last_ns = int(calls["end_ns"].max())
    processes = _processes(shape, host, last_ns)
    peers, connections = _connections(shape, host)
    traffic = _traffic(shape, host, peers[0], int(calls["begin_ns"].min()), last_ns)
    tables = typed({"calls": calls, "edges": edges, **connections, **traffic})
    return HostFile(f"node{host}", interval, last_ns + 1_000_000_000, processes, [], [], tables)


def _calls(
    shape: Shape, host: int, interval: int, slow_rank: int, chance: np.random.Generator
) -> Table:
    count = shape.iterations * shape.operations
    number = np.arange(PER_HOST * count)
    process, at = number // count, number % count
    turn = at + interval * shape.operations * 12  # an interval is about 12 iterations
    gap_ns = shape.iteration_ns // shape.operations
    begin_ns = BEGIN_NS + turn * gap_ns
    late_ns = chance.integers(0, gap_ns // 200, len(number))
    late_ns += np.where(host * PER_HOST + process == slow_rank, gap_ns // 4, 0)
    return {
        "process": process,
        "id": turn + 1,
        "turn": np.zeros_like(turn),
        "gpu_wait_ns": np.zeros_like(turn),
        "relays": np.zeros(len(number), bool),
        "comm_id": (1_000 + process).astype(np.uint64),
        "rank": np.full(len(number), host),
        "ranks": np.full(len(number), shape.hosts),
        "function": np.full(len(number), "AllReduce", object),
        "kind": np.full(len(number), "collective", object),
        "sequence": turn,
        "count": np.where(turn % shape.operations, COUNTS[0], COUNTS[1]),
        "datatype": np.full(len(number), "ncclFloat32", object),
        "root": np.full(len(number), -1),
        "begin_ns": begin_ns,
        "arrival_ns": begin_ns + 50_000 + late_ns,
        "end_ns": begin_ns + gap_ns // 2 + chance.integers(0, 100_000, len(number)),
    }


def _edges(shape: Shape, host: int, calls: Table, chance: np.random.Generator) -> Table:
    """A table of what each call sent to the next host."""
    count = len(calls["id"])
    edges: Table = {
        "process": calls["process"],
        "operation": calls["id"],
        "peer": np.full(count, (host + 1) % shape.hosts),
        "comm_id": calls["comm_id"],
        "messages": np.full(count, 100),
        "bytes": np.full(count, 100 << 20),
        "first_ns": calls["arrival_ns"],
        "end_ns": calls["end_ns"],
        "latency_ns": chance.normal(2e6, 2e4, count),
    }
    edges["busy_ns"] = edges["latency_ns"] * edges["messages"]
    return edges


def _processes(shape: Shape, host: int, last_ns: int) -> list[dict[str, Any]]:
    return [
        {
            "number": one,
            "trace": f"{host:08x}{one:08x}",
            "host": f"node{host}",
            "pid": 100 + one,
            "start_ticks": "1",
            "clock_name": f"node{host}",
            "rank": host * PER_HOST + one,
            "world_size": shape.ranks,
            "job": "job",
            "attempt": 0,
            "ended": False,
            "dropped": 0,
            "damage": "",
            "first_ns": BEGIN_NS,
            "last_ns": last_ns,
            "closed_ns": None,
            "whole": True,
            "state": "S",
        }
        for one in range(PER_HOST)
    ]


def _connections(shape: Shape, host: int) -> tuple[NDArray[np.object_], dict[str, Table]]:
    """Two connections of each process, to the hosts before and after; also: their peers."""
    one = np.repeat(np.arange(PER_HOST), 2)
    after = np.tile([1, 0], PER_HOST)
    first = np.where(after == 1, host, (host - 1) % shape.hosts)
    pair = (first * PER_HOST + one + 1).astype(np.uint64)
    peer = np.where(after == 1, (host + 1) % shape.hosts, (host - 1) % shape.hosts)
    names = np.array([f"10.{at // 250}.{at % 250}.1:7000" for at in peer], object)
    return names, {
        "comms": {
            "process": np.arange(PER_HOST),
            "id": np.ones(PER_HOST, np.uint32),
            "comm_id": (1_000 + np.arange(PER_HOST)).astype(np.uint64),
            "rank": np.full(PER_HOST, host),
            "ranks": np.full(PER_HOST, shape.hosts),
        },
        "connections": {
            "process": one,
            "id": np.arange(1, len(one) + 1, dtype=np.uint32),
            "pair": pair,
            "peer": names,
            "begin_ns": np.full(len(one), BEGIN_NS),
            "end_ns": np.full(len(one), -1),
            "status": np.zeros(len(one), np.uint16),
        },
    }


def _traffic(shape: Shape, host: int, peer: str, since_ns: int, last_ns: int) -> dict[str, Table]:
    """Tables of what the connections sent, all of it to one peer."""
    rows = np.arange(shape.sent_rows)
    process, path = rows % PER_HOST, rows // PER_HOST % shape.paths
    time_ns = since_ns + rows * (last_ns - since_ns) // shape.sent_rows
    forward = (host * PER_HOST + process + 1).astype(np.uint64)
    to = np.full(len(rows), peer, object)
    quick = np.arange(min(500, shape.sent_rows))
    return {
        "events": {
            "process": process[:8],
            "peer": to[:8],
            "path": path[:8],
            "connection": np.full(8, -1),
            "time_ns": time_ns[:8],
            "what": np.full(8, "loss", object),
            "value": np.ones(8, np.uint64),
            "status": np.zeros(8, np.uint16),
        },
        "samples": {
            "process": process,
            "peer": to,
            "path": path,
            "time_ns": time_ns,
            "rtt_ns": np.full(len(rows), 60_000),
            "segments_sent": rows * 10,
            "segments_lost": np.zeros(len(rows), np.int64),
            "usable": np.ones(len(rows), bool),
        },
        "sent": {
            "process": process,
            "pair": forward,
            "path": path,
            "time_ns": time_ns,
            "sent": np.full(len(rows), 500.0),
        },
        "quick": {
            "process": quick % PER_HOST,
            "pair": forward[quick % len(forward)],
            "message": (quick // PER_HOST * 16).astype(np.uint64),
            "sends": np.ones(len(quick), bool),
            "posted_ns": time_ns[quick],
            "end_ns": time_ns[quick] + 200_000,
        },
    }
