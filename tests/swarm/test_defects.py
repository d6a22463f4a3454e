"""Tests that a swarm finds, minimises and replays five planted mistakes.

Everything is built from a copy of the sources at -O1, which takes minutes, so it runs only with
SWARM=full (make swarm). test_swarm.py tests the unchanged sources.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.schedules.defects import ROOT, Defect

from .defects import DEFECTS
from .support import Done, replay, swarm
from .workshop import FabricWorkshop

SEEDS = 300
KEYS_MAX = 20  # maximum number of keys of a minimised scenario, so that it fits on a screen
# The kinds of finding allowed for each defect: a wrong count may break several invariants.
KINDS = {
    "acknowledgment_off_by_one": {"P-1", "P-2", "P-3", "P-4", "P-7", "window"},
    "lost_timer": {"P-2"},
    "slab_given_back_twice": {"P-1", "P-2", "P-3", "P-4", "P-7", "crash"},
    "verdict_on_an_old_copy": {"P-4"},
    "silent_path_never_probed": {"P-5"},
}


@pytest.fixture(scope="module")
def found(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[tuple[Path, Done]]]]:
    """Defect -> the module with the defect, and the result of a swarm on it."""
    if os.environ.get("SWARM") != "full":
        pytest.skip("building five modules takes minutes: make swarm does it (SWARM=full)")
    policies = Path(pytestconfig.getoption("--build-tree")) / "policies"
    if not list(policies.glob("fixed_*.o")):
        pytest.skip(f"{policies} has no fixed_*.o: make build compiles them")
    workshop = FabricWorkshop(tmp_path_factory.mktemp("swarm"), policies)
    workshop.healthy()
    with ThreadPoolExecutor(2) as pool:
        tried = {defect.name: pool.submit(try_out, workshop, defect) for defect in DEFECTS}
        yield tried
        for future in tried.values():
            future.cancel()


def try_out(workshop: FabricWorkshop, defect: Defect) -> tuple[Path, Done]:
    module = workshop.build(defect)
    arguments = ["--seeds", f"1-{SEEDS}", "--first", "-j", "1"]
    return module, swarm(workshop.directory / defect.name / "found", *arguments, module=module)


def test_defects__there_are_five_and_none_is_in_the_tree() -> None:
    assert {defect.name for defect in DEFECTS} == set(KINDS)
    for defect in DEFECTS:
        source = (ROOT / defect.file).read_text()
        assert defect.planted(source) != source


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_defects__is_found_shrunk_and_replayed(
    defect: Defect, found: dict[str, Future[tuple[Path, Done]]]
) -> None:
    module, done = found[defect.name].result()
    assert done.status == 1, f"{SEEDS} seeds did not find it"
    (first,) = done.findings[:1]
    assert first["kind"] in KINDS[defect.name]
    assert first["small_keys"] <= min(KEYS_MAX, first["keys"])
    text = Path(first["small_file"]).read_text()
    assert f"seed {first['seed']}." in text
    assert first["small_replay"] in text
    again = replay(first["small_replay"], module)
    assert again.returncode != 0
    # `weft sim` reports unfinished transfers with other words than the finding.
    said = again.stdout + again.stderr
    assert first["kind"] in said or "did not finish" in said or first["kind"] == "crash", said
    print(f"{defect.name}: {done.said}")
