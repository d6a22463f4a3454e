"""What a trace is of: its job, when and where it was recorded."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from transport.ground.units import counted, time_text
from transport.trace.store import Store

VIRTUAL_NS = 365 * 86_400 * 10**9  # a trace from before 1971 is one of a virtual clock
_SPAN = "SELECT min(first_ns), max(last_ns), count(*), count(DISTINCT host) FROM processes"


@dataclass(frozen=True, slots=True)
class About:
    """jobs: their names. first_ns, last_ns: of all records; None: the trace has none."""

    jobs: tuple[str, ...]
    processes: int
    hosts: int
    first_ns: int | None
    last_ns: int | None

    @property
    def duration_ns(self) -> int:
        """Time from the first record to the last one."""
        if self.first_ns is None or self.last_ns is None:
            return 0
        return self.last_ns - self.first_ns

    @property
    def is_simulated(self) -> bool:
        return self.first_ns is not None and self.first_ns < VIRTUAL_NS

    @property
    def began(self) -> str:
        """When the trace begins, as text; "": it has no records."""
        if self.first_ns is None:
            return ""
        if self.is_simulated:
            return "on the virtual clock of a simulation"
        return f"{datetime.fromtimestamp(self.first_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S UTC}"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """The same as (name, text)."""
        jobs = ", ".join(job or "unnamed" for job in self.jobs)
        found = [("job", jobs), ("processes", f"{self.processes} on {counted(self.hosts, 'host')}")]
        if self.began:
            found.append(("recorded", f"{self.began}, for {time_text(self.duration_ns)}"))
        return found


def about(store: Store) -> About:
    """What the trace in a store is of."""
    ((first_ns, last_ns, processes, hosts),) = store.rows(_SPAN)
    return About(tuple(job for job, _ in store.jobs()), processes, hosts, first_ns, last_ns)
