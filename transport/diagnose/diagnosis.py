"""Diagnoses a job: applies the rules to each window of its trace and to calls that never ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from transport.diagnose import calls, gaps, hang, losses, peers, recurring, slower, stragglers
from transport.diagnose.absent import Absent, said_of, with_absent
from transport.diagnose.baseline import Baseline, baseline_of, slower_than
from transport.diagnose.cpu_wait import (
    had_cores,
    note_of,
    recorded,
    slowed_by_cpu,
    unsteady_by_cpu,
    varies_by_cpu,
    with_short_of_cpu,
)
from transport.diagnose.evidence import Answer, Evidence, Lack, evidence_of
from transport.diagnose.facts import Facts, facts_of
from transport.diagnose.failed import failed
from transport.diagnose.finding import SHARE, WENT_ON, Finding, graded
from transport.diagnose.initialization import initialization_hangs
from transport.diagnose.killed import Killed, killed
from transport.diagnose.measures import lateness_of
from transport.diagnose.nic_down import nic_down
from transport.diagnose.often_stopped import or_short_of_cpu, with_often_stopped
from transport.diagnose.outage import outage
from transport.diagnose.reported import reported, stacks_of, with_stack
from transport.diagnose.settings import Settings
from transport.diagnose.slow import LOST_SHARE
from transport.diagnose.slowness import OF_DELAYS, broken_link, slowness
from transport.diagnose.waits import Waits, waits_of
from transport.diagnose.windows import Windows, is_pause, judged_windows_of, windows_of
from transport.trace.notes import OWN_FOLDERS, missing_ranks, repeated_runs
from transport.trace.store import Store

UNEXPLAINED = "iterations take longer than before, and nothing explains it"
# A pause that is shorter than this many iterations proves no hang.
PATIENCE_ITERATIONS = 2.0
PATIENCE_PAUSES = 2.0  # a pause shorter than this many times the longest earlier one proves no hang
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
OF_MESSAGES |= dict.fromkeys((slower.QUERY, peers.QUERY), OF_MESSAGES[stragglers.LATE_QUERY])
# The same for traces of PyTorch's profiler, which have kernels and no messages.
OF_KERNELS = {
    stragglers.LATE_QUERY: "SELECT o.process, o.comm, o.function, o.sequence, "
    "min(k.gpu_start_ns) AS start_ns, max(k.gpu_stop_ns) AS stop_ns FROM operations o "
    "JOIN kernels k ON k.process = o.process AND k.operation = o.id GROUP BY ALL "
    "ORDER BY o.comm, o.sequence, start_ns",
}


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
    crashed = any(one.kind == "crash" for one in kept)
    ended = [] if crashed else failed(store, facts, numbers)
    every = [*begun, *ended, *reported(store, facts, numbers), *kept]
    every = [with_stack(facts, said_of(one, absent.ranks), stacks) for one in every]
    findings = [_with_process(facts, one) for one in doubted(every, len(missing))]
    found = replace(found, findings=tuple(findings), missing=len(missing))
    cut = killed(store, facts, numbers)
    return found if cut is None else _of_killed(found, cut)


def _with_process(facts: Facts, one: Finding) -> Finding:
    """The finding; one about a single rank of a real job with the host and id of its process."""
    if facts.simulated or one.place.kind != "rank" or len(one.place.ranks) != 1:
        return one
    mine = [each for each in facts.processes if each.rank == one.place.ranks[0] and each.pid]
    if len(mine) != 1:
        return one
    process = {"host": mine[0].host, "pid": mine[0].pid}
    return replace(one, more={**one.more, "process": process})


def _of_killed(found: Diagnosis, cut: Killed) -> Diagnosis:
    """The diagnosis of a job whose processes were killed or crashed, which is never healthy.

    A certain finding may be the reason; peers that ended explain what was suspected at the end.
    """
    findings = [one for one in found.findings if not cut.explains(one)]
    evidence = replace(found.evidence, lacks=(cut.lack, *found.evidence.lacks))
    certain = any(one.certain for one in findings)
    if cut.first is not None and not certain:
        findings = [cut.first, *findings]
    found = replace(found, findings=tuple(findings), evidence=evidence)
    if not cut.gone or not found.unexplained:
        return found
    notes = (*found.notes, f"slower: {found.unexplained}")
    return replace(found, unexplained="", notes=notes)


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


def lost_time(store: Store, facts: Facts | None = None) -> Waits:
    """What ranks waited for each other at collectives, over the whole job (weft diagnose
    --lost-time). TraceError if the tables of the store cannot be read.

    facts: of the store, if they are known already.
    """
    facts = facts_of(store) if facts is None else facts
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
    found, still_ns = _sought(facts, wider, windows, dead, settings)
    ranks = () if absent is None else absent.ranks
    if settings.whole:
        found = with_often_stopped(facts, _with_late_ranks(wider, windows, ranks, found))
    if settings.use_paths and not any(one.certain for one in found):
        found = _with_nic_down(facts, _with_outage(facts, windows, found))
    paused_ns = 0 if any(one.certain for one in found) else still_ns
    evidence = evidence_of(facts, windows, judged_windows_of(facts), missing, paused_ns)
    unexplained = ""
    if not any(one.certain for one in found):
        base = settings.baseline
        paused = [(one.from_ns, _until_ns(one)) for one in _pauses(facts, found)]
        complete = not evidence.lacks
        more, unexplained = _as_a_whole(wider, windows, base, ranks, paused, complete=complete)
        if settings.whole:
            found = [*more, *found]
        elif unexplained:
            notes = [*notes, UNEXPLAINED]
            unexplained = ""
    if settings.whole:
        found, unexplained, note = _short_of_cpu(wider, windows, settings, found, unexplained)
        notes = [*notes, note] if note else notes
    return Diagnosis(
        tuple(_in_order(facts, found)),
        windows.count,
        windows.usual_ns,
        len(facts.processes),
        tuple(notes),
        incomplete=sum(not one.whole for one in facts.processes),
        unexplained=unexplained,
        evidence=evidence,
    )


def _sought(
    facts: Facts,
    wider: Facts,
    windows: Windows,
    dead: Sequence[tuple[int, int, int]],
    settings: Settings,
) -> tuple[list[Finding], int]:
    """What ended the job, why it stands still and what slows it; for how long it stands still."""
    found = _ended(facts, windows, dead, settings)
    still_ns, brief = 0, False
    if not found:
        found, still_ns, brief = _standing(facts, windows, settings)
    if not found or (brief and not any(one.certain for one in found)):
        found += slowness(wider, windows, settings)
    elif not any(one.certain for one in found):
        found = [*broken_link(wider, settings), *found]
    return found, still_ns


def _short_of_cpu(
    facts: Facts, windows: Windows, settings: Settings, found: list[Finding], unexplained: str
) -> tuple[list[Finding], str, str]:
    """What a job has whose processes may be short of CPU: findings, what these leave unexplained,
    and a note about it.

    Such a job is slower for that reason if it lacks more than it did before. Else it is as steady
    as its host lets it be, and suspicions are only noted, unless it became slower by more.
    """
    if not len(facts.cpu_waits.get("source", ())):
        return found, unexplained, ""
    note, slow = note_of(facts), None
    parts = judged_windows_of(facts)
    slowdown = slower.slowdown_of(facts, parts)
    if slowdown is None and settings.baseline is not None:
        slowdown = slower_than(facts, windows, settings.baseline)
    if slowdown is not None:
        slow = slowed_by_cpu(facts, slowdown, unexplained)
        if slow is None and not varies_by_cpu(facts, slowdown):
            return found, unexplained, note
    elif unexplained and not unsteady_by_cpu(facts, slower.lost_share(parts)):
        return found, unexplained, note
    found = with_short_of_cpu(facts, recorded(facts), found)
    if unexplained and slow is not None:
        return [slow, *found], "", note
    if not note:
        return found, unexplained, ""
    found = [one for one in found if one.certain or SHARE not in one.more]
    longer = unexplained.removesuffix(slower.NO_PLACE).rstrip(". ")
    return found, "", f"{note}; {longer}" if longer else note


def _ended(
    facts: Facts, windows: Windows, dead: Sequence[tuple[int, int, int]], settings: Settings
) -> list[Finding]:
    """Crashes, with the pauses before them, and mismatches: what ends a job by itself."""
    crashed = hang.crashes(facts, dead)
    before = gaps.certain_pauses(facts, windows) if crashed and settings.whole else []
    return crashed + before + calls.mismatches(facts)


def _pauses(facts: Facts, found: Sequence[Finding]) -> list[Finding]:
    """Those of real processes that certainly did not run, and went on."""
    paused = [one for one in found if one.more.get("state") == WENT_ON]
    return [one for one in paused if one.more["proven"] and not facts.simulated]


def _until_ns(pause: Finding) -> int:
    """Until as long after a pause as it lasted, senders may wait before they try again."""
    return 2 * pause.to_ns - pause.from_ns


def _with_outage(facts: Facts, windows: Windows, found: list[Finding]) -> list[Finding]:
    """The findings, after an outage of paths, unless a process at one end of them did not run."""
    cut = outage(facts, windows)
    if cut is None:
        return found
    paused = any(
        set(one.place.ranks) & set(cut.place.ranks)
        and one.from_ns <= cut.to_ns
        and cut.from_ns <= _until_ns(one)
        for one in _pauses(facts, found)
    )
    return found if paused else [cut, *found]


def _with_nic_down(facts: Facts, found: list[Finding]) -> list[Finding]:
    """The findings, after a NIC that failed while others carried on, which explains what was
    suspected of losses and queues meanwhile."""
    down = None if any(one.certain for one in found) else nic_down(facts)
    if down is None:
        return found
    follow = ("network_loss", *OF_DELAYS)
    kept = [
        one
        for one in found
        if one.kind not in follow or one.from_ns > down.to_ns or one.to_ns < down.from_ns
    ]
    return [down, *kept]


def _in_order(facts: Facts, found: Sequence[Finding]) -> list[Finding]:
    """The findings, certain ones first, with queries for tables that the trace has."""
    other = OF_MESSAGES if not facts.has_operations else {}
    if facts.has_operations and not len(facts.edges["source"]):
        other = OF_KERNELS
    found = [replace(one, query=other.get(one.query, one.query)) for one in found]
    found = [one if had_cores(facts, one) else or_short_of_cpu(facts, one) for one in found]
    return sorted((graded(one, one.certain) for one in found), key=lambda one: not one.certain)


def _with_late_ranks(
    facts: Facts, windows: Windows, absent: Collection[int], found: list[Finding]
) -> list[Finding]:
    """The findings, and those of ranks that are late over the whole trace, if nothing else counts
    for more; a straggler with the other ranks that became slower with it."""
    if all(one.indirect for one in found if one.certain):
        late = _late_ranks(facts, windows, absent)
        late = [_doubted_of_ranks(facts, one) for one in late]
        cost_ns = max(_delays_ns(found), _half_of_slowdown_ns(facts))
        late = [
            graded(one, one.certain and (one.lost_ns is None or one.lost_ns >= cost_ns))
            for one in late
        ]
        if any(one.certain for one in late):
            found = [graded(one, False) for one in found]
        found = [*late, *found]
    return _widened(facts, found)


def _delays_ns(found: Sequence[Finding]) -> float:
    """What the delays that were found cost at least."""
    delays = [one for one in found if one.certain and one.kind in OF_DELAYS]
    return LOST_SHARE * max((one.to_ns - one.from_ns for one in delays), default=0)


def _half_of_slowdown_ns(facts: Facts) -> float:
    """The part of what a lasting slowdown cost the job that late ranks must explain."""
    windows = judged_windows_of(facts)
    slowdown = slower.slowdown_of(facts, windows)
    if slowdown is None:
        return 0.0
    growth_ns = slowdown.after_ns - slowdown.before_ns
    return slower.SLOW_PART * growth_ns * (windows.count - slowdown.first - slower.SIDE_MIN)


def _doubted_of_ranks(facts: Facts, one: Finding) -> Finding:
    """A finding of the whole trace about ranks; as a suspicion if losses may delay them, or if a
    trace was cut off, of which what is missing looks like time that ranks took."""
    whole = all(each.whole for each in facts.processes)
    one = stragglers.delayed_by_losses(facts, one)
    return graded(one, one.certain and (whole or one.kind != "non_communication_slow"))


def _widened(facts: Facts, found: list[Finding]) -> list[Finding]:
    """The findings; a straggler with the other ranks that became slower with it."""
    one = found[0] if found else None
    if one is None or not one.certain or one.kind != "non_communication_slow":
        return found
    for risen in slower.risen_ranks(facts, judged_windows_of(facts)):
        if set(one.place.ranks) < set(risen.place.ranks):
            text = f"{one.evidence} {risen.evidence}"
            return [replace(one, place=risen.place, evidence=text), *found[1:]]
    return found


def _standing(
    facts: Facts, windows: Windows, settings: Settings
) -> tuple[list[Finding], int, bool]:
    """Why the job stands still, for how long, and whether that is too short to prove a hang."""
    stand = hang.standstill_of(facts, windows)
    if stand is None:
        return [], 0, False
    still_ns = facts.end_ns - stand.since_ns
    if not facts.states and not is_pause(facts, still_ns):
        return [], 0, False
    patience_ns = int(max(PATIENCE_ITERATIONS * windows.usual_ns, PATIENCE_PAUSES * stand.later_ns))
    patience_ns = max(patience_ns, settings.patience_ns)
    return hang.hangs(facts, stand, patience_ns), still_ns, still_ns < patience_ns


def _late_ranks(facts: Facts, iterations: Windows, absent: Collection[int]) -> list[Finding]:
    """The ranks that are late over the whole trace, in a way that no three windows show.

    absent: ranks without a trace, whose last calls are not known well enough for a lasting change.
    """
    windows = judged_windows_of(facts)
    found = slower.risen_ranks(facts, windows) or peers.slower_than_peers(facts, windows)
    found = [one for one in found if not set(one.place.ranks) & set(absent)]
    if found:
        return found
    # Where packets are lost, what an absent rank sent first may have been sent again.
    sent, lost = int(facts.sent["sent"].sum()), int(facts.losses["segments"].sum())
    doubtful = set(absent) if lost > losses.CALM_RATE * sent else set()
    found = recurring.recurring(facts, iterations, lateness_of(facts, iterations))
    return [graded(one, not doubtful & set(one.place.ranks)) for one in found]


def _as_a_whole(
    facts: Facts,
    iterations: Windows,
    base: Baseline | None,
    absent: Collection[int],
    paused: Collection[tuple[int, int]],
    *,
    complete: bool,
) -> tuple[list[Finding], str]:
    """What the whole trace shows and no three windows of it: findings, or what is unexplained.

    complete: the trace has enough evidence of each rank; otherwise, what seems to be a longer
    iteration may be one of which too little is known. paused: begin and end of pauses.
    """
    windows = judged_windows_of(facts)
    slowdown = slower.slowdown_of(facts, windows)
    if slowdown is None and base is not None:
        windows = iterations
        slowdown = slower_than(facts, windows, base)
    if slowdown is None:
        return [], slower.unsteady(facts, windows, paused) if complete else ""
    group = slower.slower_group(facts, windows, slowdown, absent)
    group = group or slower.slower_place(facts, windows, slowdown)
    more = [] if group is None else [_doubted_of_ranks(facts, group)]
    if any(one.certain for one in more):
        return more, ""
    return more, slower.text_of(facts, windows, slowdown)
