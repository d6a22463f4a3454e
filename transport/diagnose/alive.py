"""The traced processes that still run on this host, and in which state they are."""

from __future__ import annotations

import socket
from pathlib import Path

from transport.trace.store import Store

PROC = Path("/proc")
STOPPED = ("T", "t")


def states(store: Store) -> dict[int, str]:
    """Number of each process that still exists here -> its state, as ps shows it (R, S, D, T, Z).

    A process counts if its host, its id and the time of its start are those of the trace.
    """
    host = socket.gethostname()
    rows = store.rows("SELECT process, host, pid, start_ticks FROM processes WHERE pid IS NOT NULL")
    found = {}
    for process, where, pid, start_ticks in rows:
        if where == host:
            state = _state(int(pid), start_ticks)
            if state:
                found[int(process)] = state
    return found


def _state(pid: int, start_ticks: int | None) -> str:
    """The state of a process; empty: there is none that was started then."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (OSError, ValueError):
        return ""
    words = text.rpartition(")")[2].split()
    # Fields 3 and 22 of proc(5): the state, and when the process was started.
    if len(words) < 20 or start_ticks is None or int(words[19]) != start_ticks:
        return ""
    return words[0]
