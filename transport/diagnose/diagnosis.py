"""Diagnoses a job: applies the rules to each window of its trace and to calls that never ended."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from transport.diagnose import calls, gaps, hang, losses, recurring, slow, slower, stragglers
from transport.diagnose.absent import Absent, said_of, with_absent
from transport.diagnose.baseline import Baseline, baseline_of, slower_than
from transport.diagnose.dead_link import dead_link
from transport.diagnose.evidence import Answer, Evidence, Lack, evidence_of
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.finding import Finding, graded
from transport.diagnose.flapping import flapping
from transport.diagnose.groups import with_all
from transport.diagnose.initialization import initialization_hangs
from transport.diagnose.measures import delays_of, lateness_of
from transport.diagnose.paths import paths_of
from transport.diagnose.peers import slower_than_peers
from transport.diagnose.reported import reported, stacks_of, with_stack
from transport.diagnose.risen_losses import risen_losses
from transport.diagnose.seen import Rule, Seen
from transport.diagnose.waits import Waits, waits_of
from transport.diagnose.windows import Windows, is_pause, judged_windows_of, windows_of
from transport.plan.routes import Routes
from transport.trace.notes import OWN_FOLDERS, missing_ranks, repeated_runs
from transport.trace.store import Store

UNEXPLAINED = "iterations take longer than before, and nothing explains it"
# A pause that is shorter than this many iterations proves no hang.
PATIENCE_ITERATIONS = 2.0
PATIENCE_PAUSES = 2.0  # a pause shorter than this many times the longest earlier one proves no hang
# Messages to and from a rank that is late take longer, too, so these may follow from it.
OF_DELAYS = ("communication_slow", "congestion")
HANGS = ("communication_hang", "non_communication_hang")
# Query of a finding -> the one to use for programs without NCCL, which have no operations.
OF_MESSAGES = {
    hang.OPEN_QUERY: "SELECT process, sends, count(*) AS open, min(posted_ns) AS posted_ns FROM "
    "messages WHERE end_ns IS NULL GROUP BY ALL ORDER BY posted_ns",
    stragglers.LATE_QUERY: "SELECT s.process, median(s.posted_ns - r.end_ns) AS pause_ns, "
    "count(*) FROM messages s ASOF JOIN (SELECT * FROM messages WHERE NOT sends AND end_ns IS "
    "NOT NULL) r "
    "ON s.process = r.process AND s.posted_ns >= r.end_ns WHERE s.sends GROUP BY ALL "
    "ORDER BY pause_ns DESC",
}
# The same for traces of PyTorch's profiler, which have kernels and no messages.
OF_KERNELS = {
    stragglers.LATE_QUERY: "SELECT o.process, o.comm, o.function, o.sequence, "
    "min(k.gpu_start_ns) AS start_ns, max(k.gpu_stop_ns) AS stop_ns FROM operations o "
    "JOIN kernels k ON k.process = o.process AND k.operation = o.id GROUP BY ALL "
    "ORDER BY o.comm, o.sequence, start_ns",
}


@dataclass(frozen=True)
class Settings:
    """Options of a diagnosis. rule: in how many windows a fault must be seen.

    use_paths: False: judges only ranks and pairs of ranks, without weft's records of paths.
    routes: the links that each path crosses. from_window: no window before it is judged for
    slowness. now_ns: the time of day; a job that still runs on this host is judged up to then, any
    other one up to the end of its trace. patience_ns: a shorter pause never proves a hang, whatever
    pauses the trace shows. whole: the trace is one of a whole job, not the last part of one that
    runs: what repeats over the job, and lasting slowness without a place, are judged too.
    baseline: how long the job took when it was well.
    """

    rule: Rule = field(default_factory=Rule)
    use_paths: bool = True
    routes: Routes | None = None
    from_window: int = 0
    now_ns: int | None = None
    patience_ns: int = 0
    whole: bool = True
    baseline: Baseline | None = None


@dataclass(frozen=True)
class Diagnosis:
    """findings: hangs and crashes, then what slows the job. iterations: windows of the trace.

    unexplained: what became slower without a finding; empty: nothing. evidence: what was judged,
    and what lacks for the answer "healthy". missing: number of ranks of the job without a trace, as
    far as it is known. incomplete: number of processes whose trace is damaged or lacks records.
    """

    findings: tuple[Finding, ...]
    iterations: int
    iteration_ns: int
    ranks: int
    notes: tuple[str, ...]
    missing: int = 0
    incomplete: int = 0
    unexplained: str = ""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def answer(self) -> Answer:
        if any(one.certain for one in self.findings):
            return Answer.FOUND
        if self.unexplained:
            return Answer.UNEXPLAINED
        return Answer.NOT_JUDGED if self.evidence.lacks else Answer.HEALTHY


def diagnose(
    store: Store, settings: Settings | None = None, facts: Facts | None = None
) -> Diagnosis:
    """Diagnoses the job in the store. TraceError if its tables cannot be read.

    facts: of the store, if they are known already.
    """
    settings = settings or Settings()
    if runs := repeated_runs(store.rows):
        return _mixed(store, runs)
    facts = facts_of(store, settings.now_ns) if facts is None else facts
    numbers = numbers_of(store)
    missing = missing_ranks(store.rows)[0]
    absent = with_absent(store, facts, numbers, missing)
    found = judged(facts, hang.dead(store, numbers), settings, store.notes(), missing, absent)
    stacks = stacks_of(store, numbers)
    begun = initialization_hangs(store, facts, numbers, missing)
    kept = [one for one in found.findings if one.certain or not begun or one.kind not in HANGS]
    every = [*begun, *reported(store, facts, numbers), *kept]
    every = [with_stack(facts, said_of(one, absent.ranks), stacks) for one in every]
    findings = doubted(every, len(missing))
    return replace(found, findings=tuple(findings), missing=len(missing))


def _mixed(store: Store, runs: str) -> Diagnosis:
    """Judges nothing: operations of several runs have the same numbers. runs: which, in words."""
    ((ranks,),) = store.rows("SELECT count(DISTINCT rank) FROM processes WHERE rank >= 0")
    lacks = Evidence(lacks=(Lack(runs, OWN_FOLDERS),))
    return Diagnosis((), 0, 0, ranks, tuple(store.notes()), evidence=lacks)


def baseline(store: Store) -> Baseline:
    """The baseline that a job in the store gives (weft diagnose --save). BaselineError if its trace
    is too short for one."""
    facts = facts_of(store)
    return baseline_of(facts, windows_of(facts))


def lost_time(store: Store) -> Waits:
    """What ranks waited for each other at collectives, over the whole job (weft diagnose
    --lost-time). TraceError if the tables of the store cannot be read."""
    facts = facts_of(store)
    absent = with_absent(store, facts, numbers_of(store), missing_ranks(store.rows)[0])
    return waits_of(absent.facts, windows_of(facts))


def numbers_of(store: Store) -> dict[int, int]:
    """The number of a process in the trace -> its index in the facts."""
    rows = store.rows("SELECT process FROM processes ORDER BY rank, process")
    return {row[0]: at for at, row in enumerate(rows)}


def is_inferred(one: Finding) -> bool:
    """Whether a finding follows from what ranks did, and not from an error that one reported."""
    return "status" not in one.more


def doubted(findings: Sequence[Finding], missing: int) -> list[Finding]:
    """The findings; a communication_hang is only a suspicion if traces of ranks are missing.

    Ranks may wait for a rank without a trace, which looks as if they waited for a dead path.
    """
    hangs = "communication_hang"
    return [
        graded(one, one.certain and not (missing and one.kind == hangs and is_inferred(one)))
        for one in findings
    ]


def judged(
    facts: Facts,
    dead: Sequence[tuple[int, int, int]],
    settings: Settings,
    notes: Sequence[str],
    missing: Sequence[int] = (),
    absent: Absent | None = None,
) -> Diagnosis:
    """Diagnoses a job. dead: number of each dead process, when it died, how many peers saw it.

    missing: ranks of the job without a trace. absent: what is known of these from their peers.
    """
    wider = facts if absent is None else absent.facts
    windows = windows_of(facts)
    found = hang.crashes(facts, dead) + calls.mismatches(facts)
    brief_ns = 0
    if not found:
        found, brief_ns = _standing(facts, windows, settings)
    if not found or (brief_ns and not any(one.certain for one in found)):
        found += _slow(wider, windows, settings)
    other = OF_MESSAGES if not facts.has_operations else {}
    if facts.has_operations and not len(facts.edges["source"]):
        other = OF_KERNELS
    found = [replace(one, query=other.get(one.query, one.query)) for one in found]
    unexplained = ""
    if settings.whole and all(one.kind in OF_DELAYS for one in found if one.certain):
        late = _late_ranks(wider, windows, () if absent is None else absent.ranks)
        if late:
            found = [*late, *(graded(one, False) for one in found)]
    evidence = evidence_of(facts, windows, judged_windows_of(facts), missing, brief_ns)
    if not any(one.certain for one in found):
        base = settings.baseline
        more, unexplained = _as_a_whole(wider, windows, base, complete=not evidence.lacks)
        if settings.whole:
            found = [*more, *found]
        elif unexplained:
            notes = [*notes, UNEXPLAINED]
            unexplained = ""
    found = [graded(one, one.certain) for one in found]
    incomplete = sum(not one.whole for one in facts.processes)
    return Diagnosis(
        tuple(found),
        windows.count,
        windows.usual_ns,
        len(facts.processes),
        tuple(notes),
        incomplete=incomplete,
        unexplained=unexplained,
        evidence=evidence,
    )


def _standing(facts: Facts, windows: Windows, settings: Settings) -> tuple[list[Finding], int]:
    """Why the job stands still, and for how long if that is too short to prove a hang; 0: it is
    not, or the job goes on."""
    stand = hang.standstill_of(facts, windows)
    if stand is None:
        return [], 0
    still_ns = facts.end_ns - stand.since_ns
    if not facts.states and not is_pause(facts, still_ns):
        return [], 0
    patience_ns = int(max(PATIENCE_ITERATIONS * windows.usual_ns, PATIENCE_PAUSES * stand.later_ns))
    patience_ns = max(patience_ns, settings.patience_ns)
    found = hang.hangs(facts, stand, patience_ns)
    return found, still_ns if still_ns < patience_ns else 0


def _late_ranks(facts: Facts, iterations: Windows, absent: Collection[int]) -> list[Finding]:
    """The ranks that are late over the whole trace, in a way that no three windows show.

    absent: ranks without a trace, whose last calls are not known well enough for a lasting change.
    """
    windows = judged_windows_of(facts)
    found = slower.risen_ranks(facts, windows) or slower_than_peers(facts, windows)
    found = [one for one in found if not set(one.place.ranks) & set(absent)]
    return found or recurring.recurring(facts, iterations, lateness_of(facts, iterations))


def _as_a_whole(
    facts: Facts, iterations: Windows, base: Baseline | None, *, complete: bool
) -> tuple[list[Finding], str]:
    """What the whole trace shows and no three windows of it: findings, or what is unexplained.

    complete: the trace has enough evidence of each rank; otherwise, what seems to be a longer
    iteration may be one of which too little is known.
    """
    windows = judged_windows_of(facts)
    slowdown = slower.slowdown_of(facts, windows)
    if slowdown is None and base is not None:
        windows = iterations
        slowdown = slower_than(facts, windows, base)
    if slowdown is None:
        return [], slower.unsteady(facts, windows) if complete else ""
    group = slower.slower_group(facts, windows, slowdown)
    group = group or slower.slower_place(facts, windows, slowdown)
    if group is not None:
        return [group], ""
    return [], slower.text_of(facts, windows, slowdown)


def _slow(facts: Facts, iterations: Windows, settings: Settings) -> list[Finding]:
    """Findings of what slows the job: pauses of processes, and slow places."""
    windows = judged_windows_of(facts)
    if windows.count == 0:
        return []
    every = gaps.gaps_of(facts, iterations)
    # A shorter gap explains losses, but it is no pause of the job.
    long = [
        one
        for one in every
        if one.lasted_ns > iterations.usual_ns and is_pause(facts, one.lasted_ns)
    ]
    paused = gaps.pauses(facts, iterations, long, _begin_ns(facts, windows, settings.from_window))
    facts, unfit = gaps.without_losses(facts, every), gaps.in_gaps(long, windows)
    paths = paths_of(facts, windows, settings.routes) if settings.use_paths else None
    seen = Seen(facts, windows, lateness_of(facts, windows), delays_of(facts, windows), paths)
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
        for rule in (flapping, losses.rarely_lossy):
            over_all = None if any(one.certain for one in merged) else rule(seen)
            if over_all is not None:
                _merge(merged, over_all)
        merged = [stragglers.doubted(seen, one) for one in merged]
        if all(one.kind in OF_DELAYS for one in merged if one.certain):
            damaged = risen_losses(seen)
            if damaged is not None:
                merged = [graded(one, False) for one in merged]
                _merge(merged, damaged)
    merged = [_but_for(one, paused) for one in merged]
    merged = [with_all(seen, one) for one in merged]
    merged.sort(key=lambda one: (not one.certain, -one.confidence, one.from_ns))
    return sorted([*paused, *merged], key=lambda one: not one.certain)


def _but_for(one: Finding, paused: Sequence[Finding]) -> Finding:
    """The finding; that of a NIC that loses what comes while its process pauses is suspected."""
    for pause in paused:
        during = one.from_ns <= pause.to_ns and pause.from_ns <= one.to_ns
        if pause.certain and during and one.place.ranks == pause.place.ranks:
            return graded(one, False)
    return one


def _begin_ns(facts: Facts, windows: Windows, first: int) -> int:
    """When window `first` begins; all that comes before window 0 belongs to it."""
    if first == 0:
        return 0
    return int(windows.starts_ns[first]) if first < windows.count else facts.end_ns


def _judged(seen: Seen, at: int, rule: Rule, stopped: bool) -> Finding | None:
    """The likeliest fault in window `at`. Certain losses and failed paths come first, as they also
    delay messages. A slow place and a straggler can look alike: the more confident
    finding is taken.

    stopped: a process did not run in one of the last windows that the rule counts, which slows
    others.
    """
    lossy = losses.lossy_place(seen, at, rule)
    failed = lossy is not None and bool(lossy.more.get("failed"))
    if stopped or failed or (lossy is not None and lossy.certain):
        return lossy
    others = (slow.slow_place(seen, at, rule), stragglers.straggler(seen, at, rule))
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
