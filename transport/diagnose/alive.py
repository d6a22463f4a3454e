"""The traced processes that still run on this host, and in which state they are."""

from __future__ import annotations

import socket
import time
from pathlib import Path

from transport.trace.store import Store

PROC = Path("/proc")
STOPPED = ("T", "t")
# Seconds to wait for records: a process writes them to its file 20 to 100 ms late.
WRITTEN_AFTER_S = 0.25
QUIET_S = 60.0  # a file that has not changed for this long is no longer written


def settled_ns(folder: Path) -> int:
    """The time of day up to which the traces in a folder are written; waits until they are.

    Pass it to open_store(until_ns=): then the traces of running processes end at the same time.
    """
    now_ns = time.time_ns()
    try:
        changed_s = max((one.stat().st_mtime for one in folder.rglob("*.trace")), default=0.0)
    except OSError:  # a file was removed during the scan, so a process still writes traces
        changed_s = now_ns / 1e9
    if changed_s > now_ns / 1e9 - QUIET_S:
        time.sleep(WRITTEN_AFTER_S)
    return now_ns


def states(store: Store) -> dict[int, str]:
    """Number of each process that still exists here -> its state, as ps shows it (R, S, D, T, Z).

    A process counts only if its host, its id and its start time are those of the trace.
    """
    return {process: state for process, state in _states(store).items() if state}


def gone(store: Store) -> set[int]:
    """Numbers of the processes of this host that run no more; zombies do not."""
    return {process for process, state in _states(store).items() if state in ("", "Z")}


def _states(store: Store) -> dict[int, str]:
    """Number of each process of this host -> its state; empty: it does not exist any more."""
    rows = store.rows(
        "SELECT process, pid, start_ticks FROM processes "
        "WHERE pid IS NOT NULL AND start_ticks IS NOT NULL AND host = ?",
        socket.gethostname(),
    )
    return {int(process): state_of(int(pid), ticks) for process, pid, ticks in rows}


def state_of(pid: int, start_ticks: int | None) -> str:
    """The state of process pid, as ps shows it; empty: no such process started at start_ticks."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (OSError, ValueError):
        return ""
    words = text.rpartition(")")[2].split()
    # Fields 3 and 22 of proc(5): the state, and when the process was started.
    if len(words) < 20 or start_ticks is None or int(words[19]) != start_ticks:
        return ""
    return words[0]
