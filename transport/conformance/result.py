"""The outcome of a check: its name, what was measured, the bound, the verdict, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """One check of one policy."""

    check: str
    measured: str
    bound: str  # the declared property, or the one required of every policy
    passed: bool
    remedy: str = ""  # advice where to search for the cause, shown if the check failed
    seconds: float = 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "check": self.check,
            "measured": self.measured,
            "bound": self.bound,
            "passed": self.passed,
            "remedy": self.remedy,
            "seconds": round(self.seconds, 3),
        }


Outcomes = Iterator[Outcome]


def verdict(check: str, passed: bool, measured: str, bound: str, remedy: str) -> Outcome:
    return Outcome(check, measured, bound, bool(passed), "" if passed else remedy)


def within(value: float, least: float, most: float, slack: float = 1e-9) -> bool:
    """Whether the value is in the range; false for NaN."""
    return least - slack <= value <= most + slack


def number(value: float) -> str:
    """A number as short text."""
    return f"{value:.4g}"
