"""One line of a report of `weft doctor`, and the verdict on all lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, LIMITED, ABSENT, BROKEN, NOT_JUDGED = "ok", "limited", "absent", "BROKEN", "not judged"
STATES = (OK, LIMITED, ABSENT, BROKEN, NOT_JUDGED)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one subject.

    `absent` means that something optional is missing, and `not judged` that nothing was measured.
    Only `BROKEN` makes the command fail.
    """

    subject: str
    state: str
    found: str
    remedy: str = ""


def verdict(findings: Sequence[Finding]) -> str:
    """One line on all findings."""
    by_state = {
        state: ", ".join(one.subject for one in findings if one.state == state) for state in STATES
    }
    if by_state[BROKEN]:
        return f"verdict: broken: {by_state[BROKEN]}"
    limited = f"; limited: {by_state[LIMITED]}" if by_state[LIMITED] else ""
    if by_state[NOT_JUDGED]:
        return f"verdict: nothing is broken; not judged: {by_state[NOT_JUDGED]}{limited}"
    return f"verdict: the two hosts can run weft{limited}"
