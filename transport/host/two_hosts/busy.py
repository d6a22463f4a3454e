"""How busy this host was during a test: time without a CPU, and packets that it dropped."""

from __future__ import annotations

import time
from pathlib import Path

from transport.host.probes import number, read_text

TASKS = Path("/proc/self/task")
STEAL = 8  # of the fields after "cpu" in /proc/stat, as proc_stat(5) counts them


class BusyWatch:
    """Watches from its making on."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._waited_ns, self._ticks = _waited_ns(), _ticks()
        self._dropped = _dropped()

    @property
    def waited_percent(self) -> int:
        """The share of the time in which a thread waited for a CPU, of the thread that waited most.

        Or that in which the hypervisor gave the CPUs to others, if it is larger. 0 if neither is
        known.
        """
        elapsed_ns = max(1.0, (time.monotonic() - self._began_s) * 1e9)
        now = _waited_ns()
        waits = [now[one] - before for one, before in self._waited_ns.items() if one in now]
        total, stolen = (b - a for a, b in zip(self._ticks, _ticks(), strict=True))
        share = max(max(waits, default=0) / elapsed_ns, stolen / total if total > 0 else 0.0)
        return round(100 * min(1.0, max(0.0, share)))

    @property
    def dropped(self) -> int:
        """Packets that this host received and dropped, for want of CPU or room in sockets."""
        return max(0, _dropped() - self._dropped)


def _waited_ns() -> dict[str, int]:
    """The time for which each thread waited for a CPU (Linux, scheduler/sched-stats)."""
    try:
        threads = [one.name for one in TASKS.iterdir()]
    except OSError:
        return {}
    texts = {one: read_text(TASKS / one / "schedstat").split() for one in threads}
    return {one: number(words[1]) for one, words in texts.items() if len(words) >= 2}


def _ticks() -> tuple[int, int]:
    """All ticks of the CPUs, and those that the hypervisor gave to others."""
    words = read_text("/proc/stat").partition("\n")[0].split()
    fields = [number(one) for one in words[1:]]
    return sum(fields[:STEAL]), fields[STEAL - 1] if len(fields) >= STEAL else 0


def _dropped() -> int:
    """Packets that overflowed the backlogs of the CPUs or the buffers of UDP sockets."""
    backlogs = (line.split() for line in read_text("/proc/net/softnet_stat").splitlines())
    found = sum(int(words[1], 16) for words in backlogs if len(words) > 1)
    lines = read_text("/proc/net/snmp").splitlines()
    names, values = ([one.split() for one in lines if one.startswith("Udp:")] + [[], []])[:2]
    found += sum(
        number(value) for name, value in zip(names, values, strict=False) if name == "RcvbufErrors"
    )
    for line in read_text("/proc/net/snmp6").splitlines():
        if line.startswith("Udp6RcvbufErrors"):
            found += number(line.split()[-1])
    return found
