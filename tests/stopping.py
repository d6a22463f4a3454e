"""Keeps a process stopped for a test."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import until


def is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped."""
    with contextlib.suppress(FileNotFoundError):  # a thread has just ended: look again
        stats = [(one / "stat").read_text() for one in Path(f"/proc/{pid}/task").iterdir()]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
    return False


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Keeps a process stopped during the `with`."""
    # Sent also to a process that is stopped already: what pauses processes beside the tests sees
    # that this signal is pending, and does not continue it.
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: is_stopped(pid), f"process {pid} does not stop")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
