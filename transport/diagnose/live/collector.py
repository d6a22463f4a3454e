"""Judges the summaries of all hosts at intervals, and remembers which faults it has reported."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from transport.diagnose.diagnosis import UNEXPLAINED, Diagnosis, doubted, judged
from transport.diagnose.finding import Finding
from transport.diagnose.live.incidents import HANGS, Event, Incident, Incidents, Key, Look
from transport.diagnose.live.look import look_of
from transport.diagnose.live.merge import Job, merged
from transport.diagnose.live.operations import Operation, slowest
from transport.diagnose.live.pauses import Pauses
from transport.diagnose.live.refine import refined
from transport.diagnose.live.share import HostFile
from transport.diagnose.settings import Settings
from transport.diagnose.windows import Windows, judged_windows_of
from transport.trace.store import TraceExtraError

# Before a job's pauses are known, only a longer pause than this proves a hang.
UNTAUGHT_NS = 300_000_000_000
FOREVER_NS = 1 << 62
LINE_MAX = 200
JUDGED_WINDOWS = 8  # at least this many of the last iterations are judged in each interval
NOTES_MAX = 10_000
MERGES_MAX = 64  # trials in one interval to find the hosts whose summaries break the diagnosis
EMPTY: Mapping[str, str] = {}
NUMBER = re.compile(r"\b\d+(\.\d+)?\b")


def _line_of(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:LINE_MAX]


def usable(
    hosts: Sequence[HostFile], job: str | None, suspects: Mapping[str, str] = EMPTY
) -> tuple[list[HostFile], dict[str, str]]:
    """The hosts whose summaries can be judged together, and why each other host's cannot.

    suspects: hosts that could not be judged in the last interval, which are tried last.
    """
    good: list[HostFile] = []
    broken: dict[str, str] = {}
    left = MERGES_MAX

    def fails(more: Sequence[HostFile]) -> str:
        nonlocal left
        if left <= 0:
            return "not tried: too many other summaries cannot be judged"
        left -= 1
        try:
            made = merged([*good, *more], job)
            if made is not None:
                found = judged(made.facts, made.dead, Settings(whole=False), made.notes)
                refined(made, found.findings)
                Pauses(UNTAUGHT_NS).learn(made.facts, found.iteration_ns)
        except TraceExtraError:
            raise
        except Exception as error:
            return _line_of(error)
        return ""

    def add(more: Sequence[HostFile]) -> None:
        why = fails(more)
        if not why:
            good.extend(more)
        elif len(more) == 1 or left <= 0:
            broken.update({one.host: why for one in more})
        else:
            add(more[: len(more) // 2])
            add(more[len(more) // 2 :])

    for group in (
        [one for one in hosts if one.host not in suspects],
        [one for one in hosts if one.host in suspects],
    ):
        if group:
            add(group)
    return good, broken


@dataclass
class Collector:
    """Judges the summaries at intervals. pauses: how long the job pauses without a fault.

    latest: the diagnosis of the last interval. judged: number of intervals that had something to
    judge. spent_ns: CPU time of all intervals. operations: of the operations_seen collectives that
    ended since the interval before, the operations_max that lasted longest.
    """

    settings: Settings = field(default_factory=Settings)
    job: str | None = None
    pauses: Pauses = field(default_factory=lambda: Pauses(UNTAUGHT_NS))
    latest: Diagnosis | None = None
    notes: list[str] = field(default_factory=list)
    intervals: int = 0
    judged: int = 0
    spent_ns: int = 0
    operations_max: int = 0
    operations: Sequence[Operation] = ()
    operations_seen: int = 0
    _until_ns: int = 0
    _told: set[str] = field(default_factory=set)
    _broken: dict[str, str] = field(default_factory=dict)  # host -> why it was left out
    _judged_ns: int = 0
    _incidents: Incidents = field(default_factory=Incidents)

    @property
    def incidents(self) -> dict[Key, Incident]:
        """The faults that were reported and have not ended."""
        return self._incidents.open

    @property
    def found(self) -> int:
        """Number of incidents that became certain."""
        return self._incidents.found

    @property
    def unrepeated(self) -> int:
        """Number of suspicions that only one interval showed, so that they were not reported."""
        return self._incidents.unrepeated

    def step(self, hosts: Sequence[HostFile]) -> list[Event]:
        """Judges the hosts' summaries; sets `notes` to lines that were not reported before."""
        began_ns = time.process_time_ns()
        self.intervals += 1
        self.operations, self.operations_seen = (), 0
        self.notes = self._new([f"{host.host}: {line}" for host in hosts for line in host.notes])
        try:
            events = self._step(hosts)
            self._tell_broken({})
            return events
        except TraceExtraError:
            raise
        # A damaged summary can raise any exception: judge without the hosts that raise it, and
        # judge them again in the next interval.
        except Exception as error:
            return self._step_without_broken(hosts, error)
        finally:
            self.spent_ns += time.process_time_ns() - began_ns

    def _step_without_broken(self, hosts: Sequence[HostFile], error: Exception) -> list[Event]:
        good, broken = usable(hosts, self.job, self._broken)
        if not broken or not good:  # no single summary causes the error
            self.notes += self._new([f"an interval could not be judged ({_line_of(error)})"])
            return []
        self._tell_broken(broken)
        try:
            return self._step(good)
        except TraceExtraError:
            raise
        except Exception as again:
            self.notes += self._new([f"an interval could not be judged ({_line_of(again)})"])
            return []

    def _tell_broken(self, broken: dict[str, str]) -> None:
        """Adds a note for each host whose summary began or ceased to break the diagnosis."""
        for host, why in broken.items():
            if NUMBER.sub("#", why) != NUMBER.sub("#", self._broken.get(host, "")):
                self.notes.append(f"{host} is left out: its summary breaks the diagnosis ({why})")
        self.notes += [f"{host} is judged again" for host in self._broken if host not in broken]
        self._broken = broken

    def _step(self, hosts: Sequence[HostFile]) -> list[Event]:
        job = merged(hosts, self.job) if hosts else None
        if job is None:
            self.latest = None
            # Without any summary the job is not observed, so no fault counts as ended.
            return self._incidents.step(Look(0, over=True)) if hosts else []
        before_ns = self._judged_ns
        windows = judged_windows_of(job.facts)
        self.latest, first = self._judged(job, windows)
        found = doubted(refined(job, self.latest.findings), job.missing)
        findings = [one for one in found if self._matters(one)]
        for one in findings:
            if one.certain and one.kind in HANGS and "paused_ns" not in one.more:
                self.pauses.fault(one.from_ns, one.to_ns)
        self.pauses.learn(job.facts, self.latest.iteration_ns)
        self.judged += 1
        since_ns, self._until_ns = self._until_ns or job.facts.end_ns, job.facts.end_ns
        self.operations, self.operations_seen = slowest(job.facts, since_ns, self.operations_max)
        events = self._incidents.step(look_of(job, windows, first, before_ns, findings))
        suspects = self._incidents.suspects
        notes = [one for one in self.latest.notes if not (suspects and one == UNEXPLAINED)]
        self.notes += [*self._new(notes), *self._incidents.notes]
        return events

    def _new(self, lines: Sequence[str]) -> list[str]:
        """The lines that were not reported before; those that differ in numbers count as one."""
        made = []
        for line in lines:
            key = NUMBER.sub("#", line)
            if key not in self._told and len(self._told) < NOTES_MAX:
                self._told.add(key)
                made.append(line)
        return made

    def _judged(self, job: Job, windows: Windows) -> tuple[Diagnosis, int]:
        """The diagnosis, and the first window that was searched for what is slow."""
        first = 0
        if windows.count:
            new = int(np.searchsorted(windows.starts_ns, self._judged_ns)) - self.settings.rule.of
            first = max(min(new, windows.count - JUDGED_WINDOWS), 0)
            if self.pauses.fault_ns >= 0:
                # While a process was stopped, its peers were late as well.
                after = int(windows.of(np.array([self.pauses.fault_ns]))[0]) + 1
                first = max(first, after + self.settings.rule.of - 1)
            self._judged_ns = int(windows.starts_ns[-1])
        settings = replace(
            self.settings,
            from_window=first,
            patience_ns=self.pauses.patience_ns(),
            whole=False,
        )
        found = judged(job.facts, job.dead, settings, job.notes)
        return replace(found, missing=job.missing), first

    def _matters(self, one: Finding) -> bool:
        """Whether a finding is certain, or its pause longer than any known healthy pause."""
        return one.certain or self.pauses.is_strange(int(one.more.get("paused_ns", FOREVER_NS)))
