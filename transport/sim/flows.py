"""Reads lists of flows: a CSV file with a row for each, or a connection matrix of htsim (.cm).

CSV: the first line names the columns: `from`, `to` and `bytes`, and optionally `start_ns` (0) and
`stream`: flows of one stream between the same hosts use one connection, in order. Without this
column each flow has its own.

htsim: the lines "Nodes N", "Connections N", "Triggers N", then "0->1 id 1 start 0 size 2000000" for
each flow, with the start in ps, or `trigger N` instead of `start`. A flow that a trigger starts
begins when those that name it (`send_done_trigger`, `recv_done_trigger`) are done. Flows end at
hosts here, so they must be done at the host that the triggered flow begins at.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from transport.sim.work import TRANSFERS_MAX, BadWorkError, Job, transfers, waits

NEEDED, OPTIONAL = ("from", "to", "bytes"), ("start_ns", "stream")
BYTES_MAX = 1 << 50
TIME_NS_MAX = 1 << 60


class FlowsError(ValueError):
    """A list of flows is wrong; the message names the line."""


@dataclass
class Flow:
    """One flow; `line` is where it is in its file."""

    line: int
    source: int = 0
    target: int = 0
    bytes: int = 0
    start_ns: int = 0
    stream: int = -1  # -1: a connection of its own
    trigger: int = 0  # the trigger that starts it; 0: none
    sent: int = 0  # the trigger that it activates when all of it is acknowledged
    received: int = 0  # likewise, when all of it has arrived


@dataclass
class Matrix:
    """What a connection matrix says."""

    flows: list[Flow] = field(default_factory=list)
    nodes: int | None = None
    connections: int | None = None
    triggers: dict[int, tuple[str, int]] = field(default_factory=dict)  # number: kind and count


def _whole(line: int, name: str, text: str, most: int, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError:
        raise FlowsError(f"line {line}: {name} is {text!r}: give a whole number") from None
    if not least <= number <= most:
        raise FlowsError(f"line {line}: {name} is {number:,}: it must be {least:,} to {most:,}")
    return number


def read_csv(lines: Iterable[str]) -> list[Flow]:
    """The flows of a CSV file."""
    rows = csv.DictReader(lines)
    names = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    known = (*NEEDED, *OPTIONAL)
    if missing := [name for name in NEEDED if name not in names]:
        raise FlowsError(f"line 1: column {missing[0]!r} is missing: name {', '.join(known)}")
    if strange := [name for name in names if name not in known]:
        raise FlowsError(
            f"line 1: no column {strange[0]!r} is known: choose from {', '.join(known)}"
        )
    limits = {"bytes": BYTES_MAX, "start_ns": TIME_NS_MAX}
    flows = []
    for row in rows:
        line = rows.line_num
        if None in row or None in row.values():
            raise FlowsError(f"line {line}: it must have {len(names)} values")
        values = {
            name: _whole(line, name, str(row[name]).strip(), limits.get(name, TRANSFERS_MAX))
            for name in names
        }
        flow = Flow(line, values["from"], values["to"], values["bytes"])
        flow.start_ns, flow.stream = values.get("start_ns", 0), values.get("stream", -1)
        flows.append(flow)
    return flows


def read_matrix(lines: Iterable[str]) -> Matrix:
    """The flows and triggers of a connection matrix."""
    made = Matrix()
    for number, text in enumerate(lines, 1):
        words = text.split()
        if not words or words[0].startswith("#"):
            continue
        if "->" in words[0]:
            made.flows.append(_flow(number, words))
        elif words[0] == "trigger":
            _trigger(number, words, made)
        elif words[0] in ("Nodes", "Connections", "Triggers", "Failures") and len(words) == 2:
            count = _whole(number, words[0], words[1], TRANSFERS_MAX)
            if words[0] == "Nodes":
                made.nodes = count
            elif words[0] == "Connections":
                made.connections = count
            elif words[0] == "Failures" and count:
                raise FlowsError(f"line {number}: failures are not read: use [[events]]")
        else:
            raise FlowsError(f"line {number}: {words[0]!r} is neither a flow nor a header")
    if made.connections is not None and made.connections != len(made.flows):
        raise FlowsError(f"it has {len(made.flows):,} flows, not {made.connections:,} as it says")
    return made


def _flow(line: int, words: list[str]) -> Flow:
    source, _, target = words[0].partition("->")
    flow = Flow(line, *(_whole(line, "a node", one, TRANSFERS_MAX) for one in (source, target)))
    started = False
    values = iter(words[1:])
    for name in values:
        value = next(values, None)
        if value is None:
            raise FlowsError(f"line {line}: {name} needs a value")
        if name == "start":
            flow.start_ns, started = _start_ns(line, value), True
        elif name == "size":
            flow.bytes = _whole(line, name, value, BYTES_MAX)
        elif name in ("trigger", "send_done_trigger", "recv_done_trigger"):
            place = {"trigger": "trigger", "send_done_trigger": "sent"}.get(name, "received")
            setattr(flow, place, _whole(line, name, value, TRANSFERS_MAX, 1))
        elif name not in ("id", "prio"):
            raise FlowsError(f"line {line}: {name!r} is not known")
    if flow.bytes == 0:
        raise FlowsError(f"line {line}: a flow needs a size in bytes")
    if started == (flow.trigger != 0):
        raise FlowsError(f"line {line}: a flow has either a start or a trigger")
    return flow


def _start_ns(line: int, text: str) -> int:
    try:
        start_ns = float(text) / 1_000
    except ValueError:
        raise FlowsError(f"line {line}: start is {text!r}: give picoseconds") from None
    if not 0 <= start_ns <= TIME_NS_MAX:
        raise FlowsError(f"line {line}: start is {text}: it must be 0 or more picoseconds")
    return round(start_ns)


def _trigger(line: int, words: list[str], made: Matrix) -> None:
    own, kind, count = 0, "", 0
    values = iter(words[1:])
    for name in values:
        if name in ("oneshot", "multishot", "barrier"):
            kind = name
        elif name in ("id", "count"):
            number = _whole(line, name, next(values, ""), TRANSFERS_MAX, 1)
            own, count = (number, count) if name == "id" else (own, number)
        else:
            raise FlowsError(f"line {line}: {name!r} is not known")
    if own == 0 or kind == "":
        raise FlowsError(f"line {line}: a trigger needs an id, and oneshot or barrier")
    made.triggers[own] = (kind, count)


def job_of(matrix: Matrix, ranks: int) -> Job:
    """The transfers of the flows, each after those that trigger it."""
    flows = matrix.flows
    if not flows:
        raise FlowsError("it has no flows")
    for flow in flows:
        for node in (flow.source, flow.target):
            if node >= ranks:
                raise FlowsError(f"line {flow.line}: node {node}: nodes are 0 to {ranks - 1}")
        if flow.source == flow.target:
            raise FlowsError(f"line {flow.line}: node {flow.source} sends to itself")
    made = transfers(len(flows))
    for name, place in (("from", "source"), ("to", "target"), ("bytes", "bytes")):
        made[name] = [getattr(flow, place) for flow in flows]
    made["start_ns"] = [flow.start_ns for flow in flows]
    # Streams of their own come after all that the file names.
    least = 1 + max(flow.stream for flow in flows)
    made["stream"] = [
        least + number if flow.stream < 0 else flow.stream for number, flow in enumerate(flows)
    ]
    pairs = np.array(_waits(matrix), np.int64).reshape(-1, 2)
    return Job(made, waits(pairs[:, 0], pairs[:, 1]))


def _waits(matrix: Matrix) -> list[tuple[int, int]]:
    """Pairs of flows by number: the second one waits for the first."""
    activate: dict[int, list[tuple[int, int]]] = defaultdict(list)  # trigger: flow, its host
    for number, flow in enumerate(matrix.flows):
        if flow.sent:
            activate[flow.sent].append((number, flow.source))
        if flow.received:
            activate[flow.received].append((number, flow.target))
    pairs = []
    for number, flow in enumerate(matrix.flows):
        if flow.trigger == 0:
            continue
        kind, count = matrix.triggers.get(flow.trigger, ("", 0))
        causes = activate[flow.trigger]
        what = f"line {flow.line}: trigger {flow.trigger}"
        if kind == "":
            raise FlowsError(f"{what} is not in the file")
        if kind == "multishot" or (kind == "oneshot" and len(causes) != 1):
            raise FlowsError(f"{what}: only a oneshot of one flow and a barrier can be simulated")
        if kind == "barrier" and count not in (0, len(causes)):
            raise FlowsError(f"{what}: the barrier waits for {count} flows of {len(causes)}")
        for cause, host in causes:
            if host != flow.source:
                raise FlowsError(
                    f"{what}: line {matrix.flows[cause].line} ends at node {host}, and this flow "
                    f"begins at node {flow.source}"
                )
            pairs.append((cause, number))
    return pairs


def load(file: Path, ranks: int) -> Job:
    """Reads a list of flows; BadWorkError if it is wrong, or has nodes that are no rank."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            if file.suffix == ".csv":
                matrix = Matrix(read_csv(lines))
            elif file.suffix == ".cm":
                matrix = read_matrix(lines)
            else:
                raise FlowsError("name a .csv file, or a .cm file of htsim")
        return job_of(matrix, ranks)
    except OSError as error:
        raise BadWorkError("file", f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadWorkError("file", f"{file}: not text") from None
    except (FlowsError, csv.Error) as error:
        raise BadWorkError("file", f"{file}: {error}") from None
