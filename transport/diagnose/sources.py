"""Diagnoses a job from all sources that tell of it: a trace, dumps and logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transport.diagnose.diagnosis import Diagnosis, Settings, diagnose, numbers_of
from transport.diagnose.facts import facts_of
from transport.diagnose.joined import joined
from transport.diagnose.reported import stacks_of
from transport.diagnose.told import Told
from transport.trace.beside import Beside


def diagnosed(sources: Sequence[Beside], settings: Settings) -> Diagnosis:
    """The diagnosis of a job; the first of its sources is the main one."""
    first = sources[0]
    if len(sources) == 1:
        return _with_source(first, diagnose(first.store, settings))
    told = [_told(one, settings if one is first else Settings()) for one in sources]
    found = joined(told)
    named = ", ".join(f"{one.name} ({len(one.facts.processes)} processes)" for one in told)
    return replace(found, notes=(f"joined: {named}", *found.notes))


def _told(source: Beside, settings: Settings) -> Told:
    facts = facts_of(source.store, settings.now_ns)
    found = _with_source(source, diagnose(source.store, settings, facts))
    numbers = numbers_of(source.store)
    stacks = stacks_of(source.store, numbers)
    of_rank = {facts.processes[at].rank: one for at, one in stacks.items() if at >= 0}
    return Told(source.name, facts, found, of_rank)


def _with_source(source: Beside, found: Diagnosis) -> Diagnosis:
    """The diagnosis of one source, with its notes; findings say how their query can be run."""
    findings = found.findings
    if source.kind:
        findings = tuple(replace(one, more={**one.more, "import": source.kind}) for one in findings)
    return replace(found, findings=findings, notes=(*found.notes, *source.notes))
