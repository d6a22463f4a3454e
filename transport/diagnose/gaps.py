"""Finds processes that did not run for a while, as if stopped, and then resumed.

Packets to or from such a process that were lost meanwhile say nothing about the network: its
sockets overflowed, and it acknowledged nothing. A stopped process records nothing at all, while its
peers have timeouts; if its NIC failed instead, the process itself has timeouts, too, if it sends. A
process that was stopped for long notices it when it resumes, even if no peer tried to reach it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.facts import Facts
from transport.diagnose.finding import WENT_ON, Finding, Place
from transport.diagnose.stopped import Stalls, had_work
from transport.diagnose.windows import Windows
from transport.ground.units import time_text

Array = NDArray[Any]

WINDOWS_MIN = 3  # in fewer iterations it is not known how long a process usually records nothing
# A gap is more than this many times as long as the usual longest time without a record.
TIMES = 2.0
TIMEOUTS_MIN = 2  # in a gap, peers had at least this many timeouts
# The last timeout comes after this share of the gap, as each wait is at most twice the one before.
TRIED_SHARE = 0.3
# A gap is proven if the process noticed afterwards that it had not run for this share of the gap.
STALLED_SHARE = 0.5
# Without timeouts of peers, only a stall of at least this length counts: busy hosts delay threads.
ALONE_NS = 1_000_000_000
CERTAIN_ITERATIONS = 2.0  # a gap that is shorter than this many iterations is only suspected
# Of a real job, a gap shorter than ALONE_NS is also only suspected, as a host short of CPU delays
# any process; but not if one process alone of its host has this many.
REPEATED = 3
NAMED_MAX = 4
QUERY = (
    "SELECT process, peer, what, value, time_ns FROM events "
    "WHERE what IN ('timeout', 'process_stalled') AND time_ns BETWEEN {} AND {} ORDER BY time_ns"
)


@dataclass(frozen=True)
class Gap:
    """A time in which a process recorded nothing, and acknowledged nothing.

    peers: the processes that tried to reach it without success, `timeouts` times. usual_ns: its
    longest usual time without a record. stalled_ns: how long it noticed that it had not run.
    proven: whether it certainly did not run: it noticed this, or left work of its own undone.
    Otherwise its NIC may have failed while it only waited.
    """

    process: int
    from_ns: int
    to_ns: int
    peers: tuple[int, ...]
    timeouts: int
    usual_ns: int
    stalled_ns: int
    proven: bool

    @property
    def lasted_ns(self) -> int:
        return self.to_ns - self.from_ns

    @property
    def until_ns(self) -> int:
        """Until when the gap explains losses: as a sender doubles its wait after each timeout, its
        next try comes at most one length of the gap after the gap."""
        return self.to_ns + self.lasted_ns


def gaps_of(facts: Facts, windows: Windows) -> list[Gap]:
    """The gaps of all processes, in order of time."""
    downs = facts.downs
    known = np.isin(downs["what"], ("timeout", "path_down", "path_up")) & (downs["target"] >= 0)
    tries = _Tries({name: column[known] for name, column in downs.items()})
    stalls = Stalls(facts)
    noticed = stalls.processes
    if windows.count < WINDOWS_MIN or (len(tries.targets) < TIMEOUTS_MIN and not len(noticed)):
        return []
    found = []
    for one, from_ns, to_ns, usual_ns in _long_pauses(
        facts, windows, np.union1d(tries.targets, noticed)
    ):
        times, source = tries.within(one, from_ns, to_ns)
        stalled = stalls.longest_ns(one, from_ns, to_ns)
        if len(times) < TIMEOUTS_MIN and not stalled:
            continue
        # A peer that others cannot reach either may be cut off itself: its timeouts do not count.
        peers = [each for each in np.unique(source).tolist() if not tries.any(each, from_ns, to_ns)]
        good = times[np.isin(source, peers)]
        late = good.max(initial=from_ns) - from_ns >= TRIED_SHARE * (to_ns - from_ns)
        proven = stalled >= STALLED_SHARE * (to_ns - from_ns)
        gap = Gap(one, from_ns, to_ns, tuple(peers), len(good), usual_ns, stalled, proven)
        if len(good) >= TIMEOUTS_MIN and late and _answers(facts, gap):
            proven = proven or had_work(facts, one, from_ns, to_ns)
            found.append(replace(gap, proven=proven))
        elif proven and stalled >= ALONE_NS:
            found.append(gap)
    return sorted(found, key=lambda gap: (gap.from_ns, gap.process))


def _answers(facts: Facts, gap: Gap) -> bool:
    """Whether the process could be reached soon after the gap; else its NIC may be dead."""
    edges, downs = facts.edges, facts.downs
    up = downs["what"] == "path_up"
    for table, times, kept in ((edges, edges["end_ns"], True), (downs, downs["time_ns"], up)):
        here = (table["target"] == gap.process) & np.isin(table["source"], gap.peers) & kept
        if (here & (times > gap.to_ns) & (times <= gap.until_ns)).any():
            return True
    return False


class _Tries:
    """The timeouts of all senders, by the process that the senders tried to reach."""

    def __init__(self, downs: dict[str, Array]) -> None:
        """downs: the events of timeouts, and of paths that failed or recovered."""
        order = np.lexsort((downs["time_ns"], downs["target"]))
        self._downs = {name: column[order] for name, column in downs.items()}
        self.targets = self._downs["target"][self._downs["what"] == "timeout"]

        path = self._downs["source"].astype(np.int64) << 32 | self._downs["path"].astype(np.int64)
        self._path = path

    def _span(self, target: int, from_ns: int, to_ns: int) -> tuple[int, int, int]:
        """Rows of the first event of `target`, the first after from_ns, the first from to_ns on."""
        low, high = np.searchsorted(self._downs["target"], (target, target + 1))
        times = self._downs["time_ns"][low:high]
        first, last = low + np.searchsorted(times, (from_ns + 1, to_ns))
        return int(low), int(first), int(last)

    def any(self, target: int, from_ns: int, to_ns: int) -> bool:
        """Whether a sender to `target` had a timeout between from_ns and to_ns."""
        _, first, last = self._span(target, from_ns, to_ns)
        return bool((self._downs["what"][first:last] == "timeout").any())

    def within(self, target: int, from_ns: int, to_ns: int) -> tuple[Array, Array]:
        """Time and sender of each timeout to `target` in a span, if its path was not down."""
        low, first, last = self._span(target, from_ns, to_ns)
        path, what = self._path, self._downs["what"]
        here = np.arange(first, last)[what[first:last] == "timeout"]
        if not len(here):
            return self._downs["time_ns"][:0], self._downs["source"][:0]
        before = low + np.flatnonzero(what[low:first] != "timeout")
        ends, latest = np.unique(path[before][::-1], return_index=True)
        failed = ends[what[before][::-1][latest] == "path_down"]
        here = here[~np.isin(path[here], failed)]
        return self._downs["time_ns"][here], self._downs["source"][here]


def _long_pauses(
    facts: Facts, windows: Windows, wanted: Array
) -> Iterator[tuple[int, int, int, int]]:
    """Process, begin and end of each unusually long time without a record of one of the wanted
    processes, and the process's usual longest time without a record: the median of the longest
    times of all iterations."""
    process, times = _records(facts, wanted)
    same = np.flatnonzero(process[1:] == process[:-1])
    process, begin, end = process[same], times[same], times[same + 1]
    lasted = (end - begin).astype(np.float64)
    longest = np.full((windows.count, len(facts.processes)), np.nan)
    np.fmax.at(longest, (windows.of(begin), process), lasted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a process without records
        usual = np.nanmedian(longest, axis=0)[process]
    long = np.flatnonzero(lasted > TIMES * usual)
    columns = (process, begin, end, usual)
    return zip(*(one[long].astype(np.int64).tolist() for one in columns), strict=True)


def _records(facts: Facts, wanted: Array) -> tuple[Array, Array]:
    """The process and time of each record that shows that a wanted process ran, in order.

    Acknowledged messages to it and recovered paths to it also show that it ran. Records before the
    first call of a process are left out: live diagnosis forgets calls sooner than events.
    """
    calls, edges = facts.calls, facts.edges
    parts = [(calls["process"], calls[name]) for name in ("begin_ns", "arrival_ns", "end_ns")]
    parts += [(edges[end], edges["end_ns"]) for end in ("source", "target")]
    parts += [(one["source"], one["time_ns"]) for one in (facts.losses, facts.downs, facts.samples)]
    up = facts.downs["what"] == "path_up"
    parts.append((facts.downs["target"][up], facts.downs["time_ns"][up]))
    mine = [np.isin(one, wanted) for one, _ in parts]
    process, times = (
        np.concatenate(
            [part[at][rows].astype(np.int64) for part, rows in zip(parts, mine, strict=True)]
        )
        for at in (0, 1)
    )
    first = np.full(len(facts.processes), np.iinfo(np.int64).max)
    np.minimum.at(first, calls["process"], calls["begin_ns"])
    kept = (times >= 0) & (times >= first[process])
    process, times = process[kept], times[kept]
    order = np.lexsort((times, process))
    return process[order], times[order]


def _excused(gaps: Sequence[Gap], source: Array, target: Array, times: Array) -> Array:
    """For each loss, whether a proven gap at either end of its connection explains it."""
    made = np.zeros(len(times), bool)
    for one in (each for each in gaps if each.proven):
        made |= (
            ((source == one.process) | (target == one.process))
            & (times >= one.from_ns)
            & (times <= one.until_ns)
        )
    return made


def without_losses(facts: Facts, gaps: Sequence[Gap]) -> Facts:
    """The facts without the losses and timeouts that the proven gaps explain."""
    if not any(one.proven for one in gaps):
        return facts

    def rest(table: dict[str, Array], may_go: Array) -> dict[str, Array]:
        gone = _excused(gaps, table["source"], table["target"], table["time_ns"]) & may_go
        return {name: column[~gone] for name, column in table.items()}

    # Events of recovered paths are kept, as the paths may have failed before the gap.
    fails = np.isin(facts.downs["what"], ("timeout", "path_down"))
    losses = rest(facts.losses, np.ones(len(facts.losses["time_ns"]), bool))
    return replace(facts, losses=losses, downs=rest(facts.downs, fails))


def as_proven(facts: Facts, gaps: Sequence[Gap], pauses: Sequence[Finding]) -> list[Gap]:
    """The gaps that certain findings are about, but that are not proven, as if they were."""
    names = {one.place.name for one in pauses if one.certain and not one.more["proven"]}
    mine = (one for one in gaps if not one.proven and facts.name(one.process) in names)
    return [replace(one, proven=True) for one in mine]


def in_gaps(gaps: Sequence[Gap], windows: Windows) -> Array:
    """[window]: whether it overlaps a gap, which also makes other processes late."""
    made = np.zeros(windows.count, bool)
    for one in gaps:
        first, last = windows.of(np.array([one.from_ns, one.to_ns]))
        made[first : last + 1] = True
    return made


def pauses(facts: Facts, windows: Windows, gaps: Sequence[Gap], since_ns: int) -> list[Finding]:
    """For each process, a finding for the longest of its gaps that ended after since_ns."""
    longest: dict[int, Gap] = {}
    for one in gaps:
        if one.to_ns >= since_ns:
            before = longest.setdefault(one.process, one)
            longest[one.process] = max(before, one, key=lambda each: each.lasted_ns)
    return [
        _finding(facts, gap, certain=_is_certain(facts, windows, gap, gaps))
        for gap in longest.values()
    ]


def certain_pauses(facts: Facts, windows: Windows) -> list[Finding]:
    """Pauses of processes of a job that ended by another fault, but for those that end with it."""
    long = [one for one in gaps_of(facts, windows) if one.lasted_ns > windows.usual_ns]
    return [one for one in pauses(facts, windows, long, 0) if one.certain and one.more["proven"]]


def _is_certain(facts: Facts, windows: Windows, gap: Gap, gaps: Sequence[Gap]) -> bool:
    """Whether the gap is a finding. gaps: those of all processes.

    A NIC that fails for once, and loses all, cannot be told from a gap unless the process noticed;
    one that flaps does so again. A busy host delays processes for less than ALONE_NS.
    """
    count = Counter(one.process for one in gaps)
    if gap.lasted_ns <= CERTAIN_ITERATIONS * windows.usual_ns:
        return False
    if not gap.proven and count[gap.process] > 1:
        return False
    if facts.simulated or gap.lasted_ns >= ALONE_NS:
        return True
    host = facts.processes[gap.process].host
    alone = all(one == gap.process or facts.processes[one].host != host for one in count)
    return alone and count[gap.process] >= REPEATED


def _finding(facts: Facts, gap: Gap, *, certain: bool) -> Finding:
    name, process = facts.name(gap.process), facts.processes[gap.process]
    others = () if gap.proven else (f"NIC of {name}",)
    place = Place("rank", name, (process.rank,), "", others if certain else ())
    advice = (
        f"See what stopped it on {process.host}: a debugger or a signal, swapping, a scheduler or "
        "a limit of the cgroup, a virtual machine that moved."
    )
    if not gap.proven:
        advice += " See also the errors of its NIC and the port (ethtool -S)."
    return Finding(
        "non_communication_hang",
        place,
        gap.from_ns,
        gap.to_ns,
        0.9 if certain else 0.6 if gap.proven else 0.5,
        certain,
        _evidence(facts, gap),
        # A process notices that it was stopped a moment after its first record.
        QUERY.format(gap.from_ns, gap.until_ns),
        advice,
        lost_ns=gap.lasted_ns,
        more={"state": WENT_ON, "proven": gap.proven},
    )


def _evidence(facts: Facts, gap: Gap) -> str:
    parts = [
        f"The process of {facts.name(gap.process)} recorded and acknowledged nothing for "
        f"{time_text(gap.lasted_ns)}, usually {time_text(gap.usual_ns)} at most, and went on."
    ]
    if gap.stalled_ns:
        late_ms = gap.stalled_ns / 1e6
        parts.append(f"Its thread that writes the trace woke up {late_ms:.1f} ms late.")
    if gap.timeouts:
        peers = ", ".join(facts.name(one) for one in gap.peers[:NAMED_MAX])
        parts.append(
            f"{peers} tried {gap.timeouts} times without success to reach it, "
            "and it had no timeouts itself."
        )
    parts.append(
        "It did not run."
        if gap.proven
        else "It did not run, or its NIC did not work while it had nothing to send."
    )
    return " ".join(parts)
