"""The records that the hosts of a simulated run made of its transfers, paths and events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from transport.sim.network import Array


@dataclass(frozen=True, eq=False)
class Traced:
    """The records of a run's hosts; fields as in native/sim/fabric/fabric_trace.h."""

    transfers: Array
    paths: Array  # records of paths, sorted by host and time
    events: Array  # events, sorted by host and time
    route_ends: Array  # [row, 3]: sender, receiver and path, of all hosts that communicate
    route_ports: Array  # [row, 8]: the ports that the path passes, -1 after the last one

    @cached_property
    def path_rows(self) -> Array:
        """First row of each host in `paths`; one more for the end."""
        return _starts(self.paths["host"])

    @cached_property
    def event_rows(self) -> Array:
        """First row of each host in `events`; one more for the end."""
        return _starts(self.events["host"])

    def paths_of(self, host: int) -> Array:
        return _of(self.paths, self.path_rows, host)

    def events_of(self, host: int) -> Array:
        return _of(self.events, self.event_rows, host)


def _starts(hosts: Array) -> Array:
    last = int(hosts[-1]) if len(hosts) else -1
    return np.searchsorted(hosts, np.arange(last + 2))


def _of(rows: Array, starts: Array, host: int) -> Array:
    return rows[starts[host] : starts[host + 1]] if host + 1 < len(starts) else rows[:0]
