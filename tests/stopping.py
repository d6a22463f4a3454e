"""Stops processes by SIGSTOP: for a test, or for a moment at random beside the tests.

A process that a test keeps stopped has a mark, so that whoever stops and continues processes
beside the tests does not continue it.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until

MARKS = Path(f"/tmp/weft-tests-stopped-{os.geteuid()}")  # also in tests/plugin/host_trouble.cc


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keeps other processes from marking, stopping and continuing meanwhile."""
    MARKS.mkdir(exist_ok=True)
    with (MARKS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    with contextlib.suppress(FileNotFoundError):  # a thread has just ended: look again
        stats = [(one / "stat").read_text() for one in Path(f"/proc/{pid}/task").iterdir()]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
    return False


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keeps a process stopped during the `with`."""
    mark = MARKS / str(pid)
    with _alone():
        mark.touch()
        os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: is_stopped(pid), f"process {pid} does not stop")
        yield
    finally:
        with _alone():
            mark.unlink()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def pause(pid: int, seconds: float) -> None:
    """Stops a process for some time, unless a test keeps it stopped, or has ended it."""
    mark = MARKS / str(pid)
    with _alone(), contextlib.suppress(ProcessLookupError):
        if mark.exists():
            return
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    with _alone(), contextlib.suppress(ProcessLookupError):
        if not mark.exists():
            os.kill(pid, signal.SIGCONT)
