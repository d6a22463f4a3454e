"""Tests that a job's paths take the ports of its plan, and that a wrong plan leaves it running."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.lab.support import ROOT, grown, reason_to_skip, unique, weft
from tests.waiting import PATIENCE_S
from transport.lab import Lab, LabModel

pytestmark = pytest.mark.namespaces

BASE, PATHS = 20_000, 8
MESSAGE_BYTES, MESSAGES = 1 << 20, 8
SERVER = f"""
from transport import Endpoint
with Endpoint() as endpoint, endpoint.listen(port=7000, open=True) as listener:
    print("ready", flush=True)
    with listener.accept(timeout_s=240) as connection:
        for number in range({MESSAGES}):
            assert connection.recv({MESSAGE_BYTES}) == bytes([number]) * {MESSAGE_BYTES}
        connection.send(b"all there")
"""
CLIENT = f"""
import sys
from transport import Endpoint
with Endpoint() as endpoint, endpoint.connect(sys.argv[1], 7000, timeout_s=240) as connection:
    for number in range({MESSAGES}):
        connection.send(bytes([number]) * {MESSAGE_BYTES}, timeout_s=240)
    assert connection.recv(100) == b"all there"
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Lab(LabModel(), name=unique("apply")) as one:
        yield one


@pytest.fixture(scope="module")
def routes(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("routes") / "routes.json"
    ports = ("--port-base", str(BASE), "--ports", str(2 * PATHS))
    run = weft("plan", "probe", "--lab", lab.name, *ports, "--samples", "1", "-o", str(out))
    assert run.returncode == 0, run.stderr
    return out


def assigned(routes: Path, out: Path, *options: str) -> None:
    words = ("plan", "assign", str(routes), "--ring", "all", "--paths", str(PATHS))
    run = weft(*words, "--plan", str(out), *options)
    assert run.returncode == 0, run.stderr


def move(lab: Lab, **settings: str) -> str:
    """Sends all messages from host0 to host1; returns what both processes log."""
    clean = clean_environment()
    clean |= {"WEFT_INTERFACES": "eth0", "WEFT_ENGINES": "1", "WEFT_PATHS": str(PATHS)} | settings
    pipe = subprocess.PIPE
    server = lab.popen(
        "host1",
        [sys.executable, "-c", SERVER],
        stdout=pipe,
        stderr=pipe,
        text=True,
        cwd=ROOT,
        env=clean,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        client = lab.run(
            "host0",
            [sys.executable, "-c", CLIENT, lab.address("host1")],
            stderr=pipe,
            text=True,
            timeout=PATIENCE_S,
            cwd=ROOT,
            env=clean,
        )
        assert client.returncode == 0, client.stderr
        _, log = server.communicate(timeout=PATIENCE_S)
        assert server.returncode == 0, log
        return str(client.stderr + log)
    finally:
        server.kill()
        server.communicate(timeout=PATIENCE_S)


def by_spine(lab: Lab, **settings: str) -> list[int]:
    """The bytes that each spine carried from host0 to host1."""
    growth = grown(lab, lambda: move(lab, **settings))
    return [growth[f"leaf0>spine{i}"].bytes for i in range(4)]


@pytest.mark.parametrize("engines", [1, 2])
def test_apply__the_paths_take_the_planned_spines(
    lab: Lab, routes: Path, tmp_path: Path, engines: int
) -> None:
    plan = tmp_path / "plan.json"
    avoided = [word for spine in (0, 2, 3) for word in ("--avoid", f"leaf0-spine{spine}")]
    assigned(routes, plan, *avoided, "--engines", "2")
    settings = {"WEFT_PLAN": str(plan), "WEFT_PORT_BASE": str(BASE), "WEFT_ENGINES": str(engines)}
    carried = by_spine(lab, **settings)
    assert carried[1] > MESSAGES * MESSAGE_BYTES, carried
    # The control connection's TCP ports are not planned.
    assert sum(carried) - carried[1] < MESSAGE_BYTES // 8, carried


def test_apply__an_even_plan_uses_every_spine(lab: Lab, routes: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assigned(routes, plan)
    # In turn over the paths: other policies avoid paths that are slow on a busy machine.
    settings = {"WEFT_PLAN": str(plan), "WEFT_PORT_BASE": str(BASE)}
    carried = by_spine(lab, **settings, WEFT_PATH_POLICY="round_robin")
    assert min(carried) > MESSAGE_BYTES // 8, carried
    spines = {
        pair["from"]: [plan_links(plan)[path[1]] for path in pair["links"]]
        for pair in json.loads(plan.read_text())["jobs"]["job"]
    }
    for host, links in spines.items():
        leaf = host.replace("host", "leaf")
        assert sorted(links) == sorted(2 * [f"{leaf}>spine{at}" for at in range(4)])


def plan_links(plan: Path) -> list[str]:
    return list(json.loads(plan.read_text())["links"])


def test_apply__a_wrong_plan_is_one_line_and_the_job_runs(lab: Lab, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    for text, said in (
        (None, "No such file or directory"),
        ('{"weft_plan":1,"jobs":{"a":[{"from_ad', "the file is no plan, or is cut off"),
        ('{"weft_plan":2,"jobs":{}}', "the file has plan version 2, and this weft reads 1"),
        ('{"weft_plan":1,"jobs":{"a":[{"ports":[[0,1]]}]}}', "the file is no plan, or is cut off"),
        ("[" * 100_000, "the file is no plan, or is cut off"),
    ):
        if text is not None:
            plan.write_text(text)
        log = move(lab, WEFT_PLAN=str(plan), WEFT_PORT_BASE=str(BASE))
        lines = [line for line in log.splitlines() if "plan" in line]
        assert len(lines) == 2, log  # one line at each end
        assert all(f"the plan {plan} is not used: {said}" in line for line in lines)


def test_apply__a_plan_for_other_ports_is_one_line(lab: Lab, routes: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assigned(routes, plan)
    log = move(lab, WEFT_PLAN=str(plan), WEFT_PORT_BASE="30000")
    lines = log.splitlines()
    assert len(lines) == 2, log
    assert all("has 0 pairs of ports for 8 paths from 10." in line for line in lines)
