"""Measures time and memory of matrices of a large trace: 4,096 processes, 10^8 messages.

The trace is made as Parquet files. Each query runs in a process of its own. With NCCL, messages
belong to channels of operations, and the rows of a matrix are ranks; without it, as from the Python
API, they are processes.
"""

from __future__ import annotations

import multiprocessing
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.lib.common import Config, Cut, document, emit, interruptible, json_option
from transport.trace import Store, matrix_of, new_store, open_store

NEIGHBOURS = 16  # connections that each process has made
MEASURES = ("bytes", "messages", "latency_mean", "latency_p99")
OPERATIONS = 64  # operations of each process; each has a channel for each neighbour and direction
COLUMNS = ("nccl", "measure", "ranks", "rows", "cells", "seconds", "rows_per_s", "memory_bytes")


def make(folder: Path, ranks: int, rows: int, nccl: bool) -> int:
    """Writes a trace whose processes send to 16 others each; returns the bytes of its messages."""
    with new_store() as store:
        store.database.execute(
            """INSERT INTO processes (process, host, pid, job, attempt, first_ns, last_ns, files,
              removed, file_bytes, records, dropped, damage, clock, clock_offset_ns, clock_error_ns)
            SELECT p, 'host' || p // 8, p, '', 0, 0, 1, 1, 0, 0, 0, 0, '', p // 8, 0, 0
            FROM range(?) t(p)""",
            [ranks],
        )
        # Connection c of process p leads to process p + 1 + 17 c. The two ends of a connection have
        # the same value in the column `pair`.
        store.database.execute(
            """INSERT INTO connections (process, id, pair, peer, datapath, begin_ns)
            SELECT p, c, p * $n + c, 'x', 'udp', 0 FROM range($ranks) a(p), range($n) b(c)
            UNION ALL
            SELECT (p + 1 + 17 * c) % $ranks, $n + c, p * $n + c, 'x', 'udp', 0
            FROM range($ranks) a(p), range($n) b(c)""",
            {"n": NEIGHBOURS, "ranks": ranks},
        )
        if nccl:
            add_operations(store, ranks)
        store.to_parquet(folder)
        channel = f"""(r // 2 // {ranks * NEIGHBOURS} % {OPERATIONS} * {2 * NEIGHBOURS}
            + r // 2 // {ranks} % {NEIGHBOURS} + {NEIGHBOURS} * (r % 2) + 1)::UINTEGER"""
        messages = folder / "messages.parquet"
        messages.unlink()
        # Half of the rows are sends, the other half receives.
        store.database.execute(
            f"""COPY (SELECT (r // 2 % {ranks})::INTEGER AS process,
              (r // 2 // {ranks} % {NEIGHBOURS} + {NEIGHBOURS} * (r % 2))::UINTEGER AS connection,
              (r // 2 // {ranks * NEIGHBOURS})::UBIGINT AS message, r % 2 = 0 AS sends,
              (1024 + hash(r) % 65536)::UBIGINT AS bytes,
              {channel if nccl else "NULL::UINTEGER"} AS channel_id,
              0::USMALLINT AS status, r * 1000 AS posted_ns,
              (r * 1000 + 5000 + hash(r + 1) % 1000000)::BIGINT AS end_ns
            FROM range({rows}) t(r)) TO '{messages}' (FORMAT parquet)"""
        )
        return messages.stat().st_size


def add_operations(store: Store, ranks: int) -> None:
    """Adds a communicator of all processes, its all-to-alls, and a channel to each neighbour."""
    values = {"n": NEIGHBOURS, "ranks": ranks, "operations": OPERATIONS}
    store.database.execute(
        """INSERT INTO comms (process, id, comm_id, name, ranks, nodes, rank, begin_ns)
        SELECT p, 1000000, 77, 'world', $ranks, $ranks // 8, p, 0 FROM range($ranks) a(p)""",
        {"ranks": ranks},
    )
    store.database.execute(
        """INSERT INTO operations (process, id, comm, sequence, function, kind, count, datatype,
          bytes, algorithm, protocol, channels, begin_ns, end_ns)
        SELECT p, 2000000 + o, 1000000, o, 'AlltoAll', 'collective', 1, 'ncclInt8', 1, 'RING',
          'SIMPLE', 1, o * 1000, o * 1000 + 900
        FROM range($ranks) a(p), range($operations) b(o)""",
        {"ranks": ranks, "operations": OPERATIONS},
    )
    store.database.execute(
        """INSERT INTO channels (process, id, operation, comm, channel, peer, sends, begin_ns,
          end_ns, bytes, steps, messages)
        SELECT p, o * 2 * $n + c + side * $n + 1, 2000000 + o, 1000000, 0,
          (p + CASE side WHEN 0 THEN 1 + 17 * c ELSE $ranks - 1 - 17 * c END) % $ranks,
          side = 0, o * 1000, o * 1000 + 900, 65536, 8, 8
        FROM range($ranks) a(p), range($operations) b(o), range($n) d(c), range(2) e(side)""",
        values,
    )


def peak_bytes() -> int:
    """The peak of this process's memory. getrusage() would include that of its parent."""
    (line,) = re.findall(r"VmHWM:\s*([0-9]+) kB", Path("/proc/self/status").read_text())
    return int(line) * 1024


def query(folder: str, measure: str) -> Config:
    """Opens the trace and makes a matrix; returns the time of both and the peak of memory."""
    before_s = time.monotonic()
    with open_store(folder) as store:
        found = matrix_of(store, measure)
        took_s = time.monotonic() - before_s
        return {
            "measure": measure,
            "ranks": found.size,
            "cells": int(found.values.size),
            "seconds": took_s,
            "memory_bytes": peak_bytes(),
        }


@click.command("trace-matrix")
@click.option("--ranks", default=4096, show_default=True, type=click.IntRange(2, 65_536))
@click.option("--rows", default=100_000_000, show_default=True, type=click.IntRange(1))
@click.option("--tiny", is_flag=True, help="64 ranks and 100,000 messages, to try the bench.")
@json_option
def command(ranks: int, rows: int, tiny: bool, json_path: str | None) -> None:
    """Time and memory of the matrices of a large trace."""
    if tiny:
        ranks, rows = 64, 100_000
    found: list[Config] = []
    cut = Cut()
    size = 0
    for nccl in (True, False):
        if cut.short:
            break
        with tempfile.TemporaryDirectory(prefix="weft-trace-") as folder:
            size = make(Path(folder), ranks, rows, nccl)
            spawn: Any = multiprocessing.get_context("spawn")
            with interruptible() as cut:
                for measure in MEASURES:
                    with spawn.Pool(1) as pool:
                        row = pool.apply(query, (folder, measure))
                    row |= {"rows": rows, "rows_per_s": rows / row["seconds"]}
                    found.append({"nccl": nccl} | row)
    notes = [
        f"{rows} messages are {size} bytes of Parquet; half of them are sends",
        f"with NCCL, {ranks * OPERATIONS} operations and {ranks * OPERATIONS * 2 * NEIGHBOURS} "
        "channels",
    ]
    emit(document("trace-matrix", found, parquet_bytes=size), json_path, COLUMNS, notes, cut)
