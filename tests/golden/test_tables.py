"""Tests that the committed tables and traces are reproduced exactly.

No value in them depends on a C library (which is also tested), so integers must be equal, and
ratios must be equal in all stored digits.
"""

from __future__ import annotations

import pytest

pytest.importorskip("numba")

from congestion.api import FAMILIES
from congestion.registry import shipped
from tests.sample import sampled
from transport import native
from transport.compiler.objectfile import symbols

from . import tables, traces

ADVICE = "changed on purpose? make golden, read the difference, commit it by itself with a reason"


POLICIES = [(family, name) for family in FAMILIES for name in tables.names(family)]


@pytest.mark.parametrize(
    "case",
    sampled(
        POLICIES,
        ["-".join(one) for one in POLICIES],
        {"window-cubic", "path-reps", "loss-rack", "credit-eqds"},
    ),
)
def test_tables__are_as_committed(case: tuple[str, str]) -> None:
    family, name = case
    committed = tables.path_of(family).read_text().splitlines()
    expected = [line for line in committed if line.startswith(f"{name},")]
    assert list(tables.rows(family, name)) == expected, ADVICE


@pytest.mark.parametrize("family", FAMILIES)
def test_tables__have_a_row_of_every_case(family: str) -> None:
    committed = tables.path_of(family).read_text().splitlines()
    assert len(committed) == 1 + len(tables.names(family)) * len(tables.LOSSES) * len(tables.PATHS)


@pytest.mark.parametrize("stage", traces.stages())
def test_traces__are_as_committed(stage: str) -> None:
    assert traces.trace(traces.stages()[stage]) == traces.path_of(stage).read_text(), ADVICE


def test_policies__need_no_mathematics_of_a_c_library() -> None:
    """Shipped policies use no exp, log or cbrt, whose results differ between C libraries."""
    for entry in shipped():
        file = f"{entry.policy.family.name}_{entry.policy.name}.so"
        found = symbols((native.POLICY_DIRECTORY / file).read_bytes(), dynamic=True)
        assert found.undefined <= {"memset", "memcpy", "memmove"}, file
