"""Every registered policy goes through the whole suite, with fewer events and shorter runs.

What fails and is known is listed in known.py; `make conformance` runs everything in full.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("numba")

from congestion.api import Policy
from congestion.registry import policies
from transport.conformance import FULL_EVENTS, QUICK_EVENTS, Settings, check_policy

from .known import KNOWN

FULL = os.environ.get("CONFORMANCE") == "full"
SETTINGS = Settings(FULL_EVENTS if FULL else QUICK_EVENTS, quick=not FULL)


@pytest.mark.parametrize(
    "policy",
    [entry.policy for entry in policies().values()],
    ids=[f"{family}-{name}" for family, name in policies()],
)
def test_registry__passes_the_suite(policy: Policy) -> None:
    report = check_policy(policy, SETTINGS)
    known = {
        check: reason
        for (family, name, check), reason in KNOWN.items()
        if (family, name) == (policy.family.name, policy.name)
    }
    failed = {one.check: one for one in report.failures}
    surprises = [
        f"{one.check}: measured {one.measured}, bound {one.bound}; {one.remedy}"
        for one in report.failures
        if one.check not in known
    ]
    assert not surprises, "\n".join(surprises)
    mended = [check for check in known if check not in failed]
    assert not mended, f"passes now: remove it from known.py: {mended}"
    if known:
        pytest.xfail("; ".join(f"{check}: {reason}" for check, reason in known.items()))


def test_known__names_policies_and_checks_that_exist() -> None:
    assert {(family, name) for family, name, _ in KNOWN} <= set(policies())
