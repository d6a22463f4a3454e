"""Starts and ends worker processes.

Only the parent handles Ctrl-C, and a worker ends when its parent ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process, resource_tracker

from transport.ground import interrupts

PR_SET_PDEATHSIG = 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Blocks SIGINT inside the `with`, which starts processes.

    A child inherits the blocked signals. Otherwise a child that is still importing when Ctrl-C
    comes would end with a KeyboardInterrupt, and look like a crash of its run.
    """
    # Starting the resource tracker unblocks SIGINT, so start it before the signal is blocked.
    resource_tracker.ensure_running()
    with interrupts.interrupts_held():  # a thread that does not block the signal may take it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent() -> None:
    """Prepares a worker: it ignores Ctrl-C, and it ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = parent_process()
    if parent is not None and not parent.is_alive():  # the parent ended before the call above
        os._exit(1)
