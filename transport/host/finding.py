"""One line of a report of `weft doctor`, and the verdict on all lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OK, LIMITED, ABSENT, BROKEN, NOT_JUDGED = "ok", "limited", "absent", "BROKEN", "not judged"
PORTS_TRIED = ("UDP ports", "TCP ports")  # subjects: how many ports of a range were tried
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
        state: ", ".join(_name(one) for one in findings if one.state == state) for state in STATES
    }
    if by_state[BROKEN]:
        return f"verdict: broken: {by_state[BROKEN]}"
    limited = f"; limited: {by_state[LIMITED]}" if by_state[LIMITED] else ""
    not_judged = [one for one in findings if one.state == NOT_JUDGED]
    if not_judged and all(one.subject.startswith(PORTS_TRIED) for one in not_judged):
        return f"verdict: the two hosts can run weft{limited}; note: {by_state[NOT_JUDGED]}"
    if not_judged:
        return f"verdict: nothing is broken; not judged: {by_state[NOT_JUDGED]}{limited}"
    return f"verdict: the two hosts can run weft{limited}"


def _name(finding: Finding) -> str:
    """The subject; with how many ports were tried, which a verdict has to say."""
    if finding.subject.startswith(PORTS_TRIED):
        return f"{finding.subject} ({finding.found})"
    return finding.subject
