"""Tests that plan files survive writing, and that wrong ones, and two planners, are one line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.lab.support import weft
from tests.plan.support import clos
from tests.waiting import PATIENCE_S
from transport.plan import planfile
from transport.plan.assign import assign
from transport.plan.demand import of_ring

HOSTS = [f"host{at}" for at in range(4)]


def made() -> planfile.Plan:
    routes = clos(4, 1, 4, 16)
    pairs = assign(routes, of_ring(HOSTS), paths=4).pairs
    return planfile.Plan("here", {"a": pairs, "b": pairs[:2]})


def test_planfile__survives_a_file(tmp_path: Path) -> None:
    plan = made()
    planfile.write(plan, tmp_path / "plan.json")
    assert planfile.read(tmp_path / "plan.json").__dict__ == plan.__dict__
    assert sorted(one.name for one in tmp_path.iterdir()) == ["plan.json"]
    sent = sum(pair.sent_bytes for pairs in plan.jobs.values() for pair in pairs)
    assert sum(plan.load().values()) == pytest.approx(4 * sent)  # each byte crosses four links
    assert 0 < sum(plan.load(without="a").values()) < 4 * sent / 2


def test_planfile__gives_the_links_of_the_paths_that_a_job_takes() -> None:
    routes = clos(4, 1, 4, 16)
    plan = planfile.Plan("here", {"a": assign(routes, of_ring(HOSTS), paths=4).pairs})
    taken = planfile.routes_of_paths(plan, routes)
    for pair in plan.jobs["a"]:
        ends = pair.source, pair.target
        assert sorted(path for *both, path in taken.of if tuple(both) == ends) == list(range(4))
        for path, links in enumerate(pair.links):
            assert tuple(taken.links[one] for one in taken.of[*ends, path]) == links
    # Pairs without a plan keep all their routes.
    assert taken.of["host0", "host2", 15] == routes.of["host0", "host2", 15]


CHANGES: tuple[tuple[Callable[[dict[str, Any]], object], str], ...] = (
    (lambda plan: plan.update(weft_plan=2), "is plan version 2, and this weft reads 1"),
    (lambda plan: plan.pop("fabric"), "is no plan: make it with weft plan assign"),
    (lambda plan: plan["jobs"]["a"][0]["weights"].pop(), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0]["ports"].append([0, 1]), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0]["links"][0].append(999), "is no plan"),
    (lambda plan: plan["jobs"].update(a=5), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0]["links"][0].append(-1), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0].update(bytes=-5), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0].update(bytes=10**400), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0].update(bytes=float("inf")), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0]["paths"].append(float("inf")), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0].update(from_address="\0"), "is no plan"),
    (lambda plan: plan["jobs"]["a"][0].update(from_address="\ud800"), "is no plan"),
)


@pytest.mark.parametrize(("change", "said"), CHANGES)
def test_planfile__a_wrong_file_is_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    content = planfile.as_json(made())
    change(content)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(content))
    with pytest.raises(planfile.PlanError) as caught:
        planfile.read(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 0.999))
def test_planfile__a_truncated_file_is_one_line(share: float) -> None:
    whole = json.dumps(planfile.as_json(made()))
    file = Path("/dev/shm") / f"weft-test-plan-{os.getpid()}.json"
    try:
        file.write_text(whole[: int(share * len(whole))])
        with pytest.raises(planfile.PlanError, match="is not JSON, or cut off") as caught:
            planfile.read(file)
    finally:
        file.unlink()
    assert "\n" not in str(caught.value)


def test_planfile__a_plan_of_another_fabric_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    planfile.write(made(), file)
    before = file.read_bytes()
    with (
        pytest.raises(planfile.PlanError, match="for the fabric here, and the routes are of there"),
        planfile.changing(file, "there"),
    ):
        pass
    assert file.read_bytes() == before


HOLD = """
import sys, time
from pathlib import Path
from transport.plan import planfile
with planfile.changing(Path(sys.argv[1]), sys.argv[2]):
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_planfile__a_second_planner_gets_one_line_then_its_turn(tmp_path: Path) -> None:
    routes = clos(4, 1, 4, 16)
    routes.write(tmp_path / "r.json")
    plan = tmp_path / "plan.json"
    words = ("plan", "assign", str(tmp_path / "r.json"), "--ring", "all", "--plan", str(plan))
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(plan), routes.fingerprint()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == "locked\n"
        run = weft(*words, "--wait", "0.2")
        assert run.returncode == 1
        assert run.stderr.count("\n") == 1
        assert f"another planner (process {held.pid} on " in run.stderr
        assert not plan.exists()
    finally:
        held.communicate("\n", timeout=PATIENCE_S)
    assert weft(*words, "--wait", "60").returncode == 0
    assert set(planfile.read(plan).jobs) == {"job"}


def test_planfile__planners_at_once_merge(tmp_path: Path) -> None:
    clos(4, 1, 4, 16).write(tmp_path / "r.json")
    script = "import sys; from transport.cli import main; sys.argv[0] = 'weft'; main()"
    words = ["plan", "assign", str(tmp_path / "r.json"), "--ring", "all"]
    words += ["--plan", str(tmp_path / "plan.json"), "--wait", "60", "--job"]
    planners = [
        subprocess.Popen([sys.executable, "-c", script, *words, job], stdout=subprocess.DEVNULL)
        for job in "abcd"
    ]
    assert [one.wait(timeout=PATIENCE_S) for one in planners] == [0, 0, 0, 0]
    assert set(planfile.read(tmp_path / "plan.json").jobs) == set("abcd")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_plan__that_steers_a_process_is_ours_alone(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    planfile.write(planfile.Plan("x"), file)
    assert planfile.read(file, steers=True).fabric == "x"
    for owner, mode, said in ((65_534, 0o644, "belongs to uid 65534"), (0, 0o666, "mode 0666")):
        os.chown(file, owner, -1)
        file.chmod(mode)
        assert planfile.read(file).fabric == "x"
        with pytest.raises(planfile.PlanError, match=said):
            planfile.read(file, steers=True)
