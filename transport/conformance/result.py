"""The outcome of a check: its name, what was measured, the bound, the verdict, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from congestion.promises import Promises


@dataclass(frozen=True)
class Outcome:
    """One check of one policy.

    A value beyond a bound that is required or declared fails the check. One beyond a bound that is
    only usual in the field is a warning, which `--strict` makes a failure.
    """

    check: str
    measured: str
    bound: str  # the declared property, or the one required of every policy
    passed: bool  # False: a failure, strict or not
    remedy: str = ""  # advice where to search for the cause, shown unless the check is ok
    seconds: float = 0.0
    warns: bool = False  # passed, but the value is not as is usual
    name: str = ""  # by which Promises.without and Promises.intrinsic name the property
    where: str = ""  # the network, and the virtual time at which it happened
    reason: str = ""  # why the algorithm itself lacks the property, from Promises.intrinsic

    def fails(self, strict: bool) -> bool:
        return not self.passed or (strict and self.warns and not self.reason)

    def status(self, strict: bool) -> str:
        """One of "ok", "warning", "by design" and "FAILED"."""
        if self.fails(strict):
            return "FAILED"
        if not self.warns:
            return "ok"
        return "by design" if self.reason else "warning"

    def as_json(self, strict: bool = False) -> dict[str, object]:
        return {
            "check": self.check,
            "measured": self.measured,
            "bound": self.bound,
            "passed": not self.fails(strict),
            "status": self.status(strict),
            "property": self.name,
            "where": self.where,
            "reason": self.reason,
            "remedy": self.remedy,
            "seconds": round(self.seconds, 3),
        }


Outcomes = Iterator[Outcome]


def verdict(
    check: str,
    passed: bool,
    measured: str,
    bound: str,
    remedy: str,
    *,
    name: str = "",
    where: str = "",
) -> Outcome:
    """The outcome of a check whose bound is declared, or required of every policy."""
    remedy = "" if passed else remedy
    return Outcome(check, measured, bound, bool(passed), remedy, name=name, where=where)


def usual(
    check: str, kept: bool, measured: str, bound: str, remedy: str, *, name: str = "", where: str
) -> Outcome:
    """The outcome of a check whose bound is usual in the field: at most a warning."""
    warns = not kept
    remedy = remedy if warns else ""
    return Outcome(check, measured, bound, True, remedy, warns=warns, name=name, where=where)


def graded(outcome: Outcome, kept: bool, bound: str, remedy: str) -> Outcome:
    """Adds a usual bound to a check that has a required one."""
    outcome = replace(outcome, bound=f"{outcome.bound}, usual {bound}")
    if outcome.passed and not kept:
        return replace(outcome, warns=True, remedy=remedy)
    return outcome


def excused(promises: Promises, outcome: Outcome) -> Outcome:
    """What the policy's file says of a property that it lacks.

    `intrinsic` gives the reason, and the check counts as by design. `without` gives none, and the
    check is a warning.
    """
    if not outcome.name or not outcome.fails(strict=True):
        return outcome
    reason = promises.intrinsic.get(outcome.name, "")
    if reason:
        return replace(outcome, passed=True, warns=True, reason=reason)
    if outcome.name in promises.without:
        bound = f"{outcome.bound}, left out: without {outcome.name}"
        return replace(outcome, passed=True, warns=True, bound=bound)
    return outcome


def within(value: float, least: float, most: float, slack: float = 1e-9) -> bool:
    """Whether the value is in the range; false for NaN."""
    return least - slack <= value <= most + slack


def number(value: float) -> str:
    """A number as short text."""
    return f"{value:.4g}"
