"""Finds queues and sockets that lose packets because they are full."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from transport.diagnose.finding import Finding
from transport.diagnose.loss_places import (
    BURSTS,
    LOSS_QUERY,
    LOSSES_MIN,
    OVERFLOW_ADVICE,
    RIVAL_SHARE,
    SINGLY,
    Lossy,
    lossy_windows,
    lost_and_sent,
    singly,
)
from transport.diagnose.paths import Paths
from transport.diagnose.seen import Rule, Seen
from transport.ground.units import percent
from transport.plan.routes import undirected

Array = NDArray[Any]

RATE_MIN = 0.03  # a queue that loses less is no fault
# Nor is one that lost this part of it in the windows before, if there are so many.
PAST_MIN, PAST_SHARE = 2, 0.5
LOADED_RATIO = 1.5  # a link with this many times the load of those beside it has full queues


def overflows(paths: Paths, span: slice, found: Lossy) -> bool:
    """Whether a place loses packets as a full queue or socket does: several in a row.

    No cable is bad everywhere, so losses everywhere are a queue's unless they are clearly single.
    """
    limit = SINGLY if found.somewhere else BURSTS
    lost = float(paths.lost[span][:, found.paths].sum())
    return lost >= LOSSES_MIN and singly(paths, span, found.paths, found.rate) < limit


def overflow(seen: Seen, paths: Paths, span: slice, rule: Rule, found: Lossy) -> Finding:
    """Congestion that fills a queue, or the receiver's socket, until it loses packets."""
    place, mine = found.place, found.paths
    missing, sent = (float(each[mine].sum()) for each in lost_and_sent(paths, span))
    lost = float(paths.lost[span][:, mine].sum())
    alone = float(paths.alone[span][:, mine].sum() / lost)
    failed = int(paths.downs[span].sum(axis=0)[mine].sum())
    certain = place.kind == "link" and lossy_windows(paths, span, mine) >= rule.seen and not failed
    certain = certain and found.rate >= RATE_MIN and _is_new(paths, span, found)
    # Otherwise queues overflow elsewhere as well.
    certain = certain and found.other_rate < RIVAL_SHARE * found.rate
    others = "" if found.somewhere else f", all other paths {percent(found.other_rate, 2)},"
    return Finding(
        "congestion",
        place,
        *seen.windows.span(span.start, span.stop - 1),
        0.85 if certain else 0.6,
        certain,
        f"{place.name} lost {missing:.0f} of about {sent:.0f} segments "
        f"({percent(found.rate, 2)}){others} and only {percent(alone, 0)} of them singly: a full "
        "queue, or a full socket of a receiver, loses several in a row, and a bad cable does not.",
        LOSS_QUERY,
        OVERFLOW_ADVICE,
        weight=lost,
        indirect=True,
        more={"downs": failed},
    )


def _is_new(paths: Paths, span: slice, found: Lossy) -> bool:
    """Whether a place lost clearly less before; a job may always fill a queue by itself."""
    if span.start < PAST_MIN:
        return False
    lost = float(paths.lost[: span.start][:, found.paths].sum())
    sent = max(float(paths.sent[: span.start][:, found.paths].sum()), lost, 1.0)
    return lost / sent < PAST_SHARE * found.rate


def is_loaded(paths: Paths, span: slice, name: str) -> bool:
    """Whether a link carries much more than those beside it, from or to the same switches."""
    crossed, count = paths.crossings, len(paths.names)
    sent, lost = paths.sent[span].sum(axis=0), paths.lost[span].sum(axis=0)
    load = np.bincount(crossed.link, weights=sent[crossed.path], minlength=count)
    losses = np.bincount(crossed.link, weights=lost[crossed.path], minlength=count)
    one = max(
        (at for at in range(count) if undirected(paths.names[at]) == name),
        key=lambda at: losses[at],
    )
    ends = [each.partition(">")[::2] for each in paths.names]
    ratios = []
    for side in (0, 1):
        beside = [
            load[at]
            for at in range(count)
            if ends[at][side] == ends[one][side] and at != one and load[at] > 0
        ]
        if beside:
            ratios.append(load[one] / float(np.median(beside)))
    return bool(ratios) and min(ratios) >= LOADED_RATIO
