"""The tables of a host's summary: their columns and types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from transport.diagnose.live.columns import Table

PROCESSES_MAX = 4_096  # at most so many traces of a host are followed

_INT, _ID, _REAL, _TEXT, _FLAG = "i8", "u8", "f8", "O", "?"
_CALLS = ("process", "id", "rank", "ranks", "sequence", "count", "root", "begin_ns", "arrival_ns",
          "end_ns", "turn", "gpu_wait_ns")  # fmt: skip
_MESSAGES = ("process", "connection", "message", "bytes", "status", "posted_ns", "end_ns",
             "first_ns", "segments", "resent")  # fmt: skip

# Table -> column -> type. Times that are not known are -1. `calls` and `edges` are those of
# operations, as transport.diagnose.facts reads them; `messages` those of programs without NCCL.
# quick: some messages, by which clocks are compared.
TABLES: Mapping[str, Mapping[str, str]] = {
    "calls": dict.fromkeys(_CALLS, _INT)
    | {"comm_id": _ID, "function": _TEXT, "kind": _TEXT, "datatype": _TEXT, "relays": _FLAG},
    "edges": {"process": _INT, "operation": _INT, "peer": _INT, "comm_id": _ID, "messages": _INT,
              "bytes": _INT, "first_ns": _INT, "end_ns": _INT, "latency_ns": _REAL,
              "busy_ns": _REAL},
    "messages": dict.fromkeys(_MESSAGES, _INT) | {"sends": _FLAG},
    "comms": {"process": _INT, "id": _INT, "comm_id": _ID, "rank": _INT, "ranks": _INT},
    "connections": {"process": _INT, "id": _INT, "pair": _ID, "peer": _TEXT, "begin_ns": _INT,
                    "end_ns": _INT, "status": _INT},
    "events": {"process": _INT, "peer": _TEXT, "path": _INT, "connection": _INT, "time_ns": _INT,
               "what": _TEXT, "value": _INT, "status": _INT},
    "samples": {"process": _INT, "peer": _TEXT, "path": _INT, "time_ns": _INT, "rtt_ns": _INT,
                "segments_sent": _INT, "segments_lost": _INT, "usable": _FLAG},
    "sent": {"process": _INT, "pair": _ID, "path": _INT, "time_ns": _INT, "sent": _REAL},
    "quick": {"process": _INT, "pair": _ID, "message": _INT, "sends": _FLAG, "posted_ns": _INT,
              "end_ns": _INT},
}  # fmt: skip
# The columns that are times of a clock.
CLOCKED = {
    table: tuple(name for name in columns if name in {
        "begin_ns", "arrival_ns", "end_ns", "time_ns", "posted_ns", "first_ns"})
    for table, columns in TABLES.items()
}  # fmt: skip


def typed(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables with exactly the columns and types of TABLES; an absent table becomes empty."""
    return {
        table: {
            name: np.asarray(tables.get(table, {}).get(name, ())).astype(kind, copy=False)
            for name, kind in columns.items()
        }
        for table, columns in TABLES.items()
    }
