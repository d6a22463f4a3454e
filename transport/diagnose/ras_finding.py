"""Makes findings of what statuses of NCCL's RAS tell."""

from __future__ import annotations

from typing import Any

from transport.diagnose.finding import Finding, Place, graded
from transport.diagnose.ras_statuses import Statuses

STILL_NS = 5_000_000_000  # what lasted for less is only suspected
SURE_NS = 60_000_000_000  # from here on, more time does not make it clearer
LEAST, MOST = 0.7, 0.95  # confidence at STILL_NS and at SURE_NS
SUSPECTED = 0.4
REMOTE, IN_PROGRESS = 6, 7
# ncclResult_t of nccl.h.
RESULTS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    REMOTE: "remote process error",
    IN_PROGRESS: "in progress",
}


def made(
    statuses: Statuses,
    kind: str,
    place: Place,
    lasted_ns: int,
    certain: bool,
    evidence: str,
    advice: str,
    **more: Any,
) -> Finding:
    """A finding that holds for `lasted_ns` up to the last status. It has no query, as RAS has no
    tables."""
    now_ns = statuses.last.time_ns
    found = Finding(
        kind,
        place,
        now_ns - lasted_ns,
        now_ns,
        confidence_of(lasted_ns),
        certain,
        evidence,
        "",
        advice,
        more=more,
    )
    return graded(found, certain)


def confidence_of(lasted_ns: int) -> float:
    """The confidence that something hangs which has not moved for so long."""
    if lasted_ns < STILL_NS:
        return SUSPECTED
    part = min((lasted_ns - STILL_NS) / (SURE_NS - STILL_NS), 1.0)
    return round(LEAST + (MOST - LEAST) * part, 2)
