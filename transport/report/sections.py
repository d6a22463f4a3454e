"""The sections of a report on operations, steps, late ranks, counters and faster networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from transport.diagnose.waits import Waited
from transport.estimate.traced import Step
from transport.ground.text import printable
from transport.ground.units import bytes_text, percent, rate_text, span_text, time_text
from transport.report.content import HOUR_NS, Content
from transport.report.counters import Counters, Series
from transport.report.section import Chart, Section, Source, Table, cut
from transport.trace.profile import Sized

NOT_KNOWN = "?"
LATE = ("non_communication_slow", "non_communication_hang")  # findings that others wait for
SIZES_MAX = 24  # rows of the table of operations


def maybe(value: float | None, text: Callable[[float], str]) -> str:
    """The value as text; "?" if it is not known."""
    return NOT_KNOWN if value is None else text(value)


def operations(content: Content, source: Source) -> Section:
    """Which operations of which sizes, how often and how fast."""
    title = "Which operations, of which sizes, how often"
    commands = [source.command("trace", "profile", "DIR", "--sizes")]
    if not content.sizes:
        why = "Not known: the trace has no operations of NCCL."
        return Section("operations", title, [why], notes=content.size_notes, commands=commands)
    line = (
        "Calls of all ranks; times are sums over ranks, the median is that of one call. Bus "
        "bandwidth is that of nccl-tests: it can be compared with the rate of the links."
    )
    tables = [_size_table(content.sizes)]
    notes = content.size_notes
    return Section(
        "operations", title, [line], _size_charts(content.sizes), tables, notes, commands
    )


def _size_charts(sizes: Sequence[Sized]) -> list[Chart]:
    """Calls and time by size, a series for each function."""
    powers = range(min(one.power for one in sizes), max(one.power for one in sizes) + 1)
    of = {(one.function, one.power): one for one in sizes}
    functions = list(dict.fromkeys(one.function for one in sizes))

    def series(value: Callable[[Sized], float | None]) -> list[tuple[str, list[float | None]]]:
        def at(name: str, power: int) -> float | None:
            return value(of[name, power]) if (name, power) in of else 0

        return [(printable(name), [at(name, power) for power in powers]) for name in functions]

    labels, axis = [span_text(power) for power in powers], "bytes of a call"
    calls = series(lambda one: one.count)
    times = series(lambda one: one.time_ns)
    return [
        Chart("calls", "Calls by size", "stack", "calls", labels, calls, axis),
        Chart("times", "Time by size, summed over ranks", "stack", "ns", labels, times, axis),
    ]


def _size_table(sizes: Sequence[Sized]) -> Table:
    ordered = sorted(sizes, key=lambda one: -(one.time_ns or 0))
    rows, more = cut(ordered, "functions and sizes", SIZES_MAX)
    cells = [
        [
            *(printable(one.function), span_text(one.power), f"{one.count:,}"),
            *(bytes_text(one.bytes), maybe(one.time_ns, time_text)),
            *(maybe(one.time_ns_p50, time_text), maybe(one.bus_bytes_per_s, rate_text)),
            ", ".join(one.timed_by) or NOT_KNOWN,
        ]
        for one in rows
    ]
    heads = ["function", "size", "calls", "bytes", "time", "median", "bus bandwidth", "timed by"]
    return Table("Operations by size, the costliest first", heads, cells, more)


def steps(content: Content, source: Source) -> Section:
    """Where the time of a step goes."""
    found = content.steps
    commands = [_overlap(content, source)]
    title = "Where a step's time goes"
    if found.why:
        return Section("steps", title, [f"Not known: {found.why}."], commands=commands)
    known = content.options.alone_ns is not None
    ordered = sorted(found.each, key=lambda one: -one.communication_ns)
    rows, more = cut(ordered, "ranks")
    names = [f"median of {len(found.each):,} ranks", *(_rank(one) for one in rows)]
    middle = _middle(found.each)
    shown = [middle, *rows]
    parts = _parts(shown, known)
    chart = Chart("step", "A step of each rank", "bars", "ns", names, parts)
    cells = [
        [name, time_text(one.step_ns), *(maybe(values[at], time_text) for _, values in parts)]
        for at, (name, one) in enumerate(zip(names, shown, strict=True))
    ]
    lines = [
        f"A step of the median rank takes {time_text(middle.step_ns)}; "
        f"{time_text(middle.communication_ns)} of it "
        f"({percent(middle.communication_ns / middle.step_ns)}) are communication, which includes "
        "waiting for late ranks."
    ]
    if known and middle.exposed_ns is not None and middle.hidden_ns is not None:
        lines.append(
            f"Computation hides {time_text(middle.hidden_ns)} of it; "
            f"{time_text(middle.exposed_ns)} are exposed, so that GPUs compute nothing meanwhile."
        )
    else:
        lines.append(
            "Which part of the communication is exposed is not known, as the trace does not tell "
            "when GPUs compute: give --alone, the time of a step without communication."
        )
    head = ["rank", "step", *(name for name, _ in parts)]
    caption = "Parts of a step, the ranks with most communication first"
    table = Table(caption, head, cells, more)
    return Section("steps", title, lines, [chart], [table], found.notes, commands)


def _overlap(content: Content, source: Source) -> str:
    alone_ns = content.options.alone_ns
    given = [] if alone_ns is None else ["--alone", f"{alone_ns}ns"]
    return source.command("estimate", "overlap", "DIR", *given)


def _rank(one: Step) -> str:
    return "rank ?" if one.rank is None else f"rank {one.rank}"


def _middle(each: Sequence[Step]) -> Step:
    """The medians over ranks."""

    def median(value: Callable[[Step], float | None]) -> float | None:
        known = [found for one in each if (found := value(one)) is not None]
        return float(np.median(known)) if known else None

    return Step(
        *(None, each[0].steps, each[0].operations),
        *(median(lambda one: one.step_ns) or 0.0, median(lambda one: one.communication_ns) or 0.0),
        {},
        *(median(lambda one: one.exposed_ns), median(lambda one: one.hidden_ns)),
        median(lambda one: one.idle_ns),
    )


def _parts(shown: Sequence[Step], known: bool) -> list[tuple[str, list[float | None]]]:
    """The parts of the steps, which add up to each step."""
    if not known:
        return [
            ("communication", [one.communication_ns for one in shown]),
            (
                "computation or idle",
                [max(one.step_ns - one.communication_ns, 0.0) for one in shown],
            ),
        ]
    exposed = [one.exposed_ns for one in shown]
    hidden = [one.hidden_ns for one in shown]
    idle = [one.idle_ns for one in shown]
    alone: list[float | None] = [
        max(one.step_ns - (one.exposed_ns or 0) - (one.hidden_ns or 0) - (one.idle_ns or 0), 0.0)
        for one in shown
    ]
    return [
        ("computation alone", alone),
        ("hidden communication", hidden),
        ("exposed communication", exposed),
        ("idle", idle),
    ]


def late(content: Content, source: Source) -> Section:
    """Who was last, and what that cost."""
    found, cost = content.lost, content.cost
    title = "Who was last, and what that cost"
    inventory = content.options.inventory_words
    commands = [source.command("diagnose", "DIR", "--lost-time", *inventory)]
    if not found.each:
        why = "Not judged: the trace has no collective whose ranks show when they came."
        return Section("late", title, [why], commands=commands)
    rows, more = cut(found.each, "ranks")
    if more:
        rest = sum(one.waited_ns for one in found.each[len(rows) :])
        more += f": others waited {time_text(rest)} for them"
    heads = ["rank", "host", "others waited", "of the job", "GPU-hours"]
    heads += [content.options.currency] if cost.price is not None else []
    heads += ["last in", "late in"]
    cells = [_late_cells(one, content) for one in rows]
    chart = Chart(
        *("late", "GPU time that others waited for each rank", "bars", "ns"),
        [_name(one) for one in rows],
        [("others waited", [one.waited_ns for one in rows])],
    )
    lines = [
        f"GPUs waited {time_text(found.waited_ns)} in all for late ranks: "
        f"{percent(cost.lost_share)} of the job's {time_text(found.job_ns)} of GPU time, "
        f"{hours_text(content, cost.lost_hours)}.",
        f"At this rate, a day of the job loses {hours_text(content, cost.day_hours)}. One GPU is "
        "counted for each process. What slow messages cost, and what late groups of ranks pass on "
        "to other groups, is not part of this.",
    ]
    tables = [Table("Ranks that others waited for, the costliest first", heads, cells, more)]
    if 1 < len(found.hosts) < len(found.each):
        hosts, left = cut(list(found.hosts.items()), "hosts")
        made = [
            [printable(host) or NOT_KNOWN, time_text(ns), percent(ns / found.job_ns)]
            for host, ns in hosts
        ]
        tables.append(Table("By host", ["host", "others waited", "of the job"], made, left))
    charts = [chart] if found.waited_ns else []
    return Section("late", title, lines, charts, tables, commands=commands)


def _name(one: Waited) -> str:
    return f"rank {one.rank}" if one.rank >= 0 else printable(one.name)


def _late_cells(one: Waited, content: Content) -> list[str]:
    hours = one.waited_ns / HOUR_NS
    money = content.cost.money(hours)
    late = f"{one.late} of {content.lost.iterations} iterations" if one.late else "-"
    if one.late and (one.period.steps or one.period.ns):
        late += f", {one.period.text}"
    return [
        *(_name(one), printable(one.host) or NOT_KNOWN, time_text(one.waited_ns)),
        *(percent(one.waited_ns / content.lost.job_ns), number_text(hours)),
        *([] if money is None else [number_text(money)]),
        *(f"{one.last:,} of {one.collectives:,} collectives", late),
    ]


def number_text(value: float) -> str:
    """Hours or money with two decimal places."""
    return "< 0.01" if 0 < value < 0.005 else f"{value:,.2f}"


def hours_text(content: Content, hours: float) -> str:
    """Hours of GPUs, and what they cost if a price is given."""
    money = content.cost.money(hours)
    paid = "" if money is None else f" ({number_text(money)} {content.options.currency})"
    return f"{number_text(hours)} GPU-hours{paid}"


def counters(content: Content, source: Source) -> Section:
    """What the network carried over the time of the job."""
    found = content.counters
    segments = [("sent again", found.resent), ("found lost", found.lost)]
    events = found.events or ()
    named = [
        *([] if found.sent is None else [("bytes sent over the network", found.sent)]),
        *((f"segments {name}", one) for name, one in segments if one is not None),
        *((f"event {one.name}", one) for one in events),
    ]
    rows = [_count_row(name, one, found) for name, one in named]
    heads = ["counter", "in all", "most in a bin"]
    return Section(
        "counters",
        "Counters over time",
        _not_counted(found),
        _count_charts(found),
        [Table("Counters of the job", heads, rows)] if rows else [],
        commands=[source.query(one.query) for _, one in named],
    )


def _not_counted(found: Counters) -> list[str]:
    """Lines on what the trace does not tell, or what never happened."""
    lines = []
    if found.sent is None:
        lines.append("Bytes sent are not known: the trace has no messages and no channels.")
    lacking = [
        ("sent again", found.resent, "parts of messages"),
        ("found lost", found.lost, "samples of paths"),
    ]
    lines += [
        f"How many segments were {name} is not known: the trace has no {records}, which only "
        "weft's network records."
        for name, one, records in lacking
        if one is None
    ]
    if found.events is None:
        lines.append("Events of paths are not known: only weft's network records them.")
    elif not found.events:
        lines.append("No path failed, and no timeout was recorded.")
    return lines


def _count_charts(found: Counters) -> list[Chart]:
    times = [time_text(at * found.bin_ns) for at in range(found.bins)]
    axis = f"time since the first record, in bins of {time_text(found.bin_ns)}"
    charts = []
    if found.sent is not None:
        sent = [("sent", [value * 1e9 / found.bin_ns for value in found.sent.values])]
        title = "Bytes sent, by when their transfer ended"
        charts.append(Chart("sent", title, "areas", "bytes/s", times, sent, axis))
    segments = [("sent again", found.resent), ("found lost", found.lost)]
    known = [(name, one.values) for name, one in segments if one is not None]
    if any(any(values) for _, values in known):
        title = f"Segments {' and '.join(name for name, _ in known)}"
        charts.append(Chart("lost", title, "columns", "segments", times, known, axis))
    if found.events:
        kinds = [(one.name, one.values) for one in found.events]
        charts.append(Chart("events", "Events", "stack", "events", times, kinds, axis))
    return charts


def _count_row(name: str, one: Series, found: Counters) -> list[str]:
    total, most = sum(one.values), max(one.values)
    at = time_text(one.values.index(most) * found.bin_ns)
    if one is found.sent:
        return [name, bytes_text(total), f"{rate_text(most * 1e9 / found.bin_ns)} at {at}"]
    return [name, f"{total:,}", f"{most:,} at {at}" if most else "-"]


def _waits(content: Content) -> str:
    """How much of a step is waiting for late ranks, as the end of a sentence."""
    lost = content.lost
    if not lost.each or not lost.iterations:
        return ""
    each_ns = lost.waited_ns / len(lost.each) / lost.iterations
    late = [one for one in content.found.findings if one.certain and one.kind in LATE]
    first = f", and {late[0].place.name} delays the job: mend that first" if late else ""
    return f": a rank waits {time_text(each_ns)} in each iteration, on average{printable(first)}"


def faster(content: Content, source: Source) -> Section:
    """What a faster network would buy."""
    found, title = content.steps, "What a faster network would buy"
    commands = [_overlap(content, source)]
    if found.why:
        return Section("faster", title, [f"Not known: {found.why}."], commands=commands)
    middle = _middle(found.each)
    names = [one.network for one in found.gains]
    rows = [
        [one.network, one.time_text, one.share_text, one.rest_text(middle.step_ns)]
        for one in found.gains
    ]
    spans = [(one.least_ns, one.most_ns) for one in found.gains]
    name = "By how much a step becomes shorter, at least and at most"
    chart = Chart("faster", name, "spans", "ns", names, [("shorter by", spans)])
    lines = [
        "For a network of more bandwidth and less latency, and the median rank. Waiting for late "
        f"ranks counts as communication here, and no network makes it shorter{_waits(content)}."
    ]
    if content.options.alone_ns is None:
        lines.append(
            "Wide ranges, as it is not known what computation hides: at least nothing is exposed, "
            "at most all of the communication. --alone TIME narrows them."
        )
    heads = ["network", "a step is shorter by", "share", "a step takes"]
    table = Table("Gain of a faster network", heads, rows)
    return Section("faster", title, lines, [chart], [table], commands=commands)
