"""Measures time and memory of matrices of a large trace: 4,096 processes, 10^8 messages.

The trace is made as Parquet files. Each query runs in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from bench.lib.common import Config, Cut, document, emit, interruptible, json_option
from transport.trace import matrix_of, new_store, open_store

NEIGHBOURS = 16  # connections that each process has made
MEASURES = ("bytes", "messages", "latency_mean", "latency_p99")
COLUMNS = ("measure", "ranks", "rows", "cells", "seconds", "rows_per_s", "memory_bytes")


def make(folder: Path, ranks: int, rows: int) -> int:
    """Writes a trace whose processes send to 16 others each; returns the bytes of its messages."""
    with new_store() as store:
        store.database.execute(
            """INSERT INTO processes (process, host, pid, job, attempt, first_ns, last_ns, files,
              removed, file_bytes, records, dropped, damage, clock, clock_offset_ns, clock_error_ns)
            SELECT p, 'host' || p // 8, p, '', 0, 0, 1, 1, 0, 0, 0, 0, '', p // 8, 0, 0
            FROM range(?) t(p)""",
            [ranks],
        )
        # Connection c of process p leads to process p + 1 + 17 c. `pair` is equal at both ends.
        store.database.execute(
            """INSERT INTO connections (process, id, pair, peer, datapath, begin_ns)
            SELECT p, c, p * $n + c, 'x', 'udp', 0 FROM range($ranks) a(p), range($n) b(c)
            UNION ALL
            SELECT (p + 1 + 17 * c) % $ranks, $n + c, p * $n + c, 'x', 'udp', 0
            FROM range($ranks) a(p), range($n) b(c)""",
            {"n": NEIGHBOURS, "ranks": ranks},
        )
        store.to_parquet(folder)
        messages = folder / "messages.parquet"
        messages.unlink()
        # Half of the rows are sends, the other half receives.
        store.database.execute(
            f"""COPY (SELECT (r // 2 % {ranks})::INTEGER AS process,
              (r // 2 // {ranks} % {NEIGHBOURS} + {NEIGHBOURS} * (r % 2))::UINTEGER AS connection,
              (r // 2 // {ranks * NEIGHBOURS})::UBIGINT AS message, r % 2 = 0 AS sends,
              (1024 + hash(r) % 65536)::UBIGINT AS bytes, NULL::UINTEGER AS channel_id,
              0::USMALLINT AS status, r * 1000 AS posted_ns,
              (r * 1000 + 5000 + hash(r + 1) % 1000000)::BIGINT AS end_ns
            FROM range({rows}) t(r)) TO '{messages}' (FORMAT parquet)"""
        )
        return messages.stat().st_size


def query(folder: str, measure: str) -> Config:
    """Opens the trace and makes a matrix; returns the time of both and the peak of memory."""
    before_s = time.monotonic()
    with open_store(folder) as store:
        found = matrix_of(store, measure)
        took_s = time.monotonic() - before_s
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {
            "measure": measure,
            "ranks": found.size,
            "cells": int(found.values.size),
            "seconds": took_s,
            "memory_bytes": peak,
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
    with tempfile.TemporaryDirectory(prefix="weft-trace-") as folder:
        size = make(Path(folder), ranks, rows)
        spawn: Any = multiprocessing.get_context("spawn")
        with interruptible() as cut:
            for measure in MEASURES:
                with spawn.Pool(1) as pool:
                    row = pool.apply(query, (folder, measure))
                found.append(row | {"rows": rows, "rows_per_s": rows / row["seconds"]})
    notes = [f"{rows} messages are {size} bytes of Parquet; half of them are sends"]
    emit(document("trace-matrix", found, parquet_bytes=size), json_path, COLUMNS, notes, cut)
