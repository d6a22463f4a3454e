"""Checks that a policy's answers do not change where a 32-bit clock or counter would wrap.

The same events are played twice: entirely before 2^31 or 2^32 of a unit, and across it. The answers
must be the same. So must those to events in which a size or a time is just below that value, or
just above it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.answers import complaint
from transport.conformance.longevity import CLOCKS, COUNTS as SENT_COUNTS, one_life
from transport.conformance.native_side import Guarded, NativeSide
from transport.conformance.result import Outcomes, usual
from transport.conformance.streams import Chunk

Array = np.ndarray[Any, Any]

POWERS = (31, 32)
UNITS_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000}
COUNTS = (*SENT_COUNTS, "demand_bytes", "received_bytes", "granted_bytes")
SPAN_NS, SPAN_BYTES = 1 << 30, 1 << 29  # of the events that are played
BEGIN_NS = 1 << 29  # the first event's time at least, as send times lie before it
EVEN_NS, EVEN_SEGMENTS = 16_000_000, 1 << 10  # 16 ms: 16 million ns, and 15,625 * 2^10 ns
STREAMS = 3  # random chunks of events, each of a path of its own
BEFORE, RUN, AFTER = 60, 24, 40  # events before the first extreme value, with it, and from it on
# Fields of one event that may be large. The others are indices, flags, clocks or counters.
SIZES = (
    *("rtt_ns", "rtt_min_ns", "srtt_ns", "rttvar_ns", "rto_ns", "ack_delay_ns", "acked_bytes"),
    *("acked_segments", "ecn_segments", "lost_bytes", "lost_segments", "inflight_bytes"),
    *("window_bytes", "window_bytes_max", "link_bytes_per_s", "bytes", "ready_bytes"),
    *("inflight_segments", "spurious_segments", "sacked_segments", "active_flows"),
    *("sent_bytes", "sent_segments", "message_bytes", "message_left_bytes", "one_way_ns"),
)
# Answers that are times or counters, and so move with them.
TIMES_OUT = ("lost_sent_before_ns", "next_check_ns", "next_tick_ns", "next_timer_ns")
COUNTS_OUT = ("lost_below_seq", "granted_bytes")
SLACK, SLACK_UNITS = 1e-3, 16.0  # how far two answers may be apart: as a share, in ns or bytes


@dataclass(frozen=True)
class Played:
    """The answers to a chunk, and whether they are sound."""

    results: Array
    complaint: str


def play(policy: Policy, library: Library, chunk: Chunk, counted: int) -> Played:
    """Plays a chunk from a fresh start; `counted`: granted_bytes before the first event."""
    side = NativeSide(policy, library)
    side.restart(chunk.shared)
    count = len(chunk.hooks)
    events, results = Guarded(chunk.events.dtype, count), Guarded(chunk.presets.dtype, count)
    events.records[:], results.records[:] = chunk.events, chunk.presets
    statuses = np.zeros(count, np.int64)
    bare, given = side.bound()
    credit, last = policy.family.name == "credit", counted
    for at, hook in enumerate(chunk.hooks):
        if chunk.heads is not None and at % chunk.heads_every == 0:
            side.set_heads(chunk.heads[at // chunk.heads_every])
        if credit:
            events.records["granted_bytes"][at] = results.records["granted_bytes"][at] = last
        statuses[at] = bare[hook](
            *given,
            events.address + at * chunk.events.dtype.itemsize,
            results.address + at * chunk.presets.dtype.itemsize,
        )
        if credit:
            last = max(last, int(results.records["granted_bytes"][at]))
    sound = replace(chunk, events=events.records.copy())
    return Played(
        results.records.copy(), complaint(policy.family, sound, statuses, results.records)
    )


def moved(chunk: Chunk, fields: tuple[str, ...], by: int) -> Chunk:
    """The chunk with clocks or counters moved; negative times and counts mean "none"."""
    events = chunk.events.copy()
    for name in fields:
        if name in (events.dtype.names or ()):
            events[name][events[name] >= 0] += by
    return replace(chunk, events=events)


def first_difference(one: Array, other: Array, back: dict[str, int]) -> tuple[int, str]:
    """The first event whose answers differ, and how; (-1, "") if there is none.

    back: how far a field of the second answers was moved.
    """
    first, text = len(one), ""
    for name in one.dtype.names or ():
        before, after = one[name].astype(np.float64), other[name].astype(np.float64)
        if name in back:
            # In integers, because a time of 2^52 ns has no exact difference as a float.
            least = 1 if name == "next_timer_ns" else 0  # 0 there: no time
            after = np.where(other[name] >= least, other[name] - back[name], other[name])
            after = after.astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(after - before) <= SLACK_UNITS + SLACK * np.abs(before)
        at = np.flatnonzero(~near)
        if len(at) and at[0] < first:
            first = int(at[0])
            text = f"{name} is {after[first]:.6g}, not {before[first]:.6g}"
    return (first, text) if text else (-1, "")


def short(chunk: Chunk) -> Chunk:
    """The part of a chunk that passes within SPAN_NS and SPAN_BYTES."""
    events = chunk.events
    keep = events["now_ns"] - events["now_ns"][0] < SPAN_NS
    for name in COUNTS:
        if name in (events.dtype.names or ()):
            keep &= np.abs(events[name] - events[name][0]) < SPAN_BYTES
    count = len(keep) if keep.all() else max(int(np.argmin(keep)), 1)
    return replace(
        chunk, hooks=chunk.hooks[:count], events=events[:count], presets=chunk.presets[:count]
    )


def with_deliveries(events: Array) -> Array:
    """The events with a send time of the newest delivery, as a path has from the first one on."""
    name = "newest_acked_sent_ns"
    if name in (events.dtype.names or ()):
        events = events.copy()
        none = events[name] < 0
        events[name][none] = (events["now_ns"] - events["rtt_min_ns"])[none]
    return events


def chunks(policy: Policy, seed: int) -> Iterator[Chunk]:
    for number in range(STREAMS):
        # Most of a window policy's events are acknowledgments, or its window would stay small.
        chunk = short(one_life(policy, seed + number))
        presets = chunk.presets.copy()
        if "granted_bytes" in (presets.dtype.names or ()):
            presets["granted_bytes"] = 0
        yield replace(chunk, events=with_deliveries(chunk.events), presets=presets)


def across(
    policy: Policy, library: Library, chunk: Chunk, fields: tuple[str, ...], edge: int
) -> str:
    """Compares the answers before an edge with those across it; "": they are the same."""
    present = [name for name in fields if name in (chunk.events.dtype.names or ())]
    if not present:
        return ""
    clocks = fields is CLOCKS
    column = chunk.events["now_ns" if clocks else present[0]]
    middle = len(column) // 2
    before = edge - 1 - max(int(chunk.events[name].max()) for name in present)
    over = edge - int(column[middle])
    # Events must lie alike between whole milliseconds, or between whole segments.
    even = EVEN_NS if clocks else EVEN_SEGMENTS * int(chunk.events["segment_bytes"][0])
    before = over - -(-(over - before) // even) * even
    if before < -int(column[0]) + (BEGIN_NS if clocks else 0):
        return ""
    names = TIMES_OUT if clocks else COUNTS_OUT
    first, second = moved(chunk, fields, before), moved(chunk, fields, over)
    one = play(policy, library, first, 0 if clocks else max(before, 0))
    other = play(policy, library, second, over - before + max(before, 0) if not clocks else 0)
    if other.complaint and not one.complaint:
        return other.complaint
    back = dict.fromkeys(names, over - before)
    at, text = first_difference(one.results, other.results, back)
    if at < 0:
        return ""
    return f"{text}, {at - middle:+d} events from there"


def clock_edges() -> Iterator[tuple[str, int]]:
    for unit, scale in UNITS_NS.items():
        for power in POWERS:
            yield f"2^{power} {unit}", scale << power


def beyond_a_value(policy: Policy, library: Library, chunk: Chunk, name: str, edge: int) -> str:
    """Compares the answers to events with a value just below an edge, and just above it."""
    for hook in sorted(set(chunk.hooks[BEFORE:]) - {0}):
        at = chunk.hooks.index(hook, BEFORE)
        count = at + 1 + AFTER
        part = replace(
            chunk,
            hooks=chunk.hooks[:count],
            events=chunk.events[:count],
            presets=chunk.presets[:count],
        )
        played = []
        for value in (edge - 1, edge + 1):
            changed = part.events.copy()
            changed[name][at : at + RUN] = value  # several, as a policy may skip some
            played.append(play(policy, library, replace(part, events=changed), 0))
        if played[1].complaint and not played[0].complaint:
            return played[1].complaint
        text = first_difference(played[0].results, played[1].results, {})[1]
        if text:
            return text
    return ""


def keeps_to_64_bits(policy: Policy, library: Library, seed: int) -> Outcomes:
    """Checks clocks, counters and sizes around 2^31 and 2^32."""
    wrong: dict[str, str] = {}
    for chunk in chunks(policy, seed):
        for text, edge in clock_edges():
            found = across(policy, library, chunk, CLOCKS, edge)
            if found:
                wrong.setdefault("clock", f"at {text}: {found}")
        for power in POWERS:
            found = across(policy, library, chunk, COUNTS, 1 << power)
            if found:
                wrong.setdefault("counter", f"at 2^{power}: {found}")
            for name in SIZES:
                if name in (chunk.events.dtype.names or ()):
                    found = beyond_a_value(policy, library, chunk, name, 1 << power)
                    if found:
                        wrong.setdefault("size", f"{name} past 2^{power}: {found}")
    for what, subject in (
        ("clock", "clocks"),
        ("counter", "counters"),
        ("size", "sizes and times"),
    ):
        yield usual(
            f"{subject} past 32 bits",
            what not in wrong,
            wrong.get(what, "the same answers on both sides of 2^31 and 2^32"),
            "the same as before it",
            "look for arithmetic modulo 2^32, for a mask, and for a limit of that size",
            where=f"random events, seed {seed}",
        )
