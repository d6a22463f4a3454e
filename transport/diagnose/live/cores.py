"""The time that threads were ready to run and had no core, as the kernel counts it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")
THREADS_MAX = 512  # threads of a process that are read
# A process's share is the maximum of this many readings: the slow iterations that it is to explain
# may be older than the last reading.
REMEMBERED = 3


@dataclass
class Cores:
    """Measures how long threads wait for a core. proc: the folder of the proc file system."""

    proc: Path = PROC
    _before: dict[tuple[int, str], int] = field(default_factory=dict)
    _shares: dict[int, deque[float]] = field(default_factory=dict)
    _read_ns: int = 0

    def read(self, pids: Iterable[int]) -> dict[int, float]:
        """Process id -> the largest share of the time that one of its threads waited for a core.

        It is the largest one of the last REMEMBERED readings. A process has none until its second
        reading.
        """
        now_ns = time.monotonic_ns()
        passed_ns = max(now_ns - self._read_ns, 1)
        now: dict[tuple[int, str], int] = {}
        shares: dict[int, deque[float]] = {}
        for pid in pids:
            worst = -1.0
            for thread, waited_ns in self._threads(pid):
                key = (pid, thread)
                now[key] = waited_ns
                if key in self._before:
                    worst = max(worst, (waited_ns - self._before[key]) / passed_ns)
            if worst >= 0:
                shares[pid] = self._shares.get(pid, deque(maxlen=REMEMBERED))
                shares[pid].append(min(worst, 1.0))
        self._before, self._shares, self._read_ns = now, shares, now_ns
        return {pid: max(each) for pid, each in shares.items()}

    def _threads(self, pid: int) -> Iterator[tuple[str, int]]:
        """The threads of a process, each with the time that it has waited; none if it is gone."""
        try:
            threads = sorted((self.proc / str(pid) / "task").iterdir())[:THREADS_MAX]
        except OSError:
            return
        for thread in threads:
            try:
                # Fields of /proc/PID/task/TID/schedstat: time run, time waited, turns; in ns.
                yield thread.name, int((thread / "schedstat").read_text().split()[1])
            except (OSError, ValueError, IndexError):  # the thread ended, or waits are not counted
                continue
