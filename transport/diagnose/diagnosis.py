"""Diagnoses a job: applies the rules to each window of its trace and to calls that never ended."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from transport.diagnose import calls, gaps, hang, slow
from transport.diagnose.dead_link import dead_link
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.finding import Finding, graded
from transport.diagnose.measures import delays_of, lateness_of
from transport.diagnose.paths import paths_of
from transport.diagnose.windows import (
    WINDOW_MIN_NS,
    Windows,
    judged_windows_of,
    windows_of,
)
from transport.ground.units import time_text
from transport.plan.routes import Routes
from transport.trace.notes import missing_ranks
from transport.trace.store import Store

# A pause that is shorter than this many iterations proves no hang.
PATIENCE_ITERATIONS = 2.0
# Iterations have become longer if the last GROWN_WINDOWS take GROWN times as long as the first.
GROWN, GROWN_WINDOWS = 1.5, 3
PATIENCE_PAUSES = 2.0  # a pause shorter than this many times the longest earlier one proves no hang
# Query of a finding -> the one to use for programs without NCCL, which have no operations.
OF_MESSAGES = {
    hang.OPEN_QUERY: "SELECT process, sends, count(*) AS open, min(posted_ns) AS posted_ns FROM "
    "messages WHERE end_ns IS NULL GROUP BY ALL ORDER BY posted_ns",
    slow.LATE_QUERY: "SELECT s.process, median(s.posted_ns - r.end_ns) AS pause_ns, count(*) FROM "
    "messages s ASOF JOIN (SELECT * FROM messages WHERE NOT sends AND end_ns IS NOT NULL) r "
    "ON s.process = r.process AND s.posted_ns >= r.end_ns WHERE s.sends GROUP BY ALL "
    "ORDER BY pause_ns DESC",
}


@dataclass(frozen=True)
class Settings:
    """Options of a diagnosis. rule: in how many windows a fault must be seen.

    use_paths: False: judges only ranks and pairs of ranks, without weft's records of paths.
    routes: the links that each path crosses. from_window: no window before it is judged for
    slowness. now_ns: the time of day; a job that still runs on this host is judged up to then, any
    other one up to the end of its trace. patience_ns: a shorter pause never proves a hang, whatever
    pauses the trace shows.
    """

    rule: slow.Rule = field(default_factory=slow.Rule)
    use_paths: bool = True
    routes: Routes | None = None
    from_window: int = 0
    now_ns: int | None = None
    patience_ns: int = 0


@dataclass(frozen=True)
class Diagnosis:
    """findings: hangs and crashes, then what slows the job. iterations: windows of the trace.

    missing: number of ranks of the job without a trace, as far as it is known. incomplete: number
    of processes whose trace is damaged or lacks records.
    """

    findings: tuple[Finding, ...]
    iterations: int
    iteration_ns: int
    ranks: int
    notes: tuple[str, ...]
    missing: int = 0
    incomplete: int = 0

    @property
    def healthy(self) -> bool:
        return not any(one.certain for one in self.findings)


def diagnose(store: Store, settings: Settings | None = None) -> Diagnosis:
    """Diagnoses the job in the store. TraceError if its tables cannot be read."""
    settings = settings or Settings()
    facts = facts_of(store, settings.now_ns)
    numbers = {
        row[0]: at
        for at, row in enumerate(store.rows("SELECT process FROM processes ORDER BY rank, process"))
    }
    found = judged(facts, hang.dead(store, numbers), settings, store.notes())
    missing = len(missing_ranks(store.rows)[0])
    return replace(found, findings=tuple(doubted(found.findings, missing)), missing=missing)


def doubted(findings: Sequence[Finding], missing: int) -> list[Finding]:
    """The findings; a communication_hang is only a suspicion if traces of ranks are missing.

    Ranks may wait for a rank without a trace, which looks as if they waited for a dead path.
    """
    return [
        graded(one, one.certain and not (missing and one.kind == "communication_hang"))
        for one in findings
    ]


def judged(
    facts: Facts, dead: Sequence[tuple[int, int, int]], settings: Settings, notes: Sequence[str]
) -> Diagnosis:
    """Diagnoses a job. dead: number of each dead process, when it died, how many peers saw it."""
    windows = windows_of(facts)
    found = hang.crashes(facts, dead) + calls.mismatches(facts)
    stand = hang.standstill_of(facts, windows)
    brief = False  # whether the job stands still, but for too short a time to prove a hang
    if stand is not None and not found:
        patience_ns = int(
            max(PATIENCE_ITERATIONS * windows.usual_ns, PATIENCE_PAUSES * stand.later_ns)
        )
        patience_ns = max(patience_ns, settings.patience_ns)
        found += hang.hangs(facts, stand, patience_ns)
        brief = facts.end_ns - stand.since_ns < patience_ns
    if not found or (brief and not any(one.certain for one in found)):
        found += _slow(facts, windows, settings)
    if not facts.has_operations:
        found = [replace(one, query=OF_MESSAGES.get(one.query, one.query)) for one in found]
    notes = [*notes, *note_of_short(facts, settings.rule)]
    if not any(one.certain for one in found):
        notes += note_of_longer(windows)
    found = [graded(one, one.certain) for one in found]
    incomplete = sum(not one.whole for one in facts.processes)
    return Diagnosis(
        tuple(found),
        windows.count,
        windows.usual_ns,
        len(facts.processes),
        tuple(notes),
        incomplete=incomplete,
    )


def note_of_short(facts: Facts, rule: slow.Rule) -> list[str]:
    """A note if a real job's trace is too short to judge slowness."""
    judged = judged_windows_of(facts)
    if not judged.count or facts.simulated or judged.count >= rule.seen:
        return []
    return [
        f"slowness was not judged: that takes {rule.seen} windows of {time_text(WINDOW_MIN_NS)}"
    ]


def note_of_longer(windows: Windows) -> list[str]:
    """A note if the iterations became longer and stayed so, which no finding explains."""
    lengths_ns = np.diff(windows.starts_ns)
    if len(lengths_ns) < 2 * GROWN_WINDOWS:
        return []
    before_ns, after_ns = (
        float(np.median(part)) for part in (lengths_ns[:GROWN_WINDOWS], lengths_ns[-GROWN_WINDOWS:])
    )
    if float(lengths_ns[-GROWN_WINDOWS:].min()) < GROWN * before_ns:
        return []
    return [
        f"the last iterations took {after_ns / before_ns:.1f} times as long as the first ones, and "
        "no rank, NIC or link explains it"
    ]


def _slow(facts: Facts, iterations: Windows, settings: Settings) -> list[Finding]:
    """Findings of what slows the job: pauses of processes, and slow places."""
    windows = judged_windows_of(facts)
    if windows.count == 0:
        return []
    every = gaps.gaps_of(facts, iterations)
    # A shorter gap explains losses, but it is no pause of the job.
    long = [one for one in every if one.lasted_ns > iterations.usual_ns]
    paused = gaps.pauses(facts, iterations, long, _begin_ns(facts, windows, settings.from_window))
    facts, unfit = gaps.without_losses(facts, every), gaps.in_gaps(long, windows)
    paths = paths_of(facts, windows, settings.routes) if settings.use_paths else None
    seen = slow.Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
    merged: list[Finding] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # medians of windows without samples
        for at in range(settings.from_window, windows.count):
            stopped = bool(unfit[seen.recent(at, settings.rule)].any())
            found = _judged(seen, at, settings.rule, stopped)
            if found is not None:
                _merge(merged, found)
        dead = dead_link(seen)
        if dead is not None:
            _merge(merged, dead)
    merged = [slow.with_lost(seen, one) for one in merged]
    merged.sort(key=lambda one: (not one.certain, -one.confidence, one.from_ns))
    return sorted([*paused, *merged], key=lambda one: not one.certain)


def _begin_ns(facts: Facts, windows: Windows, first: int) -> int:
    """When window `first` begins; all that comes before window 0 belongs to it."""
    if first == 0:
        return 0
    return int(windows.starts_ns[first]) if first < windows.count else facts.end_ns


def _judged(seen: slow.Seen, at: int, rule: slow.Rule, stopped: bool) -> Finding | None:
    """The likeliest fault in window `at`. Certain losses and failed paths come first, as they also
    delay messages. A slow place and a straggler can look alike: the more confident
    finding is taken.

    stopped: a process did not run in one of the last windows that the rule counts, which slows
    others.
    """
    lossy = slow.lossy_place(seen, at, rule)
    failed = lossy is not None and lossy.more["downs"] >= slow.LOSSES_MIN
    if stopped or failed or (lossy is not None and lossy.certain):
        return lossy
    others = (slow.slow_place(seen, at, rule), slow.straggler(seen, at, rule))
    found = [one for one in others if one is not None]
    return max(found, key=lambda one: one.confidence) if found else lossy


def _merge(merged: list[Finding], found: Finding) -> None:
    """Adds a finding. Of findings of one class that overlap in time, one stays: a certain one if
    there is one, and of these the weightiest."""
    for at, one in enumerate(merged):
        if one.kind == found.kind and found.from_ns <= one.to_ns:
            kept = max(one, found, key=lambda each: (each.certain, each.weight))
            merged[at] = replace(
                kept, from_ns=min(one.from_ns, found.from_ns), to_ns=max(one.to_ns, found.to_ns)
            )
            return
    merged.append(found)
