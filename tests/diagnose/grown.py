"""Traces that grow as those of running processes, and an agent that follows them."""

from __future__ import annotations

import struct
from collections.abc import Collection
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.trace.writer import block
from transport.diagnose.live.agent import Agent
from transport.diagnose.live.follow import Follower
from transport.diagnose.live.merge import Job, merged
from transport.diagnose.live.share import HostFile, parse, write
from transport.diagnose.live.summary import Summary
from transport.native import trace_records
from transport.trace.layout import HEADER, read_header

FOREVER_NS = 1 << 61
STANDING = ("text", "communicator", "connection")
OPERATIONS = (
    *("communicator", "communicator_end", "operation", "operation_end"),
    *("channel", "channel_end", "kernel"),
)


def agent(folder: Path, windows: int = 1000) -> Agent:
    """An agent of all hosts of a simulated job, whose iterations take about a millisecond."""
    summary = Summary(
        windows=windows, kept_ns=0, window_ns=FOREVER_NS, bucket_ns=100_000, late_ns=2_000_000
    )
    return Agent(Follower(folder, FOREVER_NS), summary, host="all")


def in_order(source: Path, steps: int, without: Collection[str] = ()) -> dict[str, list[bytes]]:
    """The contents of each trace file in pieces, in which records are in order of time."""
    made = {}
    for file in source.glob("*.trace"):
        data = file.read_bytes()
        head = HEADER.unpack_from(data)[2]
        names = {number: kind.name for number, kind in read_header(data).kinds.items()}
        offsets = np.frombuffer(trace_records(data, head)[0], np.uint64).tolist()
        records, end = [], []
        for at in offsets:
            kind, size, _, time_ns = struct.unpack_from("<HHIq", data, at)
            record = data[at : at + size]
            if names[kind] == "end":
                end.append(record)
            elif names[kind] not in without:
                first = names[kind] in STANDING or time_ns < 0
                records.append((-1 if first else time_ns, record))
        records.sort(key=lambda one: one[0])
        cuts = [len(records) * at // steps for at in range(steps + 1)]
        parts = [b"".join(one for _, one in records[a:b]) for a, b in pairwise(cuts)]
        pieces = [block(part, number=at) for at, part in enumerate(parts)]
        pieces[0] = data[:head] + pieces[0]
        pieces[-1] += b"".join(block(one, number=steps) for one in end)
        made[file.name] = pieces
    return made


def grow(folder: Path, pieces: dict[str, list[bytes]], step: int) -> None:
    """Appends the pieces of a step to the files."""
    for name, parts in pieces.items():
        with (folder / name).open("ab") as out:
            out.write(parts[step])


def followed(
    source: Path, folder: Path, steps: int, one: Agent, without: Collection[str] = ()
) -> HostFile:
    """The summary of an agent that reads while the files grow."""
    folder.mkdir()
    pieces = in_order(source, steps, without)
    for step in range(steps):
        grow(folder, pieces, step)
        said = one.step()
    return said


def job_of(said: HostFile, folder: Path) -> Job:
    """The job of a host's summary, after it was written and read again."""
    folder.mkdir(exist_ok=True)
    write(folder, said)
    (file,) = folder.glob("weft-host-*.summary")
    found = merged([parse(file.read_bytes())], None)
    assert found is not None
    return found
