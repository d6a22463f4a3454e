"""Learns how long a job pauses without a fault, as for checkpoints and evaluations."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts

Array = NDArray[Any]

# A pause counts as long if it exceeds both TAUGHT_ITERATIONS iterations and TAUGHT_NS.
TAUGHT_ITERATIONS = 5
TAUGHT_NS = 1_000_000_000
TAUGHT_PAUSES = 2  # this many long pauses must have been seen before longest_ns is trusted
TIMES = 2.0  # a pause longer than this times the longest known one proves a hang
PAUSE_NS_MIN = 500_000_000  # no shorter pause is a hang: records come to the files with a delay
FAULTS_MAX = 64


@dataclass
class Pauses:
    """The pauses that a job makes without a fault.

    longest_ns: the longest such pause that has ended. taught: the number of long ones that have
    ended, where pauses of several ranks that overlap count once. untaught_ns: until enough long
    pauses were seen, only a longer pause than this proves a hang.
    """

    untaught_ns: int
    longest_ns: int = 0
    taught: int = 0
    _last: dict[tuple[str, int], int] = field(default_factory=dict)
    _until_ns: int = -1
    _faults: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=FAULTS_MAX))

    def patience_ns(self) -> int:
        """A pause must be longer than this to prove a hang."""
        known_ns = int(TIMES * max(self.longest_ns, PAUSE_NS_MIN))
        return known_ns if self.taught >= TAUGHT_PAUSES else max(known_ns, self.untaught_ns)

    def is_strange(self, pause_ns: int) -> bool:
        """Whether a pause is longer than any that the job is known to have made without a fault."""
        return pause_ns > max(self.longest_ns, PAUSE_NS_MIN)

    def fault(self, from_ns: int, to_ns: int) -> None:
        """Notes that a fault made the job pause in this time, so that learn() ignores it."""
        if self._faults and self._faults[-1][0] == from_ns:
            self._faults.pop()
        self._faults.append((from_ns, to_ns))

    @property
    def fault_ns(self) -> int:
        """When the last fault that made the job pause was last seen; -1: there was none."""
        return max((to_ns for _, to_ns in self._faults), default=-1)

    def learn(self, facts: Facts, usual_ns: int) -> None:
        """Learns the lengths of the pauses that have ended and that no fault caused."""
        begins, ends = self._pauses(facts)
        # A pause that a fault caused ends with the first progress after the fault, so every pause
        # that overlaps a fault is left out.
        good = np.ones(len(begins), bool)
        for from_ns, to_ns in self._faults:
            good &= (ends < from_ns) | (begins > to_ns)
        begins, ends = begins[good], ends[good]
        if not len(begins):
            return
        lengths = ends - begins
        self.longest_ns = max(self.longest_ns, int(lengths.max()))
        long = lengths > max(TAUGHT_ITERATIONS * usual_ns, TAUGHT_NS)
        for begin_ns, end_ns in sorted(
            zip(begins[long].tolist(), ends[long].tolist(), strict=True)
        ):
            # Pauses of several ranks that overlap count once.
            self.taught += self._until_ns - begin_ns < (end_ns - begin_ns) // 2
            self._until_ns = max(self._until_ns, end_ns)

    def _pauses(self, facts: Facts) -> tuple[Array, Array]:
        """Begin and end of each time without progress of a process.

        The first one begins with the last progress of the previous call. Progress is defined as in
        transport.diagnose.hang.standstill_of.
        """
        calls, edges = facts.calls, facts.edges
        process = np.concatenate([*[calls["process"]] * 3, edges["source"], edges["target"]])
        times = np.concatenate(
            [
                calls["end_ns"],
                calls["begin_ns"],
                calls["arrival_ns"],
                edges["end_ns"],
                edges["end_ns"],
            ]
        )
        keys = [(one.host, one.pid) for one in facts.processes]
        known = np.array([self._last.get(key, -1) for key in keys], np.int64)
        good = times >= 0
        process = np.concatenate([process[good], np.arange(len(keys))])
        times = np.concatenate([times[good], known])
        order = np.lexsort((times, process))
        process, times = process[order], times[order]
        last = np.full(len(keys), -1, np.int64)
        np.maximum.at(last, process, times)
        self._last = dict(zip(keys, last.tolist(), strict=True))
        same = (process[1:] == process[:-1]) & (times[:-1] >= 0)
        return times[:-1][same], times[1:][same]
