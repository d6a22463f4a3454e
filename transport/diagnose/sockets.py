"""Finds hosts whose sockets overflow, by what their kernel counted (SO_RXQ_OVFL, socket(7)).

To its peers, such a host loses packets as a bad link or a full queue does. The engine writes an
event host_drops whenever the kernel reports more datagrams that it dropped for want of room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.ground.units import percent

Array = NDArray[Any]

DROPS_MIN = 8
RATE_MIN = 0.005  # a host that drops a smaller share of what is sent to it is no fault
QUERY = (
    "SELECT process, sum(value) AS dropped, min(time_ns) AS first_ns, max(time_ns) AS last_ns "
    "FROM events WHERE what = 'host_drops' GROUP BY ALL ORDER BY dropped DESC"
)


def overflowing_sockets(facts: Facts) -> list[Finding]:
    """A finding for the process whose sockets dropped most, if it is a clear share of its data."""
    rows = facts.downs["what"] == "host_drops"
    if not rows.any():
        return []
    source, value = facts.downs["source"][rows], facts.downs["value"][rows].astype(np.int64)
    dropped = np.bincount(source, value, len(facts.processes))
    one = int(dropped.argmax())
    sent = _sum(facts.sent, "target", one, "sent") + _sum(facts.sent, "source", one, "sent")
    rate = float(dropped[one]) / max(sent, float(dropped[one]), 1.0)
    if dropped[one] < DROPS_MIN or rate < RATE_MIN:
        return []
    lost = _sum(facts.losses, "target", one, "segments")
    lost += _sum(facts.losses, "source", one, "segments")
    times = facts.downs["time_ns"][rows][source == one]
    name, process = facts.name(one), facts.processes[one]
    more = f" Its peers and it counted {lost} lost segments." if lost else ""
    others = int((dropped >= DROPS_MIN).sum()) - 1
    also = f" {others} other ranks drop some as well." if others > 0 else ""
    return [
        Finding(
            "congestion",
            Place("rank", name, (process.rank,)),
            int(times.min()),
            int(times.max()),
            0.9,
            True,
            f"The kernel of {process.host} dropped {int(dropped[one])} datagrams of {name} for "
            f"want of room in its sockets ({percent(rate)} of its data).{more}{also} No cable and "
            "no switch lost these.",
            QUERY,
            "Raise net.core.rmem_max (and wmem_max) and WEFT_SOCKET_BUFFER_BYTES; give the engine "
            "cores of its own (WEFT_ENGINE_CPUS), so that it empties its sockets in time.",
            weight=float(dropped[one]),
        )
    ]


def _sum(table: dict[str, Array], end: str, one: int, column: str) -> int:
    return int(table[column][table[end] == one].sum())
