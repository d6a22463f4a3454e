"""Diagnoses a job from all sources that tell of it: a trace, dumps, logs and statuses of RAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transport.diagnose.diagnosis import Diagnosis, diagnose, numbers_of
from transport.diagnose.facts import SIMULATED_NS_MAX, facts_of
from transport.diagnose.joined import joined
from transport.diagnose.ras import judged
from transport.diagnose.ras_statuses import Statuses
from transport.diagnose.reported import stacks_of
from transport.diagnose.settings import Settings
from transport.diagnose.told import Told
from transport.ground.units import time_text
from transport.trace.beside import Beside
from transport.trace.nccl_ras import KIND as RAS

APART_NS = 3_600_000_000_000  # sources of one job that are further apart are of two runs


def diagnosed(sources: Sequence[Beside], settings: Settings) -> Diagnosis:
    """The diagnosis of a job; the first of its sources is the main one."""
    first = sources[0]
    if len(sources) == 1:
        found = judged(first.statuses) if first.statuses else diagnose(first.store, settings)
        return _with_source(first, found)
    told, notes = [_told(first, settings)], []
    for one in sources[1:]:
        why = _other_job(first, one)
        if why:
            notes.append(f"{one.name} is left out: {why}")
        else:
            told.append(_told(one, Settings()))
    found = joined(told)
    named = ", ".join(f"{one.name} ({len(one.facts.processes)} processes)" for one in told)
    notes.append(f"joined: {named}")
    return replace(found, notes=(*notes, *found.notes))


def _other_job(first: Beside, other: Beside) -> str:
    """Why a source is of another job than the main one; empty: nothing says so.

    Dumps of earlier runs often lie where those of this one are written.
    """
    sql = "SELECT max(world_size), min(first_ns), max(last_ns) FROM processes"
    ((size, from_ns, to_ns),) = first.store.rows(sql)
    ((other_size, other_from_ns, other_to_ns),) = other.store.rows(sql)
    # The largest communicator that a dump or log names may be smaller than the job.
    if size is not None and other_size is not None and other_size > size:
        return f"it is of a job of {other_size} ranks, and not of {size}"
    simulated = not first.kind and 0 <= (from_ns or 0) <= SIMULATED_NS_MAX
    if other.kind == RAS and not simulated and _all_others(first, other):
        return "its ranks are other processes, as of an earlier run or attempt"
    known = min(from_ns or 0, other_from_ns or 0) > SIMULATED_NS_MAX
    # Logs and statuses of RAS have times of a zone that they do not tell.
    if not known or {first.kind, other.kind} & {"nccl-log", RAS}:
        return ""
    apart_ns = max(from_ns - other_to_ns, other_from_ns - to_ns)
    return f"it is of another time, {time_text(apart_ns, 2)} apart" if apart_ns > APART_NS else ""


def _all_others(first: Beside, other: Beside) -> bool:
    """Whether both sources know processes of the same ranks, and no rank has the same one."""
    sql = "SELECT rank, pid FROM processes WHERE rank >= 0 AND pid > 0"
    here, there = set(first.store.rows(sql)), set(other.store.rows(sql))
    return bool({rank for rank, _ in here} & {rank for rank, _ in there}) and not here & there


def _told(source: Beside, settings: Settings) -> Told:
    facts = facts_of(source.store, settings.now_ns)
    if source.statuses:
        found = _with_source(source, judged(source.statuses))
        return Told(source.name, facts, found, statuses=Statuses(source.statuses))
    found = _with_source(source, diagnose(source.store, settings, facts))
    numbers = numbers_of(source.store)
    stacks = stacks_of(source.store, numbers)
    of_rank = {facts.processes[at].rank: one for at, one in stacks.items() if at >= 0}
    return Told(source.name, facts, found, of_rank)


def _with_source(source: Beside, found: Diagnosis) -> Diagnosis:
    """The diagnosis of one source, with its notes; findings say how their query can be run."""
    findings = found.findings
    if source.kind and not source.statuses:
        findings = tuple(replace(one, more={**one.more, "import": source.kind}) for one in findings)
    return replace(found, findings=findings, notes=(*found.notes, *source.notes))
