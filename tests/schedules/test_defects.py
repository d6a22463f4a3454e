"""Tests that the fault schedules find planted defects, and that the unchanged core passes.

Everything is built from a copy of the sources at -O1. A hang or a crash counts as a finding. Runs
with SCHEDULES=full (make schedules). test_schedules.py runs schedules of the unchanged sources.
"""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from . import Runner
from .defects import DEFECTS, ROOT, Defect, Workshop

SEEDS = 6_000
HANG_S = 20
JOBS = 2


@pytest.fixture(scope="module")
def verdicts(
    runner: Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """Defect (or "none") -> the failure that revealed it; "" if all schedules passed."""
    if os.environ.get("SCHEDULES") != "full":
        pytest.skip("building all defects takes minutes: make schedules does it (SCHEDULES=full)")
    workshop = Workshop(tmp_path_factory.mktemp("defects"), runner.policies)
    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(lambda unit: workshop.compile(unit, workshop.base), workshop.units))
        plain = workshop.link(objects, workshop.base / "weft_schedules")
        found = {"none": pool.submit(give_away, Runner(plain, runner.policies))}
        for defect in DEFECTS:
            found[defect.name] = pool.submit(try_out, workshop, defect, runner.policies)
        yield found
        for future in found.values():
            future.cancel()


def try_out(workshop: Workshop, defect: Defect, policies: Path) -> str:
    return give_away(Runner(workshop.build(defect), policies))


def give_away(runner: Runner) -> str:
    """Describes the first violation, a hang or a crash; empty if all schedules pass."""
    try:
        outcome = runner.run(seed=1, count=SEEDS, violations_max=1, timeout_s=HANG_S)
    except subprocess.TimeoutExpired:
        return f"hangs for {HANG_S} s"
    except RuntimeError as error:
        return str(error)
    return "".join(outcome.violations)


def test_defects__there_are_ten_at_least_and_none_is_in_the_tree() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 10
    for defect in DEFECTS:
        source = (ROOT / defect.file).read_text()
        assert defect.planted(source) != source


def test_defects__the_core_as_it_is_passes(verdicts: dict[str, Future[str]]) -> None:
    assert verdicts["none"].result() == ""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_defects__is_caught(defect: Defect, verdicts: dict[str, Future[str]]) -> None:
    sign = verdicts[defect.name].result()
    assert sign != "", f"{SEEDS} schedules did not find it"
    print(sign)
