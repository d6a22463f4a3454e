"""Finds what connections failed by: a process that did not run, or a network that carries nothing.

Each end records the status with which its connection ended (native/core/status.h). A status of 0,
or that of a peer that closed its connections, is no failure.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place
from transport.trace.store import Store

PEER_SILENT, NO_PROGRESS, PEER_STALLED = 6, 20, 21
QUERY = (
    "SELECT process, peer, status, end_ns FROM connections WHERE status IN (6, 20, 21) "
    "ORDER BY end_ns"
)
_ENDS = (
    "SELECT a.process, b.process, a.status, a.end_ns FROM connections a JOIN connections b "
    "ON a.pair = b.pair AND a.process <> b.process "
    f"WHERE a.status IN ({PEER_SILENT}, {NO_PROGRESS}, {PEER_STALLED}) ORDER BY a.end_ns"
)
End = tuple[int, int, int]  # a process, its peer, and when their connection failed


def failed(store: Store, facts: Facts, numbers: dict[int, int]) -> list[Finding]:
    """A finding for the connections that failed first, by the process that most of them had.

    numbers: number of a process in the trace -> its index in the facts.
    """
    ends: dict[int, list[End]] = {}
    for one, other, status, when_ns in store.rows(_ENDS):
        if one in numbers and other in numbers:
            ends.setdefault(status, []).append((numbers[one], numbers[other], int(when_ns)))
    if not ends:
        return []
    # Programs that fail close their connections, and others may then fail in another way.
    status = min(ends, key=lambda each: ends[each][0][2])
    mine = ends[status]
    if status == PEER_STALLED:
        return [_stalled(facts, mine)]
    return [_cut(facts, mine, status)]


def _stalled(facts: Facts, ends: list[End]) -> Finding:
    stalled = Counter(peer for _, peer, _ in ends)
    one = max(stalled, key=lambda each: stalled[each])
    name, process = facts.name(one), facts.processes[one]
    peers = sorted({other for other, peer, _ in ends if peer == one})
    said = ", ".join(facts.name(each) for each in peers[:4])
    return Finding(
        "non_communication_hang",
        Place("rank", name, (process.rank,)),
        min(when for _, peer, when in ends if peer == one),
        facts.end_ns,
        0.95,
        True,
        f"{said} ended the connection to {name}: its process on {process.host} did not run for "
        "longer than WEFT_PEER_TIMEOUT=stall allows.",
        QUERY,
        f"See what stopped it on {process.host}: a debugger or a signal, swapping, a limit of the "
        "cgroup; or allow longer stalls (WEFT_PEER_TIMEOUT=stall).",
        more={"status": PEER_STALLED},
    )


def _cut(facts: Facts, ends: list[End], status: int) -> Finding:
    count = Counter(one for end in ends for one in end[:2])
    most = max(count.values())
    alike = sorted(one for one in count if count[one] == most)
    pairs = {tuple(sorted(end[:2])) for end in ends}
    if len(alike) == 1 and len(pairs) > 1:
        place = Place("nic", f"NIC of {facts.name(alike[0])}", (facts.processes[alike[0]].rank,))
    elif len(pairs) == 1:
        place = _pair(facts, *ends[0][:2])
    else:
        place = Place("network", f"the network between {facts.named(np.array(sorted(count)))}")
    what = (
        "the peer answered over its control connection, but over no data path"
        if status == PEER_SILENT
        else "the network carried too little to make progress"
    )
    return Finding(
        "communication_hang",
        place,
        ends[0][2],
        facts.end_ns,
        0.9,
        True,
        f"{len(pairs)} connection{'s' * (len(pairs) != 1)} ended with an error: {what}.",
        QUERY,
        "Test the network between these hosts with weft doctor --serve and --peer; check "
        "firewalls, links, and error counters of the NICs.",
        more={"status": status},
    )


def _pair(facts: Facts, one: int, other: int) -> Place:
    names = f"{facts.name(one)} and {facts.name(other)}"
    return Place("pair", names, (facts.processes[one].rank, facts.processes[other].rank))
