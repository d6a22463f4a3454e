"""The tables of a store: the type, unit and meaning of every column."""

from __future__ import annotations

from dataclasses import dataclass

from transport.ground.text import markdown_table

SQL_TYPES = {
    "text": "VARCHAR",
    "flag": "BOOLEAN",
    "u8": "UTINYINT",
    "u16": "USMALLINT",
    "u32": "UINTEGER",
    "u64": "UBIGINT",
    "i32": "INTEGER",
    "i64": "BIGINT",
}


PATHS_NAMED = 32  # number of paths with a column of their own in `stripes`


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; NULL means that the value is not in the trace.

    type: a key of SQL_TYPES. sentence: "" means the same as for the column before it.
    """

    name: str
    type: str
    sentence: str


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


_PROCESS = ("process", "i32", "the process, as in `processes`")
_ID = ("id", "u32", "number of the record, unique in its process")
_CONNECTION = ("connection", "u32", "`id` of its connection")
_SENDS = ("sends", "flag", "true: this process sent, false: it received")
_STATUS = ("status", "u16", "0: complete, otherwise the status of the failure")
_POSTED = ("posted_ns", "i64", "when it was posted")

PROCESSES = _columns(
    ("process", "i32", "number of the process in this store, from 0"),
    ("trace", "text", "the part of its file names that identifies it"),
    ("host", "text", "name of its host"),
    ("pid", "i64", "its process id"),
    ("start_ticks", "i64", "when it was started, in clock ticks since its host was booted"),
    ("job", "text", "job that it belongs to, by the variables of its scheduler"),
    ("attempt", "i32", "how often the job had been restarted"),
    ("rank", "i32", "its rank in the job, by its launcher's variables"),
    ("world_size", "i32", "ranks in the job, by its launcher's variables"),
    ("local_rank", "i32", "its rank on its host"),
    ("devices", "text", "its CUDA_VISIBLE_DEVICES"),
    ("first_ns", "i64", "time of its first record"),
    ("last_ns", "i64", "time of its last record"),
    ("files", "i32", "files of its trace that were read"),
    ("removed", "i32", "older files of its trace that no longer exist"),
    ("file_bytes", "i64", "size of these files"),
    ("records", "i64", "records in these files, texts not counted"),
    ("dropped", "i64", "records that it had to drop"),
    ("damage", "text", "what is wrong with its files; empty: nothing"),
    ("ended", "flag", "false: it was killed, still runs, or its disk was full; NULL: not told"),
    ("closed_ns", "i64", "when it closed its trace, if it did"),
    ("clock", "i32", "number of its clock: processes of one host share one"),
    ("clock_offset_ns", "i64", "what was added to its times to align them with clock 0"),
    ("clock_error_ns", "i64", "largest error of the alignment, NULL: unknown"),
)
COMMS = _columns(
    _PROCESS,
    _ID,
    ("comm_id", "u64", "NCCL's id of the communicator, the same in all its processes"),
    ("name", "text", "name that the program gave it"),
    ("ranks", "i32", "ranks in the communicator"),
    ("nodes", "i32", "nodes that its ranks are on"),
    ("rank", "i32", "rank of this process"),
    ("begin_ns", "i64", "when it was made"),
    ("end_ns", "i64", "when it was finalized"),
)
OPERATIONS = _columns(
    _PROCESS,
    _ID,
    ("comm", "u32", "`id` of its communicator"),
    ("sequence", "u64", "number of the operation in its communicator, as NCCL counts"),
    ("function", "text", "AllReduce, Send, ..."),
    ("kind", "text", "collective, p2p, or copies (by copy engines)"),
    ("count", "u64", "elements, as in the call"),
    ("datatype", "text", "type of an element"),
    (
        "bytes",
        "u64",
        "count times the size of an element; of AllGather, ReduceScatter, AlltoAll, "
        "Gather and Scatter: one rank's part",
    ),
    ("algorithm", "text", "RING, TREE, ...; p2p: empty"),
    ("protocol", "text", "LL, LL128, SIMPLE; p2p: empty"),
    ("root", "i32", "root of a collective, peer of a Send or Recv; NULL: none"),
    ("channels", "u16", "channels that it uses"),
    ("tag", "u64", "tag that the program gave the call; 0: none"),
    ("captured", "flag", "whether it is part of a captured graph"),
    ("called_ns", "i64", "when the program called NCCL; NULL: not known"),
    ("begin_ns", "i64", "when NCCL began to enqueue it"),
    ("end_ns", "i64", "when NCCL had enqueued it"),
)
CHANNELS = _columns(
    _PROCESS,
    _ID,
    ("operation", "u32", "`id` of its operation; NULL: unknown, such as one of another process"),
    ("comm", "u32", "`id` of its communicator"),
    ("channel", "u16", "channel of the communicator"),
    ("peer", "i32", "rank of the peer in the communicator"),
    _SENDS,
    ("steps_planned", "i32", "steps that NCCL planned"),
    ("chunk_bytes", "u32", "bytes that NCCL planned for a chunk"),
    ("begin_ns", "i64", "when NCCL's proxy began it"),
    ("end_ns", "i64", "when its last step had ended"),
    ("bytes", "u64", "bytes that were sent or received"),
    ("gpu_wait_ns", "u64", "time in which steps waited for the GPU"),
    ("peer_wait_ns", "u64", "time in which sends waited for the peer's buffer"),
    ("network_wait_ns", "u64", "time in which steps were in the network"),
    ("steps", "u32", "steps that ended"),
    ("messages", "u32", "steps that carried bytes"),
)
KERNELS = _columns(
    _PROCESS,
    _ID,
    ("operation", "u32", "`id` of its operation"),
    ("channel", "u16", "channel of the communicator"),
    ("gpu_start_ns", "u64", "start on the GPU's own clock"),
    ("gpu_stop_ns", "u64", "end on the GPU's own clock"),
    ("time_ns", "i64", "when its end was recorded"),
)
CONNECTIONS = _columns(
    _PROCESS,
    _ID,
    ("pair", "u64", "the same number at both ends of the connection, and at no other"),
    ("peer", "text", "address and port of the peer process"),
    ("datapath", "text", "udp, verbs, ..."),
    ("flows", "u16", "flows of the connection"),
    ("paths", "u16", "paths of each flow"),
    ("begin_ns", "i64", "when it was made"),
    ("end_ns", "i64", "when it ended"),
    ("status", "u16", "0: this end closed it, otherwise the status of its end"),
)
MESSAGES = _columns(
    _PROCESS,
    _CONNECTION,
    ("message", "u64", "its number in the connection and direction, the same at both ends"),
    _SENDS,
    ("bytes", "u64", "its size"),
    ("channel_id", "u32", "`id` of the row of `channels` that it belongs to; NULL: none"),
    _STATUS,
    _POSTED,
    ("end_ns", "i64", "sends: when it was acknowledged; receives: when it had arrived"),
)
STRIPES = _columns(
    _PROCESS,
    _CONNECTION,
    ("message", "u64", "number of its message"),
    _SENDS,
    ("engine", "u16", "engine that its flow is on"),
    ("bytes", "u64", "bytes of the message that the flow carries"),
    ("segments", "u32", "sends: segments sent, resent ones included"),
    ("resent", "u32", "sends: segments that were resent"),
    _STATUS,
    ("posted_ns", "i64", "when the flow got it"),
    ("first_ns", "i64", "when its first segment was sent or arrived; NULL: none was"),
    ("last_ns", "i64", "when its last segment was first sent, or arrived"),
    ("end_ns", "i64", "sends: when it was acknowledged; receives: when it had arrived"),
    ("path_0", "u8", "sends: share of its segments that path 0 carried, in 1/255"),
    *((f"path_{at}", "u8", "") for at in range(1, PATHS_NAMED)),
    ("path_others", "u8", "the same for all other paths together"),
)
PATHS = _columns(
    _PROCESS,
    ("time_ns", "i64", "time of the sample"),
    ("engine", "u16", "engine whose path it is"),
    ("path", "u16", "number of the path"),
    ("peer", "text", "address of the peer's end of the path"),
    ("usable", "flag", "false: the path is down"),
    ("bytes_sent", "u64", "payload bytes sent over the path so far"),
    ("segments_sent", "u64", "segments sent over the path so far"),
    ("segments_lost", "u64", "segments that were found lost so far"),
    ("rtt_ns", "i64", "smoothed round-trip time"),
)
EVENTS = _columns(
    _PROCESS,
    ("time_ns", "i64", "time of the event"),
    (
        "what",
        "text",
        "path_down, path_up, timeout, loss, process_stalled, cpu_wait, host_drops, ...; in traces "
        "of simulated training steps, the name of an operation that began; of imported files, "
        "transport_error, collective_timeout, python_frame, init_started (a communicator whose "
        "initialisation has not ended) and bootstrap (a process that came to NCCL's bootstrap and "
        "made none)",
    ),
    (
        "peer",
        "text",
        "address of the peer or of its end of the path; of collective_timeout the operation, of "
        "python_frame file, line and function",
    ),
    ("connection", "u32", "`id` of the connection; NULL: none"),
    ("path", "u16", "number of the path"),
    (
        "value",
        "u64",
        "what the event counts, such as segments lost; of an operation: its time in ns; of "
        "process_stalled: for how many ns it did not run; of cpu_wait: for how many ns the thread "
        "that waited most was ready to run and had no CPU core; of host_drops: datagrams that the "
        "kernel dropped at full sockets; of collective_timeout: ms; of python_frame: its depth, "
        "from 0; of init_started: `id` of the communicator",
    ),
    (
        "status",
        "u16",
        "status of the event; of cpu_wait: in how many ms; of init_started: for how many seconds "
        "the log had not been written when it was read",
    ),
)
TABLES = {
    "processes": PROCESSES,
    "comms": COMMS,
    "operations": OPERATIONS,
    "channels": CHANNELS,
    "kernels": KERNELS,
    "connections": CONNECTIONS,
    "messages": MESSAGES,
    "stripes": STRIPES,
    "paths": PATHS,
    "events": EVENTS,
}
# Columns with times of the process's clock, to which the alignment of clocks adds an offset.
CLOCKED = {
    table: tuple(
        column.name
        for column in columns
        if column.type == "i64"
        and column.name
        in {
            "begin_ns",
            "end_ns",
            "posted_ns",
            "first_ns",
            "last_ns",
            "time_ns",
            "called_ns",
            "closed_ns",
        }
    )
    for table, columns in TABLES.items()
}


def create(table: str) -> str:
    """The SQL statement that makes the empty table."""
    columns = ", ".join(f'"{one.name}" {SQL_TYPES[one.type]}' for one in TABLES[table])
    return f'CREATE TABLE "{table}" ({columns})'


def markdown() -> str:
    """The description of all tables in docs/TRACING.md."""
    parts = []
    for table, columns in TABLES.items():
        rows = []
        for at, one in enumerate(columns):
            last = next((c for c in columns[at + 1 :] if c.sentence), None)
            same = columns[at + 1 : columns.index(last) if last else None]
            name = f"`{one.name}`" + (f" to `{same[-1].name}`" if same else "")
            if one.sentence:
                rows.append((name, SQL_TYPES[one.type], one.sentence))
        parts.append(markdown_table((f"`{table}`", "", ""), rows))
    return "\n\n".join(parts) + "\n"
