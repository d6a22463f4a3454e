"""Joins what several sources tell of one hang: a trace, dumps of the Flight Recorder, logs, RAS.

The most telling verdict of all sources is taken, and each other source is asked whether it agrees.
If one says the opposite, such as that the absent rank did call, nothing is certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.facts import Facts
from transport.diagnose.finding import Finding, Place, graded
from transport.diagnose.opinion import AGREES, DISAGREES, UNKNOWN, Opinion
from transport.diagnose.ras_opinion import of_calls, of_ras
from transport.diagnose.reported import own_frames
from transport.diagnose.told import Calls, Group, Match, Told, matched
from transport.trace.notes import ranges

# Classes of hangs, the most telling one first.
HANGS = (
    "crash",
    "mismatch",
    "initialization_hang",
    "non_communication_hang",
    "communication_hang",
)
BEHIND_CERTAINTY = 0.6  # confidence of what only a log tells, whose last lines may be missing


def joined(sources: Sequence[Told]) -> Diagnosis:
    """One diagnosis of what several sources tell of one job; the first one is the main one."""
    first = sources[0]
    found = first.diagnosis
    every = set().union(*(one.ranks for one in sources))
    absent = found.missing - len(every - first.ranks)
    notes = [f"{one.name}: {note}" for one in sources[1:] for note in one.diagnosis.notes]
    found = replace(
        found,
        notes=(*found.notes, *notes),
        ranks=max(found.ranks, len(every)),
        missing=max(absent, 0),
    )
    asked = [(one, finding) for one in sources for finding in one.diagnosis.findings]
    hangs = [each for each in asked if each[1].kind in HANGS]
    hangs += [(first, one) for one in _behind(sources, hangs)]
    if not hangs:
        return found
    told, main = min(hangs, key=lambda each: _order(each[1]))
    opinions = [_opinion(told, main, one) for one in sources if one is not told]
    others = [one for one in found.findings if one.kind not in HANGS]
    return replace(found, findings=(_with(main, opinions, sources), *others))


def _order(one: Finding) -> tuple[bool, float]:
    """Sorts verdicts: certain ones first, then by how much they explain.

    A NIC that both ends cannot reach is why its rank does not call.
    """
    rank = 2.5 if one.place.kind == "nic" else float(HANGS.index(one.kind))
    return not one.certain, rank


def _with(main: Finding, opinions: Sequence[Opinion], sources: Sequence[Told]) -> Finding:
    """The verdict with the opinions, the stack and the paths that other sources know."""
    stack = {} if main.more.get("stacks") else _stack(main, sources)
    text = main.evidence + stack.pop("text", "")
    text += "".join(one.sentence for one in opinions) + _paths_text(main, sources)
    said = [{"source": one.source, "says": one.says, "text": one.text} for one in opinions]
    made = replace(main, evidence=text, more={**main.more, **stack, "sources": said})
    return graded(made, main.certain and all(one.says != DISAGREES for one in opinions))


def _opinion(told: Told, main: Finding, other: Told) -> Opinion:
    operation = main.more.get("operation")
    found = of_ras(main, other) if other.statuses is not None else None
    if found is None and told.statuses is not None and operation is not None:
        found = of_calls(operation, other)
    if found is not None:
        return found
    if told.statuses is not None or other.statuses is not None:
        operation = None  # RAS has no calls to be compared
    elif main.kind == "initialization_hang" and main.place.ranks:
        return _of_beginning(main, other)
    if operation is not None and operation["kind"] == "collective":
        found = _of_operation(told, operation, other)
        if found.says != UNKNOWN:
            return found
        return _of_findings(main, other) or found
    return _of_findings(main, other) or Opinion(other.name, UNKNOWN, "it shows no hang")


def _of_operation(told: Told, operation: dict[str, Any], other: Told) -> Opinion:
    """What a source tells of the ranks that called an operation, and of those that did not."""
    group = told.groups.get(operation["comm"])
    number = None if group is None else _number(group, operation)
    match = None if group is None else matched(told, group, other)
    if match is None or number is None:
        text = "which of its communicators this is, is not clear"
        return Opinion(other.name, UNKNOWN, text)
    calls, there = match.group.calls, number + match.shift
    came = [rank for rank in operation["absent"] if rank in calls and there in calls[rank].keys]
    behind = [rank for rank in operation["absent"] if rank in calls and calls[rank].last < there]
    present = sorted(rank for rank, one in calls.items() if there in one.keys)
    how = f"(communicator found {match.how})"
    if came:
        text = f"{_named(came)} did call it there, as number {_said(calls[came[0]], there)} {how}"
        return Opinion(other.name, DISAGREES, text)
    if behind:
        last = calls[behind[0]]
        text = f"{_named(behind)} called number {_said(last, last.last)} last there"
        text += f", and {_named(present)} the next one {how}" if present else f" {how}"
        return Opinion(other.name, AGREES, text)
    if not operation["absent"] and present:
        return Opinion(other.name, AGREES, f"{_named(present)} called it there {how}")
    return Opinion(other.name, UNKNOWN, f"it has nothing of {_named(operation['absent'])}")


def _of_beginning(main: Finding, other: Told) -> Opinion:
    """What a source tells of ranks that did not come to the start of a job."""
    went = {
        rank for group in other.groups.values() for rank, one in group.calls.items() if one.keys
    }
    calls = sorted(went & set(main.place.ranks))
    if calls:
        return Opinion(other.name, DISAGREES, f"{_named(calls)} called operations there")
    if other.ranks & set(main.place.ranks):
        return Opinion(other.name, AGREES, f"{_named(main.place.ranks)} called nothing there")
    return Opinion(other.name, AGREES, f"it has nothing of {_named(main.place.ranks)} either")


def _of_findings(main: Finding, other: Told) -> Opinion | None:
    """What the verdicts of another source say of the main one; None: it has none."""
    hangs = [one for one in other.diagnosis.findings if one.kind in HANGS]
    if not hangs:
        return None
    near = [one for one in hangs if set(one.place.ranks) & set(main.place.ranks)]
    if near:
        return Opinion(other.name, AGREES, f"{near[0].kind} of {near[0].place.name}")
    worst = min(hangs, key=_order)
    text = f"{worst.kind} of {worst.place.name}"
    if worst.kind == "communication_hang":
        # All called, which contradicts no dead NIC or link, wherever it waits.
        says = AGREES if main.kind == worst.kind and not worst.place.ranks else UNKNOWN
    elif main.kind == "mismatch":  # ranks that called something else make others wait
        says = UNKNOWN
    else:
        says = DISAGREES if main.certain and worst.certain else UNKNOWN
    return Opinion(other.name, says, text)


def _behind(sources: Sequence[Told], hangs: Sequence[tuple[Told, Finding]]) -> list[Finding]:
    """Ranks without a trace that, as another source tells, did not call what the others wait in.

    The trace alone says that all ranks called, as far as it knows.
    """
    made = []
    for told, one in hangs:
        operation = one.more.get("operation")
        if operation is None or operation["absent"] or operation["kind"] != "collective":
            continue
        group = told.groups.get(operation["comm"])
        number = None if group is None else _number(group, operation)
        for other in sources:
            match = None if other is told or group is None else matched(told, group, other)
            if match is None or number is None:
                continue
            late = _late(told, match, number + match.shift)
            if late:
                made.append(_finding(one, operation, late, other.name))
    return made


def _late(told: Told, match: Match, there: int) -> list[int]:
    return sorted(
        rank
        for rank, calls in match.group.calls.items()
        if calls.last < there and rank not in told.ranks
    )


def _finding(one: Finding, operation: dict[str, Any], late: list[int], source: str) -> Finding:
    name, called = _named(late), len(operation["called"])
    return replace(
        one,
        kind="non_communication_hang",
        place=Place("rank", name, tuple(late)),
        confidence_of_all=BEHIND_CERTAINTY,
        certain=False,
        evidence=f"{called} ranks wait in {operation['function']} number {operation['number']}. "
        f"{name} has no trace, and as {source} tells, it did not call it.",
        advice=f"See what {name} does: py-spy dump on its host shows its stack.",
        more={**one.more, "operation": {**operation, "absent": late}},
    )


def _number(group: Group, operation: dict[str, Any]) -> int | None:
    """The number in the group's order of an operation that its source numbers in its own way."""
    for rank in operation["called"]:
        calls = group.calls.get(rank)
        if calls is None:
            continue
        for number, said in calls.said.items():
            if said == operation["number"] and calls.keys[number][0] == operation["function"]:
                return number
    return None


def _said(calls: Calls, number: int) -> int:
    return calls.said.get(number, number)


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {ranges(sorted(ranks))}"


def _stack(main: Finding, sources: Sequence[Told]) -> dict[str, Any]:
    """The stack of the rank of a verdict, from the first source that has it."""
    if len(main.place.ranks) != 1:
        return {}
    for one in sources:
        frames = one.stacks.get(main.place.ranks[0], [])
        if frames:
            text = f" Its last call came from {own_frames(frames)} ({one.name})."
            return {"text": text, "stacks": frames}
    return {}


def _paths_text(main: Finding, sources: Sequence[Told]) -> str:
    """A sentence on the paths of weft between the rank of a verdict and the others."""
    if len(main.place.ranks) != 1:
        return ""
    rank = main.place.ranks[0]
    for one in sources:
        states = paths_of_rank(one.facts, rank)
        if states:
            break
    else:
        return ""
    works = [other for other, (lost, known) in states.items() if not lost]
    gone = [other for other, (lost, known) in states.items() if lost == known]
    some = [other for other in states if other not in works and other not in gone]
    parts = [f"to {_named(works)} work"] if works else []
    parts += [f"to {_named(gone)} are lost"] if gone else []
    parts += [
        f"to {_named([other])} are lost in part ({states[other][0]} of {states[other][1]})"
        for other in some[:4]
    ]
    return f" Its paths {', those '.join(parts)}."


def paths_of_rank(facts: Facts, rank: int) -> dict[int, tuple[int, int]]:
    """Other rank -> how many paths between it and `rank` are unusable at the end, and are known."""
    ranks = [one.rank for one in facts.processes]
    last: dict[tuple[int, int, int], tuple[int, bool]] = {}
    what = {"path_down": False, "path_up": True}
    said: list[bool | None] = [what.get(str(one)) for one in facts.downs["what"]]
    usable: list[bool | None] = [bool(one) for one in facts.samples.get("usable", ())]
    for table, states in ((facts.samples, usable), (facts.downs, said)):
        columns = [table[name].tolist() for name in ("source", "target", "path", "time_ns")]
        for source, target, path, at_ns, state in zip(*columns, states, strict=False):
            ends = (source, target, path)
            if (
                state is None
                or min(source, target) < 0
                or rank not in (ranks[source], ranks[target])
            ):
                continue
            if at_ns >= last.get(ends, (-1, True))[0]:
                last[ends] = (at_ns, state)
    made: dict[int, tuple[int, int]] = {}
    for (source, target, _), (_, state) in last.items():
        other = ranks[target] if ranks[source] == rank else ranks[source]
        lost, known = made.get(other, (0, 0))
        made[other] = (lost + (not state), known + 1)
    return dict(sorted(made.items()))
