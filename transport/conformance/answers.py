"""Checks that the answers of a policy are finite and within the range that the core accepts."""

from __future__ import annotations

from typing import Any

import numpy as np

from congestion.api import Family
from transport.conformance.streams import Chunk


def complaint(family: Family, chunk: Chunk, statuses: Any, results: Any) -> str:
    """Describes the first answer that is out of range although its event is plausible; "": none."""
    failed = np.flatnonzero(statuses)
    if len(failed):
        hook = family.hooks[chunk.hooks[int(failed[0])]]
        return f"{hook} failed on plausible numbers: {described(chunk, int(failed[0]))}"
    hooks = np.array(chunk.hooks)
    for wrong, what in _RULES[family.name](chunk, hooks, results):
        at = np.flatnonzero(wrong)
        if len(at):
            first = int(at[0])
            answer = dict(zip(results.dtype.names, results[first].tolist(), strict=True))
            return f"{family.hooks[hooks[first]]} answers {answer}: {what}"
    return ""


def described(chunk: Chunk, at: int) -> str:
    """The non-zero fields of an event, as text."""
    event = chunk.events[at]
    return " ".join(f"{name}={event[name]}" for name in event.dtype.names if event[name].any())


def _window(chunk: Chunk, hooks: Any, results: Any) -> list[tuple[Any, str]]:
    window, pacing = results["window_bytes"], results["pacing_bytes_per_s"]
    least = results["window_segments_min"]
    return [
        (~np.isfinite(window) | ~np.isfinite(pacing) | ~np.isfinite(least), "not finite"),
        (window <= 0, "a window of 0 or less stops the flow"),
        (pacing < 0, "a negative rate"),
    ]


def _path(chunk: Chunk, hooks: Any, results: Any) -> list[tuple[Any, str]]:
    assert chunk.heads is not None
    count = chunk.shared
    picks, path = hooks == 1, results["path"]
    valid = (path >= 0) & (path < count)
    usable = chunk.heads["usable"][np.arange(len(hooks)) // chunk.heads_every] != 0
    chosen = usable[np.arange(len(hooks)), np.clip(path, 0, count - 1)]
    avoid = chunk.events["avoid_path"]
    others = usable.copy()
    rows = np.flatnonzero(avoid >= 0)
    others[rows, avoid[rows]] = False
    resend = picks & (chunk.events["is_resend"] != 0) & (avoid >= 0) & others.any(axis=1)
    return [
        (picks & ~valid, f"there are {count} paths"),
        (picks & usable.any(axis=1) & ~chosen, "that path is dead and others are not"),
        (resend & (path == avoid), "that path lost the segment, and another path is usable"),
        (picks & (results["burst_bytes"] <= 0), "an empty burst"),
    ]


def _loss(chunk: Chunk, hooks: Any, results: Any) -> list[tuple[Any, str]]:
    asked = hooks > 0
    now_ns = chunk.events["now_ns"]
    return [
        (asked & (results["lost_sent_before_ns"] > now_ns + 1), "the future cannot be lost"),
        (asked & (results["probe"] != 0) & (results["probe"] != 1), "probe is 0 or 1"),
    ]


def _credit(chunk: Chunk, hooks: Any, results: Any) -> list[tuple[Any, str]]:
    granted = results["granted_bytes"]
    # Before each hook call, granted_bytes of the answer is preset to the largest grant so far.
    before = np.concatenate([[0], np.maximum.accumulate(granted)[:-1]])
    return [
        (granted < before, "a grant cannot be taken back"),
        (granted > 1 << 60, "more than 2^60 bytes"),
    ]


_RULES = {"window": _window, "path": _path, "loss": _loss, "credit": _credit}
