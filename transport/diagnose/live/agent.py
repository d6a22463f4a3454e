"""The agent of a host: follows its traces, looks at its processes, and makes its summary."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from transport.diagnose.live.columns import Table
from transport.diagnose.live.follow import Follower, Trace
from transport.diagnose.live.layout import PROCESSES_MAX
from transport.diagnose.live.share import HostFile
from transport.diagnose.live.summary import Summary
from transport.trace.folder import number
from transport.trace.gather import missing

GONE_NS = 600_000_000_000  # a process that is gone for this long is forgotten


class Evidence(Protocol):
    """A source of evidence on processes and devices other than their traces."""

    def look(self, processes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """The evidence, and lines that say what cannot be observed, each line once.

        Also sets `state` in the mapping of each process.
        """
        ...


@dataclass
class Agent:
    """Summarizes the traces of a host. host: its name in the summary; spent_ns: CPU time used.

    over: number of traces that are followed no longer, because their processes have ended.
    """

    follower: Follower
    summary: Summary
    evidence: Evidence | None = None
    host: str = field(default_factory=socket.gethostname)
    sequence: int = 0
    spent_ns: int = 0
    over: int = 0
    _gone: set[int] = field(default_factory=set)
    _numbers: dict[tuple[str, ...], int] = field(default_factory=dict)

    def step(self) -> HostFile:
        """Reads what was added to the traces; returns the host's summary."""
        began_ns = time.process_time_ns()
        self.follower.step()
        read_ns = self._now_ns()
        self._forget(read_ns)
        traces = self._numbered()
        self.summary.step(traces)
        tables = self.summary.now
        notes = list(self.follower.problems)
        processes = [
            _described(number, key, trace)
            for (key, number), trace in zip(self._numbers.items(), traces.values(), strict=True)
        ]
        for one in processes:
            one["idle_ns"] = _idle_ns(one, tables, read_ns)
        seen: list[dict[str, Any]] = []
        if self.evidence is not None:
            seen, more = self.evidence.look(processes)
            notes += more
        self._gone = {
            one["process"]
            for one in seen
            if one["kind"] in ("gone", "zombie") and read_ns - one["since_ns"] > GONE_NS
        }
        self.sequence += 1
        self.spent_ns += time.process_time_ns() - began_ns
        return HostFile(self.host, self.sequence, read_ns, processes, seen, notes, tables)

    def _now_ns(self) -> int:
        """The time on the clock of the traces, which does not jump when the host's clock is set."""
        for ahead_ns in self.follower.ahead_ns.values():
            return time.monotonic_ns() + ahead_ns
        return time.time_ns()

    def _numbered(self) -> dict[int, Trace]:
        """The traces by number; new ones get the next numbers."""
        for key in self.follower.traces:
            if key not in self._numbers and len(self._numbers) < PROCESSES_MAX:
                self._numbers[key] = max(self._numbers.values(), default=-1) + 1
        return {number: self.follower.traces[key] for key, number in self._numbers.items()}

    def _forget(self, now_ns: int) -> None:
        """Forgets processes whose traces ended long ago, and those that died long ago."""
        gone = set()
        for key, trace in list(self.follower.traces.items()):
            last_ns = trace.last_ns + trace.ahead_ns
            is_old = now_ns - last_ns > self.follower.window_ns
            if (trace.ended and is_old) or self._numbers.get(key) in self._gone:
                gone.add(key)
        self.over += len(gone)
        for key in gone:
            self.follower.forget(key)
        self.summary.forget({self._numbers.pop(key) for key in gone & set(self._numbers)})


def _idle_ns(one: dict[str, Any], tables: dict[str, Table], now_ns: int) -> int:
    """For how long a process has neither begun nor finished an operation; 0: one is still open."""
    calls, messages = tables["calls"], tables["messages"]
    mine, other = calls["process"] == one["number"], messages["process"] == one["number"]
    if (calls["end_ns"][mine] < 0).any():
        return 0
    times = [calls[name][mine].max(initial=-1) for name in ("begin_ns", "arrival_ns", "end_ns")]
    last_ns = int(max(*times, messages["end_ns"][other].max(initial=-1)))
    return now_ns - last_ns if last_ns >= 0 else 0


def _described(at: int, key: tuple[str, ...], trace: Trace) -> dict[str, Any]:
    """A process as JSON. state: as ps shows it; "": it has ended, "?": unknown; None: not read."""
    files, identity, seen = trace.files, trace.files.identity, trace.first_ns is not None
    return {
        "number": at,
        "trace": key[0],
        "host": files.host,
        "clock_name": files.clock,
        "pid": number(identity, "pid") or 0,
        "start_ticks": identity.get("start_ticks", ""),
        "rank": files.rank,
        "world_size": number(identity, "WORLD_SIZE"),
        "job": files.job,
        "attempt": files.attempt,
        "ended": trace.ended,
        "dropped": min(trace.dropped, (1 << 63) - 1),
        "damage": "; ".join(filter(None, (trace.damage, *(missing(*one) for one in files.gaps)))),
        "first_ns": (trace.first_ns or 0) + trace.ahead_ns if seen else None,
        "last_ns": trace.last_ns + trace.ahead_ns if seen else None,
        "closed_ns": None if trace.closed_ns is None else trace.closed_ns + trace.ahead_ns,
        "whole": trace.whole,
        "state": None,
    }
