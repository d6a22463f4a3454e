"""Finds a time in which no path between some hosts worked, although their processes ran.

Such a job stands still and then goes on, so its iterations show one long pause and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from transport.diagnose.cpu_wait import STARVED, recorded, waited_ns
from transport.diagnose.cut_off import ALL_PATHS, known_paths
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place, graded
from transport.diagnose.stopped import Stalls
from transport.diagnose.windows import Windows
from transport.ground.units import percent, time_text

ITERATIONS_MIN = 2.0  # an outage lasts longer than this many iterations
OVERLAP = 0.5  # outages of pairs are one if they share this part of the longer one
QUERY = (
    "SELECT process, peer, path, what, time_ns FROM events WHERE what IN ('path_down', 'path_up') "
    "ORDER BY time_ns"
)


@dataclass(frozen=True)
class _Outage:
    """A time in which no path of a process to a peer worked."""

    source: int
    target: int
    from_ns: int
    to_ns: int

    def overlaps(self, other: _Outage) -> bool:
        shared = min(self.to_ns, other.to_ns) - max(self.from_ns, other.from_ns)
        longer = max(self.to_ns - self.from_ns, other.to_ns - other.from_ns)
        return shared >= OVERLAP * longer


def outage(facts: Facts, windows: Windows) -> Finding | None:
    """The longest time in which no path between some processes worked, if they ran meanwhile."""
    stalls = Stalls(facts)
    every = [
        one
        for one in _outages(facts)
        if one.to_ns - one.from_ns > ITERATIONS_MIN * windows.usual_ns
        and not any(stalls.longest_ns(end, one.from_ns, one.to_ns) for end in _ends(one))
    ]
    if not every:
        return None
    # One that a lack of cores does not explain says more than a longer one.
    clear = [one for one in every if not _without_core(facts, one)]
    longest = max(clear or every, key=lambda one: one.to_ns - one.from_ns)
    mine = [one for one in every if one.overlaps(longest)]
    place = _place(facts, mine)
    lasted_ns = longest.to_ns - longest.from_ns
    pairs = sorted({_ends(one) for one in mine})
    named = "; ".join(f"{facts.name(one)} to {facts.name(other)}" for one, other in pairs[:4])
    more = f" and {len(pairs) - 4} more" if len(pairs) > 4 else ""
    made = Finding(
        "network_loss",
        place,
        longest.from_ns,
        longest.to_ns,
        0.9,
        True,
        f"For {time_text(lasted_ns)} no path worked between some ranks ({named}{more}), and then "
        "paths came back. The processes ran meanwhile.",
        QUERY,
        "See what changed on the hosts and switches then: a firewall, a link that went down, a "
        "switch that restarted (ethtool -S, dmesg).",
        lost_ns=lasted_ns,
        weight=float(lasted_ns),
    )
    without = _without_core(facts, longest)
    return graded(replace(made, evidence=made.evidence + without), not without)


def _without_core(facts: Facts, one: _Outage) -> str:
    """Text about an end of an outage that had no core for as long; empty: both had their cores.

    Without a core, a process neither answers nor reads answers, and its peers' paths fail.
    """
    share_of = recorded(facts)
    waited = {end: waited_ns(facts, end, one.from_ns, one.to_ns) for end in _ends(one)}
    end = max(waited, key=lambda each: waited[each])
    share = share_of(end, one.from_ns, one.to_ns) or 0.0
    if share < STARVED or waited[end] < one.to_ns - one.from_ns:
        return ""
    return (
        f" A thread of {facts.name(end)} was ready to run and had no core for {percent(share, 0)} "
        "of the time then, which explains it as well."
    )


def _ends(one: _Outage) -> tuple[int, int]:
    return one.source, one.target


def _outages(facts: Facts) -> list[_Outage]:
    """The outages of each process to each peer that ended before the trace does."""
    known, downs = known_paths(facts), facts.downs
    most = max(known.values(), default=0)
    order = np.argsort(downs["time_ns"], kind="stable")
    columns = (downs[name][order].tolist() for name in ("source", "target", "path", "what"))
    down: dict[tuple[int, int], set[int]] = {}
    since: dict[tuple[int, int], int] = {}
    found = []
    for source, target, path, what, when in zip(
        *columns, downs["time_ns"][order].tolist(), strict=True
    ):
        pair = (source, target)
        if target < 0 or what not in ("path_down", "path_up"):
            continue
        paths = down.setdefault(pair, set())
        if what == "path_down":
            paths.add(path)
        else:
            paths.discard(path)
        whole = max(known.get(pair, most), 1)
        if len(paths) >= ALL_PATHS * whole:
            since.setdefault(pair, when)
        elif pair in since:
            found.append(_Outage(source, target, since.pop(pair), when))
    return found


def _place(facts: Facts, mine: list[_Outage]) -> Place:
    """What all pairs have in common: a process's NIC, a host, or only the network between hosts."""
    ends = [set(_ends(one)) for one in mine]
    common = set.intersection(*ends)
    ranks = tuple(sorted(facts.processes[one].rank for one in set.union(*ends)))
    if len(common) == 1:
        (one,) = common
        return Place("nic", f"NIC of {facts.name(one)}", (facts.processes[one].rank,))
    hosts = [{facts.processes[end].host for end in each} for each in ends]
    shared = set.intersection(*hosts)
    if len(shared) == 1:
        (host,) = shared
        return Place("host", f"host {host}", ranks)
    names = " and ".join(sorted(set.union(*hosts))[:4])
    return Place("network", f"the network between {names}", ranks)
