"""Time that the machine spent in softirqs, which no program is charged for or which hits any."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROC = Path("/proc")
SOFTIRQ_FIELD = 7  # of the line `cpu` in /proc/stat


@contextmanager
def softirqs() -> Iterator[dict[str, int | None]]:
    """Fills the dictionary with what the whole machine spent in the block.

    ksoftirqd_ns: threads that run softirqs which were deferred; None: they cannot be seen here.
    softirq_ns: all softirqs, counted in clock ticks. Those of a thread's own system calls are in
    that thread's processor time, too.
    """
    found: dict[str, int | None] = {}
    deferring = ksoftirqd()
    threads, ticks = _threads_ns(deferring), _ticks()
    yield found
    found["ksoftirqd_ns"] = _threads_ns(deferring) - threads if deferring else None
    found["softirq_ns"] = (_ticks() - ticks) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def ksoftirqd() -> list[Path]:
    """The folders of the kernel's threads for deferred softirqs, one for each core."""
    found = []
    for entry in PROC.iterdir():
        try:
            if entry.name.isdigit() and (entry / "comm").read_text().startswith("ksoftirqd/"):
                found.append(entry)
        except OSError:  # the process ended meanwhile
            continue
    return found


def _threads_ns(folders: list[Path]) -> int:
    return sum(int((folder / "schedstat").read_text().split()[0]) for folder in folders)


def _ticks() -> int:
    return int((PROC / "stat").read_text().split("\n", 1)[0].split()[SOFTIRQ_FIELD])
