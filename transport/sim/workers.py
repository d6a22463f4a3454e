"""Worker processes of sweeps and swarms: how they are started, and how they end.

Ctrl-C is left to the parent, and a worker ends when its parent does.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker

PR_SET_PDEATHSIG = 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits while processes are started within.

    A process inherits which signals are blocked: one that is still importing when Ctrl-C comes
    would otherwise end with a KeyboardInterrupt, and look like a crash of its run.
    """
    resource_tracker.ensure_running()  # the first process starts it, and it unblocks SIGINT again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent() -> None:
    """In a worker, first of all: ignores Ctrl-C, and ends the process when its parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is not None and not parent.is_alive():  # it ended before the kernel was asked
        os._exit(1)
