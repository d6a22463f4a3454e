"""Checks that a policy still works after a million events of one flow.

A few thousand plausible events are repeated while the clock and the flow's counters advance.
"""

from __future__ import annotations

import numpy as np

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.answers import complaint
from transport.conformance.native_side import Guarded, NativeSide
from transport.conformance.result import Outcome, verdict
from transport.conformance.streams import Chunk, Stream

EVENTS = (1 << 20) + (1 << 16)  # enough to overflow a 20-bit counter
OTHER_EVERY = 64  # every 64th event of a window policy is not an acknowledgment
# Fields that grow during a flow's life; negative times and sequence numbers mean "none".
CLOCKS = (
    *("now_ns", "newest_acked_sent_ns", "oldest_inflight_sent_ns", "newest_inflight_sent_ns"),
    "probed_sent_ns",
)
COUNTS = ("delivered_bytes", "highest_acked_seq", "cumulative_seq")


def lives_long(policy: Policy, library: Library, seed: int) -> Outcome:
    """Runs one long flow; a window policy gets more than 2^20 acknowledgments."""
    family = policy.family
    chunk = one_life(policy, seed)
    side = NativeSide(policy, library)
    side.restart(chunk.shared)
    events = Guarded(chunk.events.dtype, len(chunk.hooks))
    results = Guarded(chunk.presets.dtype, len(chunk.hooks))
    events.records[:] = chunk.events
    span_ns = int(chunk.events["now_ns"][-1] - chunk.events["now_ns"][0]) + 1
    played, text = 0, ""
    while played < EVENTS and not text:
        results.records[:] = chunk.presets
        first = 0 if played == 0 else 1  # event 0 starts the policy; later passes skip it
        statuses = _pass(side, chunk, events, results, first)
        played += len(chunk.hooks) - first
        shown = Chunk(chunk.hooks, events.records, chunk.presets, chunk.shared, chunk.heads, False)
        text = complaint(family, shown, statuses, results.records)
        if not text and not side.finite():
            text = "a record has become infinite"
        _age(events.records, span_ns)
    return verdict(
        "lives long",
        not text,
        f"after {played:,} events: {text}" if text else f"{played:,} events of one flow",
        "finite answers and no failure at any age of the flow",
        "look for a counter that grows for ever and is used as a divisor, a shift or a limit",
    )


def one_life(policy: Policy, seed: int) -> Chunk:
    """Makes plausible events; for a window policy nearly all are acknowledgments."""
    stream = Stream(policy, seed)
    chunk = stream.chunk(False)
    if policy.family.name != "window":
        return chunk
    hooks = np.array(chunk.hooks)
    quiet = np.arange(len(hooks)) % OTHER_EVERY != OTHER_EVERY - 1
    hooks[1:][quiet[1:]] = 1
    chunk.events["kind"] = hooks - 1
    return Chunk(
        hooks.tolist(),
        chunk.events,
        chunk.presets,
        chunk.shared,
        chunk.heads,
        False,
        chunk.heads_every,
    )


def _pass(
    side: NativeSide, chunk: Chunk, events: Guarded, results: Guarded, first: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Plays each event once; returns the hooks' statuses."""
    statuses = np.zeros(len(chunk.hooks), np.int64)
    bare, given = side.bound()
    event_bytes, result_bytes = chunk.events.dtype.itemsize, chunk.presets.dtype.itemsize
    for at in range(first, len(chunk.hooks)):
        if chunk.heads is not None and (at % chunk.heads_every == 0 or at == first):
            side.set_heads(chunk.heads[at // chunk.heads_every])
        status = bare[chunk.hooks[at]](
            *given, events.address + at * event_bytes, results.address + at * result_bytes
        )
        if status:
            statuses[at] = status
            break
    return statuses


def _age(events: np.ndarray[tuple[int], np.dtype[np.void]], span_ns: int) -> None:
    names = events.dtype.names or ()
    for name in CLOCKS:
        if name in names:
            events[name][events[name] >= 0] += span_ns
    for name in COUNTS:
        if name in names:
            events[name] += int(events[name][-1]) - int(events[name][0])
