"""Notices a job whose processes were killed: they are gone, and their traces have no end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNKNOWN = "?"  # the state of a process that /proc did not show from the beginning
QUIET_NS = 3_000_000_000  # a process that runs samples its paths each second


@dataclass
class Vanished:
    """Watches the processes of a job on this host, in each interval.

    seen: whether there was one at all. runs: whether one was in /proc, closed its trace, or wrote
    into it lately: one of another container is not in this container's /proc.
    """

    seen: bool = False
    runs: bool = False

    def step(self, processes: Sequence[Mapping[str, Any]], now_ns: int) -> None:
        """processes: as an agent describes them. now_ns: on the clock of the traces."""
        for one in processes:
            self.seen = True
            wrote = one["last_ns"] is not None and now_ns - one["last_ns"] < QUIET_NS
            self.runs |= one["state"] != UNKNOWN or bool(one["ended"]) or wrote

    @property
    def all_gone(self) -> bool:
        """Whether no process was seen to run, though traces without an end are there."""
        return self.seen and not self.runs
