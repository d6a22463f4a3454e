"""Renders a report as one HTML page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transport import pages
from transport.diagnose import Answer, Finding, Place, report
from transport.ground.text import printable
from transport.ground.units import counted, percent, quantity_text, time_text
from transport.report import sections
from transport.report.cells import Shown
from transport.report.content import HOUR_NS, Content
from transport.report.section import Section, Source, Table, cut

PAGE_BYTES_MAX = 2_000_000
FINDINGS_MAX = 20
NOTES_MAX = 20
MEASURES = {"bytes": "bytes", "messages": "transfers", "latency_mean": "latency (mean)"}
SCRIPTS = ("chart.js", "matrix.js", "report.js")
# Answer -> the style of its banner, a mark for those who do not see colours, and what it means.
ANSWERS = {
    Answer.HEALTHY: ("good", "✓", "Healthy: nothing was found, and there was enough evidence."),
    Answer.FOUND: ("bad", "✗", "Found: {}"),
    Answer.UNEXPLAINED: ("odd", "!", "Slower, but unexplained: {}"),
    Answer.NOT_JUDGED: ("unknown", "?", "Not judged: the trace has too little evidence."),
}


@dataclass(frozen=True)
class Verdict:
    """A finding as the page shows it. facts: (name, text)."""

    head: str
    certain: bool
    facts: Sequence[tuple[str, str]]
    command: str


def page(content: Content, source: Source, command: str, live: str = "") -> str:
    """The page. command: the command line that made it. live: a line on how it is kept up to date.

    Its script runs under a policy (CSP) that allows no other script and no network.
    """
    found = content.found
    made = [
        sections.operations(content, source),
        sections.steps(content, source),
        sections.late(content, source),
        sections.counters(content, source),
        sections.faster(content, source),
    ]
    script, allowed = pages.script_of(*SCRIPTS)
    jobs = ", ".join(printable(job) or "unnamed" for job in content.about.jobs)
    return pages.rendered(
        "report.html",
        title=f"Job {jobs}",
        command=command,
        live=live,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}",
        answer=_answer(content),
        cards=_cards(content),
        verdicts=[_verdict(one, content, source) for one in found.findings[:FINDINGS_MAX]],
        more_findings=max(len(found.findings) - FINDINGS_MAX, 0),
        reasons=[line.strip() for line in report.reasons_of(found)],
        judged=report.looked_at(found),
        glance=[
            source.command("trace", "info", "DIR"),
            _diagnose(content, source),
            source.command("diagnose", "DIR", "--lost-time", *content.options.inventory_words),
        ],
        diagnose=_diagnose(content, source),
        matrix=_matrix(content, source),
        sections=made,
        notes_of_trace=_notes(content),
        data=pages.as_json(_data(content, made)),
        script=script,
    )


def _diagnose(content: Content, source: Source) -> str:
    routes = content.options.routes_file
    words = [*([] if not routes else ["--routes", routes]), *content.options.inventory_words]
    return source.command("diagnose", "DIR", *words)


def _answer(content: Content) -> dict[str, str]:
    """The banner at the top of the page."""
    found = content.found
    style, mark, text = ANSWERS[found.answer]
    certain = [one for one in found.findings if one.certain]
    if found.answer is Answer.FOUND:
        said = f"{certain[0].meaning}, at {_name(certain[0].place)}."
        if len(certain) > 1:
            said += f" And {counted(len(certain) - 1, 'more finding')}."
        text = text.format(said)
    text = text.format(found.unexplained)
    if len(certain) < len(found.findings):
        text += f" {counted(len(found.findings) - len(certain), 'suspicion')} below."
    return {"style": style, "mark": mark, "text": printable(text), "name": found.answer.value}


def _cards(content: Content) -> list[tuple[str, str, str]]:
    """The figures at a glance: name, value, a line below it."""
    about, found, cost = content.about, content.found, content.cost
    missing = f"{found.missing} have no trace" if found.missing else "all have a trace"
    iteration = f"of {time_text(found.iteration_ns)} (median)" if found.iterations else ""
    ranks = found.ranks + found.missing
    cards = [
        ("ranks", f"{ranks:,}", missing),
        ("hosts", f"{about.hosts:,}", "with a trace"),
        ("duration", time_text(about.duration_ns), about.began),
        ("iterations", f"{found.iterations:,}" if found.iterations else "?", iteration),
    ]
    if content.lost.each:
        lost = percent(cost.lost_share)
        below = f"at least: {time_text(content.lost.waited_ns)} waiting for late ranks"
    else:
        lost, below = "?", "not judged: no collective shows when ranks came"
    cards.append(("GPU time lost", lost, below))
    money = cost.money(cost.lost_hours)
    if money is not None and content.lost.each:
        day = cost.money(cost.day_hours) or 0.0
        text = f"{sections.number_text(money)} {content.options.currency}"
        below = f"{sections.number_text(day)} {content.options.currency} a day at this rate"
        cards.append(("that cost", text, below))
    return cards


def _name(place: Place) -> str:
    """The name of a place, with what the inventory adds."""
    return place.shown or place.name


def _verdict(one: Finding, content: Content, source: Source) -> Verdict:
    side = f" ({one.place.side} side)" if one.place.side else ""
    facts = [("what", one.meaning), ("evidence", one.evidence)]
    if one.place.candidates:
        facts.append(("one of", "; ".join(one.places)))
    facts.append(("when", report.when(one.from_ns, one.to_ns)))
    if one.lost_ns:
        facts.append(("cost", _cost(one.lost_ns, content)))
    facts.append(("confidence", report.confidence_text(one)))
    facts.append(("do", one.advice))
    shown = [(name, printable(text)) for name, text in facts]
    head = printable(f"{one.kind}: {_name(one.place)}{side}")
    return Verdict(head, one.certain, shown, source.query(one.query))


def _cost(lost_ns: int, content: Content) -> str:
    """What a fault cost, if all GPUs of the job waited as long."""
    ranks = content.found.ranks + content.found.missing
    lost = sections.hours_text(content, ranks * lost_ns / HOUR_NS)
    share = percent(lost_ns / content.about.duration_ns) if content.about.duration_ns else "?"
    return f"{time_text(lost_ns)} of the job's time ({share}); of {counted(ranks, 'GPU')} {lost}"


def _matrix(content: Content, source: Source) -> dict[str, Any]:
    """What the section of the matrices shows beside the canvas."""
    kinds = list(dict.fromkeys(one.whole.what for one in content.matrices))
    inventory = content.options.inventory_words
    commands = [
        source.command("trace", "matrix", "DIR", "--measure", name, *by, *inventory)
        for by in ([], ["--by", "host"])[: max(len(kinds), 1)]
        for name in MEASURES
    ]
    if not content.matrices:
        return {"why": content.no_matrix, "commands": commands}
    notes = list(dict.fromkeys(note for one in content.matrices for note in one.whole.notes))
    if fold := max(one.fold for one in content.matrices) - 1:
        notes.insert(
            0,
            f"reduced, so that the page stays small: up to {fold + 1} x {fold + 1} "
            "cells of ranks are one cell, with their sum, or the largest of their latencies; "
            "weft trace matrix --html draws all",
        )
    notes += dict.fromkeys(
        f"{MEASURES[one.whole.measure]}: not known, as the trace has no transfers of weft"
        for one in content.matrices
        if not (one.whole.states & 3).any()
    )
    return {
        "why": "",
        "kinds": kinds,
        "sizes": [one.whole.size for one in content.matrices[:: len(MEASURES)]],
        "names": MEASURES.values(),
        "tables": [_largest(one) for one in content.matrices],
        "racks": any(kind == "rack" for _, kind in content.matrices[0].data["borders"]),
        "notes": notes,
        "commands": commands,
    }


def _largest(one: Shown) -> Table:
    """The largest cells of a matrix."""
    matrix = one.whole
    known = [at for at in (-matrix.values).argsort(kind="stable").tolist() if matrix.states[at] & 3]
    rows, more = cut(known, "pairs")
    name = MEASURES[matrix.measure]
    more = more if known else f"No pair is known to have {name}."
    cells = [
        [
            printable(matrix.labels[matrix.sources[at]]),
            printable(matrix.labels[matrix.targets[at]]),
            quantity_text(float(matrix.values[at]), matrix.unit),
            "measured" if matrix.states[at] & 1 else "derived",
        ]
        for at in rows
    ]
    heads = [f"from {matrix.what}", f"to {matrix.what}", name, "is"]
    return Table(f"Pairs with most {name}, by {matrix.what}", heads, cells, more)


def _notes(content: Content) -> list[str]:
    notes = [printable(note) for note in (*content.notes, *content.found.notes)]
    every = list(dict.fromkeys(notes))
    left = len(every) - NOTES_MAX
    return every[:NOTES_MAX] + ([f"and {left} more notes"] if left > 0 else [])


def _data(content: Content, made: Sequence[Section]) -> dict[str, Any]:
    """What the script of the page draws, and the numbers behind the figures at a glance."""
    lost, found = content.lost, content.found
    return {
        "matrices": [one.data for one in content.matrices],
        "charts": [chart.as_json() for section in made for chart in section.charts],
        "numbers": {
            "answer": found.answer.value,
            "findings": [
                {"class": one.kind, "place": one.place.name, "certain": one.certain}
                for one in found.findings[:FINDINGS_MAX]
            ],
            "ranks": found.ranks,
            "missing": found.missing,
            "iterations": found.iterations,
            "iteration_ns": int(found.iteration_ns),
            "waited_ns": int(lost.waited_ns),
            "job_ns": int(lost.job_ns),
            "lost_hours": content.cost.lost_hours,
            "lost_money": content.cost.money(content.cost.lost_hours),
        },
    }
