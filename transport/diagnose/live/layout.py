"""The tables of a host's summary: their columns and types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transport.diagnose.live.columns import Table

PROCESSES_MAX = 4_096  # at most this many traces of a host are followed

_INT, _ID, _REAL, _TEXT, _FLAG = "i8", "u8", "f8", "O", "?"
_CALLS = (
    *("process", "id", "rank", "ranks", "sequence", "count", "root"),
    *("begin_ns", "arrival_ns", "end_ns", "turn", "gpu_wait_ns"),
)
_MESSAGES = (
    *("process", "connection", "message", "bytes", "status"),
    *("posted_ns", "end_ns", "first_ns", "segments", "resent"),
)

# Table -> column -> type. Times that are not known are -1. `calls` and `edges` are those of
# operations, as transport.diagnose.facts reads them; `messages` those of programs without NCCL.
# quick: some messages, by which clocks are compared.
TABLES: Mapping[str, Mapping[str, str]] = {
    "calls": dict.fromkeys(_CALLS, _INT)
    | {"comm_id": _ID, "function": _TEXT, "kind": _TEXT, "datatype": _TEXT, "relays": _FLAG},
    "edges": {
        "process": _INT,
        "operation": _INT,
        "peer": _INT,
        "comm_id": _ID,
        "messages": _INT,
        "bytes": _INT,
        "first_ns": _INT,
        "end_ns": _INT,
        "latency_ns": _REAL,
        "busy_ns": _REAL,
    },
    "messages": dict.fromkeys(_MESSAGES, _INT) | {"sends": _FLAG},
    "comms": {"process": _INT, "id": _INT, "comm_id": _ID, "rank": _INT, "ranks": _INT},
    "connections": {
        "process": _INT,
        "id": _INT,
        "pair": _ID,
        "peer": _TEXT,
        "begin_ns": _INT,
        "end_ns": _INT,
        "status": _INT,
    },
    "events": {
        "process": _INT,
        "peer": _TEXT,
        "path": _INT,
        "connection": _INT,
        "time_ns": _INT,
        "what": _TEXT,
        "value": _INT,
        "status": _INT,
    },
    "samples": {
        "process": _INT,
        "peer": _TEXT,
        "path": _INT,
        "time_ns": _INT,
        "rtt_ns": _INT,
        "segments_sent": _INT,
        "segments_lost": _INT,
        "usable": _FLAG,
    },
    "sent": {"process": _INT, "pair": _ID, "path": _INT, "time_ns": _INT, "sent": _REAL},
    "quick": {
        "process": _INT,
        "pair": _ID,
        "message": _INT,
        "sends": _FLAG,
        "posted_ns": _INT,
        "end_ns": _INT,
    },
}
INT16_MAX, INT32_MAX, INT64_MAX = (1 << 16) - 1, (1 << 31) - 1, (1 << 63) - 1
ID_MAX = (1 << 32) - 1
RANKS_MAX = 1 << 20
TIME_NS_MAX = (1 << 62) - 1  # the sum and the difference of two times must fit as well
COUNT_MAX = 1 << 53  # maximum number of elements, calls or segments
BYTES_MAX = 1 << 56
_NUMBER, _TIME = (-INT64_MAX - 1, INT64_MAX), (-1, TIME_NS_MAX)
# Column -> the least and the largest number in it; a table may differ. Columns of u8 are ids of
# NCCL or of connections, which may be any number.
_RANGES: Mapping[str, tuple[int, int]] = {
    "process": (0, INT32_MAX),
    "id": (0, ID_MAX),
    "operation": (-1, ID_MAX),
    "rank": (-1, RANKS_MAX),
    "ranks": (0, RANKS_MAX),
    "sequence": (-1, COUNT_MAX),
    "count": (-1, COUNT_MAX),
    "root": (-1, RANKS_MAX),
    "peer": (-1, RANKS_MAX),
    "turn": (-COUNT_MAX, COUNT_MAX),
    "connection": (-1, ID_MAX),
    "message": (0, INT64_MAX),
    "bytes": (0, BYTES_MAX),
    "status": (0, INT16_MAX),
    "segments": (0, ID_MAX),
    "resent": (0, ID_MAX),
    "messages": (0, COUNT_MAX),
    "path": (0, INT16_MAX),
    "value": (0, INT64_MAX),
    "segments_sent": (0, COUNT_MAX),
    "segments_lost": (0, COUNT_MAX),
    "rtt_ns": _TIME,
    "sent": (0, COUNT_MAX),
    "latency_ns": (-TIME_NS_MAX, TIME_NS_MAX),
    "busy_ns": (-TIME_NS_MAX, TIME_NS_MAX),
    "gpu_wait_ns": _TIME,
    **dict.fromkeys(("begin_ns", "arrival_ns", "end_ns"), _TIME),
    **dict.fromkeys(("posted_ns", "first_ns", "time_ns"), _TIME),
}
_OF_TABLE = {
    ("calls", "id"): (0, COUNT_MAX),
    ("messages", "segments"): (-1, ID_MAX),
    ("messages", "resent"): (-1, ID_MAX),
    ("quick", "message"): _NUMBER,
}
RANGES: Mapping[tuple[str, str], tuple[int, int]] = {
    (table, name): _OF_TABLE.get((table, name), _RANGES.get(name, _NUMBER))
    for table, columns in TABLES.items()
    for name, kind in columns.items()
    if kind in (_INT, _REAL)
}
# Table -> its columns with times, to which the alignment of clocks adds an offset.
CLOCKED = {
    table: tuple(
        name
        for name in columns
        if name in {"begin_ns", "arrival_ns", "end_ns", "time_ns", "posted_ns", "first_ns"}
    )
    for table, columns in TABLES.items()
}


def beyond(table: Mapping[str, Mapping[str, Any]]) -> str:
    """The first column with a number out of its range, as `table.column`; "": there is none."""
    for (name, column), (least, most) in RANGES.items():
        values = table[name][column]
        # A NaN compares as false, so that it is out of range.
        if len(values) and not (values.min() >= least and values.max() <= most):
            return f"{name}.{column}"
    return ""


def typed(tables: Mapping[str, Table]) -> dict[str, Table]:
    """The tables with exactly the columns and types of TABLES; an absent table becomes empty."""
    return {
        table: {
            name: np.asarray(tables.get(table, {}).get(name, ())).astype(kind, copy=False)
            for name, kind in columns.items()
        }
        for table, columns in TABLES.items()
    }
