"""Runs 25 random fault schedules of processes; `make schedules` runs a thousand and mutations.

Four schedules run at a time, because a schedule mostly waits.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.support import ROOT, reason_to_skip
from tests.schedules.defects import Defect

from .defects import DEFECTS, Workshop

pytestmark = pytest.mark.namespaces

COUNT = int(os.environ.get("PROCESS_SCHEDULES", "25"))
SIDE_BY_SIDE = 4
FULL = 1000


def play(count: int, *words: str, tree: Path | None = None) -> tuple[int, str]:
    """Runs `count` schedules; returns the worst exit status and the output."""
    each = -(-count // SIDE_BY_SIDE)
    spans = [(first, min(first + each, count + 1)) for first in range(1, count + 1, each)]
    planted = {} if tree is None else {"SCHEDULES_TREE": str(tree)}
    players = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.processes.schedule", str(first), str(end - 1), *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | planted,
        )
        for first, end in spans
    ]
    try:
        said = [player.communicate(timeout=120 + 30 * count)[0] for player in players]
    finally:
        for player in players:
            player.kill()
            player.communicate()
    return max(player.returncode for player in players), "".join(said)


@pytest.fixture(scope="module")
def workshop(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    if COUNT < FULL:
        pytest.skip("building the library six times takes minutes: make schedules does it")
    policies = Path(pytestconfig.getoption("--build-tree")).resolve() / "policies"
    return Workshop(tmp_path_factory.mktemp("defects"), policies)


@pytest.mark.long
def test_schedules__leave_every_healthy_connection_whole() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    status, said = play(COUNT)
    print(said)
    assert status == 0, said


def test_schedules__defects_are_none_of_the_sources() -> None:
    for defect in DEFECTS:
        source = (ROOT / defect.file).read_text()
        assert defect.planted(source) != source


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_schedules__find_a_planted_mistake(defect: Defect, workshop: Workshop) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    tree = workshop.plant(defect)
    found = tree / "found"
    _, said = play(FULL, "--until", str(found), tree=tree)
    print(said)
    assert found.exists(), f"{FULL} schedules did not find it: {said}"
    assert "seed " in said
