"""The conformance suite: runs a policy through checks and reports an outcome for each."""

from __future__ import annotations

from transport.conformance.advice import unpromised
from transport.conformance.result import Outcome
from transport.conformance.suite import (
    FULL_EVENTS,
    QUICK_EVENTS,
    Report,
    Settings,
    check_policy,
)

__all__ = [
    "FULL_EVENTS",
    "QUICK_EVENTS",
    "Outcome",
    "Report",
    "Settings",
    "check_policy",
    "unpromised",
]
