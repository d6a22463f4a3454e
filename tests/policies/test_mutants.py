"""Tests that each mistake planted in a shipped policy fails a conformance check.

The settings are those of `weft policy check --quick`. `make test` has every eighth mistake,
`make test-long` the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numba")

from tests.sample import sampled
from transport.compiler import PolicyError
from transport.compiler.source import load
from transport.conformance import Settings, check_policy

from .mutants import MUTANTS, ROOT, Mutant

SETTINGS = Settings(events=8_000, quick=True)
NAMES = [mutant.name for mutant in MUTANTS]


def test_mutants__there_are_thirty_at_least_and_none_is_in_the_tree() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30
    for mutant in MUTANTS:
        assert mutant.planted() != (ROOT / "congestion" / mutant.file).read_text()


def caught_by(mutant: Mutant, folder: Path) -> str:
    """The first conformance check that fails, with its measurement; empty if all pass."""
    path = folder / Path(mutant.file).name
    path.write_text(mutant.planted())
    try:
        policy = load(path)
    except PolicyError as error:
        return f"import: {error.reason}"
    report = check_policy(policy, SETTINGS, enough=lambda outcome: not outcome.passed)
    return "".join(f"{sign.check}: {sign.measured}" for sign in report.failures)


@pytest.mark.parametrize(
    "mutant",
    sampled(MUTANTS, NAMES, NAMES[::8]),
)
def test_mutants__is_caught(mutant: Mutant, tmp_path: Path) -> None:
    sign = caught_by(mutant, tmp_path)
    assert sign, "no check failed"
    print(sign)
