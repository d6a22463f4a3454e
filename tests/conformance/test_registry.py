"""Runs the whole suite, strictly, on every registered policy, with fewer events and shorter runs.

`make test` has one policy of each family, `make test-long` the others; `make conformance` runs the
suite in full.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("numba")

from congestion.api import Policy
from congestion.registry import policies
from tests.sample import sampled
from transport.conformance import FULL_EVENTS, QUICK_EVENTS, Settings, check_policy

FULL = os.environ.get("CONFORMANCE") == "full"
SETTINGS = Settings(FULL_EVENTS if FULL else QUICK_EVENTS, quick=not FULL, strict=True)


@pytest.mark.parametrize(
    "policy",
    sampled(
        [entry.policy for entry in policies().values()],
        [f"{family}-{name}" for family, name in policies()],
        {"window-cubic", "path-reps", "loss-rack", "credit-eqds"},
    ),
)
def test_registry__passes_the_suite(policy: Policy) -> None:
    report = check_policy(policy, SETTINGS)
    failed = [
        f"{one.check}: measured {one.measured}, bound {one.bound}; {one.remedy}"
        for one in report.failures
    ]
    assert not failed, "\n".join(failed)
