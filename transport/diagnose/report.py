"""Formats a diagnosis as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import numpy as np

from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.evidence import Answer
from transport.diagnose.facts import SIMULATED_NS_MAX
from transport.diagnose.finding import Finding
from transport.diagnose.waits import Waits
from transport.ground.text import printable
from transport.ground.units import percent, time_text

SUSPICIONS_MAX = 2  # of one class that are shown
# What leaves nothing in traces, logs and dumps (docs/DIAGNOSIS.md, What is not seen).
NOT_SEEN = ("NaN or Inf in the data", "silent data corruption")


def looked_at(found: Diagnosis, live: bool = False) -> str:
    """One line that says how many ranks and iterations were judged; live: the last ones only."""
    of = f" of {found.ranks + found.missing}" if found.missing else ""
    text = f"{found.ranks}{of} rank{'s' * (found.ranks != 1 or bool(of))}, "
    if found.incomplete:
        text += f"{found.incomplete} with an incomplete trace, "
    if not found.iterations or found.iteration_ns <= 1:  # 1: calls without times
        return text + "no iteration"
    last = "the last " if live and found.iterations > 1 else ""
    return (
        f"{text}{last}{found.iterations} iteration{'s' * (found.iterations != 1)} of "
        f"{time_text(found.iteration_ns)}"
    )


def reasons_of(found: Diagnosis) -> list[str]:
    """The lines below an answer: what was judged, what is slower, what lacks."""
    lines = [f"  {found.evidence.text}"]
    if found.unexplained:
        lines.append(f"  slower:   {found.unexplained}")
    lines += [f"  lacks:    {one.text}" for one in found.evidence.lacks]
    return [printable(line) for line in lines]


def when(from_ns: int, to_ns: int) -> str:
    """A span of time: of a simulation as times after its begin, else as times of day."""
    if from_ns < 0 or to_ns <= 0:
        return "at a time that the trace does not tell"
    if to_ns <= from_ns:
        return _moment(from_ns)
    lasted = f"({time_text(to_ns - from_ns)})"
    if from_ns < SIMULATED_NS_MAX:
        return f"{time_text(from_ns)} to {time_text(to_ns)} {lasted}"
    begin, end = (datetime.fromtimestamp(ns / 1e9).astimezone() for ns in (from_ns, to_ns))
    other_day = "" if begin.date() == end.date() else f"{end:%Y-%m-%d} "
    return f"{begin:%Y-%m-%d %H:%M:%S} to {other_day}{end:%H:%M:%S %Z} {lasted}"


def _moment(ns: int) -> str:
    if ns < SIMULATED_NS_MAX:
        return time_text(ns)
    return f"{datetime.fromtimestamp(ns / 1e9).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def findings_to_show(findings: Sequence[Finding]) -> list[Finding]:
    """The findings to show: all certain ones, and the first SUSPICIONS_MAX of each class.

    Where queues overflow, each part of a job has a suspicion of its own.
    """
    count = Counter[str]()
    shown = []
    for one in findings:
        count[one.kind] += not one.certain
        if one.certain or count[one.kind] <= SUSPICIONS_MAX:
            shown.append(one)
    return shown


def lines_of(one: Finding, folder: str) -> list[str]:
    """The text of one finding; a suspicion is marked as one."""
    head = "" if one.certain else "suspicion: "
    side = f" ({one.place.side} side)" if one.place.side else ""
    name = one.place.shown or one.place.name
    lines = [f"{head}{one.kind}: {name}{side}, confidence {confidence_text(one)}"]
    if one.place.candidates:
        lines.append(f"  one of:   {'; '.join(one.places)}")
    lines = [
        *lines,
        *_process_of(one),
        f"  what:     {one.meaning}",
        f"  evidence: {one.evidence}",
        f"  when:     {when(one.from_ns, one.to_ns)}",
        *([f"  query:    {_query_of(one, folder)}"] if one.query else []),
        f"  do:       {one.advice}",
    ]
    return [printable(line) for line in lines]


def confidence_text(one: Finding) -> str:
    """The confidence in words. Places that explain the evidence equally well share it."""
    text = percent(one.confidence_of_all, 0)
    if not one.place.candidates:
        return text
    each = percent(one.confidence, 0)
    return f"{text} that it is one of {len(one.places)} places ({each} for each)"


def _process_of(one: Finding) -> list[str]:
    """The line that names the process of a finding about one rank, if the trace knows it."""
    process = one.more.get("process")
    return [f"  process:  pid {process['pid']} on {process['host']}"] if process else []


def _query_of(one: Finding, folder: str) -> str:
    kind = one.more.get("import")
    if not kind:
        return f"weft trace query {folder} {one.query!r}"
    return f"weft trace import {kind} FILE... -o TABLES; weft trace query TABLES {one.query!r}"


def as_json(found: Diagnosis) -> dict[str, Any]:
    """A diagnosis as JSON."""
    return {
        "answer": found.answer.value,
        "healthy": found.answer is Answer.HEALTHY,
        "unexplained": found.unexplained or None,
        "judged": asdict(found.evidence),
        "findings": [json_of(one) for one in found.findings],
        "ranks": found.ranks,
        "missing": found.missing,
        "incomplete": found.incomplete,
        "iterations": found.iterations,
        "iteration_ns": found.iteration_ns,
        "notes": list(found.notes),
        "not_seen": list(NOT_SEEN),
    }


def json_of(one: Finding) -> dict[str, Any]:
    """A finding as JSON; docs/DIAGNOSIS.md lists the fields."""
    made: dict[str, Any] = _plain(asdict(one) | _derived(one))
    return made


def _derived(one: Finding) -> dict[str, Any]:
    return {"class": one.kind, "meaning": one.meaning, "confidence": one.confidence}


def lost_as_json(found: Waits) -> dict[str, Any]:
    """What ranks waited for each other, as JSON of weft diagnose --lost-time; times in ns."""
    return {
        "job_ns": found.job_ns,
        "waited_ns": found.waited_ns,
        "iterations": found.iterations,
        "hosts": [{"host": host, "waited_ns": ns} for host, ns in found.hosts.items()],
        "ranks": [
            {
                "rank": one.rank,
                "host": one.host,
                "waited_ns": one.waited_ns,
                "share": one.waited_ns / found.job_ns,
                "last": one.last,
                "collectives": one.collectives,
                "late_iterations": one.late,
                "period_iterations": one.period.steps,
                "period_ns": one.period.ns,
            }
            for one in found.each
        ],
    }


def _plain(value: Any) -> Any:
    """The value with types that JSON has."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value
