"""Turns the findings of successive intervals into incidents, each of which begins and ends once.

It is sans I/O: each interval is a Look, and the answers are events and notes. An incident ends only
after its fault was absent from enough windows in which it would have shown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median
from typing import Any

from transport.diagnose import report
from transport.diagnose.finding import Finding, Place, graded

VERSION = 1  # format version of the lines in verdicts.jsonl
INCIDENTS_MAX = 256
# A fault has ended when it was absent for all of these. A straggler shows in most groups of three
# windows, so eight windows without it are not chance; three intervals and ten seconds keep a fault
# open where windows are a quarter of a second.
HOLD_WINDOWS = 8
HOLD_LOOKS = 3
HOLD_NS = 10_000_000_000
# A fault that came back after a gap is held for twice the longest gap, but for no more than this
# many times the usual hold.
HOLD_TIMES_MAX = 8
# The rules report the likeliest fault of a window, so a certain one hides others.
MASKED_TIMES = 4
# Some rules compare a rank with its past. When a lasting fault has replaced all of that past, they
# show it no more, so it also counts as there while the job is as slow as it made it.
SLOWER = 1.05  # a fault whose windows take this many times as long as those before slows the job
PACES_MAX = 16  # this many intervals without a fault tell how fast the job is
SLOW_NS_MAX = 1_800_000_000_000  # a fault that no finding has shown for this long has ended anyway
REPEATED = 2  # a suspicion is reported when this many intervals have shown it anew
# An open incident slows others, so another place must be certain in this many intervals in a row.
BESIDE = 3
JUDGED_SHARE = 0.5  # a place was judged if this share of its ranks was
HANGS = ("communication_hang", "non_communication_hang", "crash", "mismatch")
Key = tuple[str, str, str, bool]  # class, kind and name of the place, whether a process is stopped


class State(Enum):
    """Whether a fault that was reported is still there."""

    OPEN = "open"
    QUIET = "not seen lately"
    ENDED = "ended"


@dataclass(frozen=True)
class Look:
    """What one interval judged.

    now_ns: up to when, on the clock of the findings. windows: how many windows of the job were
    judged for the first time; None: the job has none, so each interval counts as one. window_ns:
    their usual length. ranks: those that called or sent something in these windows. followed: ranks
    with a trace. missing: whether ranks without a trace exist. parts: the part of the job to which
    each rank belongs; ranks of different parts exchange nothing. pace_ns: the usual time of an
    operation of the job in the new windows; 0: not known. over: the job has no process left.
    """

    now_ns: int
    findings: Sequence[Finding] = ()
    windows: int | None = 0
    window_ns: int = 0
    ranks: frozenset[int] = frozenset()
    followed: frozenset[int] = frozenset()
    missing: bool = False
    parts: Mapping[int, int] = field(default_factory=dict)
    pace_ns: float = 0.0
    over: bool = False

    def judged(self, place: Place) -> bool:
        """Whether a fault at the place would have shown. A rank that the job no longer has counts
        as judged."""
        if self.windows == 0:
            return False
        named = [rank for rank in place.ranks if rank >= 0]
        known = [one in self.ranks or not (self.missing or one in self.followed) for one in named]
        return self.windows is None or sum(known) >= JUDGED_SHARE * len(known)


def key_of(one: Finding) -> Key:
    """The key of a finding: findings with equal keys are of the same fault.

    A stopped process is another fault than an earlier pause of this process, which has ended.
    """
    return (one.kind, one.place.kind, one.place.name, one.more.get("state") == "stopped")


@dataclass
class Incident:
    """A fault from the first interval that shows it to the last one.

    number: 0: it was not reported. certain: whether it was certain in any interval.
    first_ns, last_ns: until when the first and the latest interval showed it. looks, sure: number
    of intervals that showed it anew, and of those in a row that were certain of it. quiet_windows,
    quiet_looks: judged since without it. gap_*: the longest such gap after which it came back.
    explains: number of suspicions that it explains; noted: whether another incident explains it.
    before_ns, paces: the pace of the job before it, and in the intervals that showed it; 0, empty:
    not known.
    """

    finding: Finding
    number: int = 0
    certain: bool = False
    first_windows: int = 0
    first_ns: int = -1
    last_ns: int = -1
    looks: int = 0
    sure: int = 0
    quiet_windows: int = 0
    quiet_looks: int = 0
    gap_windows: int = 0
    gap_looks: int = 0
    gap_ns: int = 0
    explains: int = 0
    noted: bool = False
    before_ns: float = 0.0
    paces: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_MAX))
    state: State = State.OPEN

    @property
    def told_certain(self) -> bool:
        return self.certain and self.number > 0

    def slows(self, pace_ns: float) -> bool:
        """Whether the job is still as slow as the fault made it."""
        if not (self.before_ns and self.paces and pace_ns):
            return False
        during_ns = median(self.paces)
        slower = during_ns > SLOWER * self.before_ns
        return slower and pace_ns > (self.before_ns + during_ns) / 2


@dataclass(frozen=True)
class Event:
    """A change to report: a new suspicion, a finding, or the end of either."""

    what: str
    incident: Incident

    def as_json(self) -> dict[str, Any]:
        """The line in the file of verdicts, and what a command of --on-finding reads."""
        return {
            "weft_verdict": VERSION,
            "event": self.what,
            "incident": self.incident.number,
            "state": self.incident.state.value,
            "time_ns": time.time_ns(),
        } | report.json_of(self.incident.finding)


@dataclass
class Incidents:
    """The faults of a job. found: how many became certain. unrepeated: suspicions that only one
    interval showed. notes: lines of the last step."""

    found: int = 0
    unrepeated: int = 0
    notes: list[str] = field(default_factory=list)
    _known: dict[Key, Incident] = field(default_factory=dict)
    _windows: int = 0
    _told: int = 0
    _paces: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_MAX))

    @property
    def open(self) -> dict[Key, Incident]:
        """The incidents that were reported and have not ended."""
        return {key: one for key, one in self._known.items() if one.number}

    @property
    def suspects(self) -> bool:
        """Whether a fault is open, or suspected without having been reported."""
        return bool(self._known)

    def step(self, look: Look) -> list[Event]:
        """Takes what an interval judged; returns what is to be reported."""
        self.notes = []
        self._windows += 1 if look.windows is None else look.windows
        events: list[Event] = []
        shown: set[Key] = set()
        for one in look.findings:
            events += self._take(look, one, shown)
        for key in [key for key in self._known if key not in shown]:
            events += self._absent(look, key, shown)
        if look.pace_ns and not look.findings and not any(self.open):
            self._paces.append(look.pace_ns)
        return events

    def _take(self, look: Look, one: Finding, shown: set[Key]) -> list[Event]:
        key = key_of(one)
        wider = [
            (at, known)
            for at, known in self._known.items()
            if at != key and known.told_certain and _is_same(known.finding, one)
        ]
        for at, known in wider:
            if _show(look, known, one):
                shown.add(at)
        if key not in self._known:
            if any(_covers(known.finding, one) for _, known in wider):
                return []
            if len(self._known) >= INCIDENTS_MAX and not self._made_room():
                return []
            self._known[key] = Incident(
                graded(one, False),
                first_windows=self._windows,
                before_ns=median(self._paces) if self._paces else 0.0,
            )
        known = self._known[key]
        if _show(look, known, one):
            shown.add(key)
        return self._reported(look, known, one)

    def _made_room(self) -> bool:
        """Forgets a suspicion that was not reported; False if there is none."""
        left = next((key for key, one in self._known.items() if not one.number), None)
        self.unrepeated += left is not None
        return left is not None and self._known.pop(left) is not None

    def _reported(self, look: Look, known: Incident, one: Finding) -> list[Event]:
        """Takes over what a finding says of its incident; the events that follow from it."""
        why = None if known.told_certain else self._explaining(look, known, one)
        certain = one.certain and self._confirmed(look, known, one)
        if certain and why is not None and not _is_immediate(one):
            certain = known.sure >= BESIDE
        if certain or not known.certain:
            known.finding = graded(one, certain)
        if certain and not known.certain:
            known.certain = True
            self.found += 1
            return [Event("finding", self._numbered(known))]
        is_repeated = known.looks >= REPEATED and (
            _is_immediate(one) or _is_later(look, known, one)
        )
        if known.number or not is_repeated:
            return []
        if why is None:
            return [Event("suspicion", self._numbered(known))]
        self._note(why, known)
        return []

    def _numbered(self, known: Incident) -> Incident:
        if not known.number:
            self._told += 1
            known.number = self._told
        return known

    def _confirmed(self, look: Look, known: Incident, one: Finding) -> bool:
        """Whether later windows show the fault, too.

        When a process stops, its first timeouts look like packet loss until the job stands still.
        """
        if _is_immediate(one):
            return True
        return self._windows > known.first_windows and _is_later(look, known, one)

    def _explaining(self, look: Look, known: Incident, one: Finding) -> Incident | None:
        """The certain incident that explains why another place looks slow or waits."""
        others = (each for each in self._known.values() if each is not known and each.told_certain)
        return next(
            (each for each in others if _meet(look.parts, each.finding.place, one.place)), None
        )

    def _note(self, why: Incident, known: Incident) -> None:
        """Notes the first suspicion that an incident explains."""
        if known.noted:
            return
        known.noted = True
        why.explains += 1
        if why.explains == 1:
            self.notes.append(
                f"{known.finding.place.name} is suspected as well ({known.finding.kind}): incident "
                f"{why.number} ({why.finding.kind}, {why.finding.place.name}) explains it"
            )

    def _absent(self, look: Look, key: Key, shown: Iterable[Key]) -> list[Event]:
        """Counts the windows in which a fault would have shown; its end."""
        known = self._known[key]
        if look.over:
            known.quiet_looks += 1
            return self._end(key) if known.quiet_looks >= HOLD_LOOKS else []
        is_slow = known.finding.kind not in HANGS
        hangs = any(one.kind in HANGS for one in look.findings)
        if not look.judged(known.finding.place) or (is_slow and hangs):
            return []  # while a job stands still, nothing is judged to be slow
        known.state, known.sure = State.QUIET, 0
        masked = is_slow and any(one.told_certain for at, one in self._known.items() if at in shown)
        if is_slow and not masked and known.slows(look.pace_ns):
            known.quiet_looks = known.quiet_windows = 0
            return self._end(key) if look.now_ns - known.last_ns >= SLOW_NS_MAX else []
        known.quiet_looks += 1
        known.quiet_windows += 1 if look.windows is None else look.windows
        return self._end(key) if _is_over(look, known, MASKED_TIMES if masked else 1) else []

    def _end(self, key: Key) -> list[Event]:
        known = self._known.pop(key)
        known.state = State.ENDED
        if not known.number:
            self.unrepeated += not known.noted
            return []
        return [Event("ended", known)]


def _show(look: Look, known: Incident, one: Finding) -> bool:
    """Takes note that a finding shows the fault; False if it has no later evidence than before.

    A driver's report of a GPU keeps its time, and shows the fault for as long as its host tells it.
    """
    if one.to_ns <= known.last_ns and one.place.kind != "gpu":
        return False
    if known.quiet_looks:
        known.gap_looks = max(known.gap_looks, known.quiet_looks)
        known.gap_windows = max(known.gap_windows, known.quiet_windows)
        known.gap_ns = max(known.gap_ns, one.to_ns - known.last_ns)
    if known.first_ns < 0:
        known.first_ns = one.to_ns
    known.last_ns = max(known.last_ns, one.to_ns)
    known.quiet_looks = known.quiet_windows = 0
    known.state = State.OPEN
    known.looks += 1
    known.sure = known.sure + 1 if one.certain else 0
    if look.pace_ns:
        known.paces.append(look.pace_ns)
    return True


def _is_over(look: Look, known: Incident, times: int) -> bool:
    """Whether a fault was absent for long enough."""

    def hold(usual: int, gap: int) -> int:
        return times * min(max(usual, 2 * gap), HOLD_TIMES_MAX * usual)

    return (
        known.quiet_looks >= hold(HOLD_LOOKS, known.gap_looks)
        and (look.windows is None or known.quiet_windows >= hold(HOLD_WINDOWS, known.gap_windows))
        and look.now_ns - known.last_ns >= hold(HOLD_NS, known.gap_ns)
    )


def _is_immediate(one: Finding) -> bool:
    """Whether a finding need not wait for later windows: hangs, and a driver's report of a GPU."""
    return one.kind in HANGS or one.place.kind == "gpu"


def _is_later(look: Look, known: Incident, one: Finding) -> bool:
    """Whether a finding has evidence that the first one had not. The windows of two intervals
    overlap, and one window may be counted with those before it."""
    return one.to_ns - known.first_ns > look.window_ns


def _is_same(known: Finding, one: Finding) -> bool:
    """Whether a finding shows a fault that was placed differently: at more or fewer of its ranks,
    or at a place that cannot be told from it."""
    if known.kind != one.kind or (key_of(known)[3] != key_of(one)[3]):
        return False
    if known.place.name in one.place.candidates or one.place.name in known.place.candidates:
        return True
    mine, others = set(known.place.ranks), set(one.place.ranks)
    if not mine or not others or -1 in mine | others:
        return False
    return mine <= others or others <= mine


def _covers(known: Finding, one: Finding) -> bool:
    """Whether a fault has all ranks of a finding that shows it, so that it names nothing new."""
    if known.place.kind == "network":
        return False
    return set(one.place.ranks) <= set(known.place.ranks) or (
        one.place.name in known.place.candidates or known.place.name in one.place.candidates
    )


def _meet(parts: Mapping[int, int], a: Place, b: Place) -> bool:
    """Whether two places are in one part of the job; a place whose part is unknown may be."""
    one, other = ({parts.get(rank) for rank in place.ranks} - {None} for place in (a, b))
    return not one or not other or bool(one & other)
