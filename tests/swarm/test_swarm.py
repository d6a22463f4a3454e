"""Tests a swarm on the unchanged sources, where it finds nothing, and its command line."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sim.support import wait_for_a_worker
from tests.swarm.draw import draw, scenario_of
from tests.swarm.finding import Finding, judged, kind_of, look, look_at_seed, replay_command
from tests.waiting import PATIENCE_S, until
from transport.ground.toml import written
from transport.sim import Simulation

from .support import ROOT, needs_fabric, swarm, weft

pytestmark = needs_fabric

# The number of seeds; `make swarm` runs 10,000.
SEEDS = int(os.environ.get("WEFT_TEST_SWARM", "300"))


def test_swarm__nothing_is_found(tmp_path: Path) -> None:
    done = swarm(tmp_path, "--seeds", f"1-{SEEDS}", "-j", "2", "--no-shrink")
    assert done.findings == []
    assert (done.status, done.looked) == (0, SEEDS)
    assert list(tmp_path.glob("*.toml")) == []


def test_swarm__faults_do_bite() -> None:
    """The seeds' scenarios do have faults: packets are lost, dropped and trimmed; links go down."""
    lost = dropped = trimmed = marked = resent = 0
    for seed in range(90):
        simulation = Simulation(scenario_of(seed), check=True)
        while simulation.step():
            pass
        result = simulation.result()
        assert result.good, f"seed {seed}: {result.violation}"
        lost += int(result.ports["lost"].sum() > 0)
        dropped += int(result.ports["dropped"].sum() > 0)
        trimmed += int(result.ports["trimmed"].sum() > 0)
        marked += int(result.ports["marked"].sum() > 0)
        resent += int(result.streams["segments_resent"].sum() > 0)
    assert min(lost, dropped, marked, resent) > 2
    assert trimmed > 0


def test_swarm__a_seed_is_a_run() -> None:
    assert draw(77) == draw(77)
    assert draw(77) != draw(78)
    assert look_at_seed(77) == look_at_seed(77)


def test_swarm__what_does_not_end_is_p_2() -> None:
    tables = {"network": {"hosts": 2}, "workload": [{"size_bytes": 1_000_000}], "limit_ns": 3_000}
    finding = look(tables, twice=False).finding
    assert finding is not None
    assert (finding.kind, finding.text) == (
        "P-2",
        "P-2: 2 of 2 transfers not finished at 3,000 ns",
    )
    circles = look({**tables, "limit_ns": 10**9}, twice=False, hops_max=1).finding
    assert circles is None or circles.kind == "P-2"


def test_swarm__a_scenario_that_cannot_be_is_a_finding() -> None:
    finding = look({"network": {"hosts": 1}, "workload": [{}]}, twice=False).finding
    assert finding is not None
    assert finding.kind == "invalid"


def test_swarm__kinds() -> None:
    assert kind_of("P-4: more segments resent than declared lost (transfer 3)") == "P-4"
    assert kind_of("window: more bytes in flight than the window allows") == "window"
    assert replay_command("a.toml", 7, Finding("P-8", "P-8: x", 2)) == (
        "weft sim a.toml --check --seed 7 --threads 2"
    )


def test_swarm__a_written_scenario_is_the_run_of_its_seed(tmp_path: Path) -> None:
    for seed in (3, 8, 15):
        scenario = scenario_of(seed)
        simulation = Simulation(scenario, check=True)
        while simulation.step():
            pass
        assert judged(simulation.result(), 1) is None
        file = tmp_path / f"{seed}.toml"
        file.write_text(written(scenario.tables))
        out = tmp_path / f"{seed}.json"
        done = weft("sim", str(file), "--check", "--seed", str(seed), "--json", str(out))
        assert done.returncode == 0, done.stderr
        assert json.loads(out.read_text())["fingerprint"] == simulation.result().fingerprint


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "1", "--seeds", "1-2"], "cannot be used together"),
        (["--seeds", "5-1"], "smaller seed first"),
        (["--minutes", "0"], "--minutes"),
        (["--json", "/no/such/folder/a.json"], "there is no folder"),
    ],
)
def test_cli__wrong_usage_is_one_line(arguments: list[str], said: str) -> None:
    done = weft("swarm", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_cli__minutes_end_it(tmp_path: Path) -> None:
    done = swarm(tmp_path, "--seeds", "1-9000", "-j", "2", "--minutes", "0.05")
    assert 0 < done.looked < 9_000


@pytest.mark.parametrize("after_s", [0.1, 0.3, 4])
def test_cli__ctrl_c_says_what_was_done(after_s: float, tmp_path: Path) -> None:
    """Ctrl-C ends the command; an import that it interrupts in a worker is not a finding."""
    out = tmp_path / "a.json"
    command = [sys.executable, "-m", "tests.swarm.door", "swarm", "--seeds", "1-9999"]
    running = subprocess.Popen(
        [*command, "--json", str(out), "--out", str(tmp_path / "found")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for_a_worker(running.pid)
        time.sleep(after_s)  # some moments of its work; it must end in the same way at any
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
    assert running.returncode == 130, said
    assert said.count("\n") == 1
    assert "interrupted" in said
    told = json.loads(out.read_text())
    assert told["partial"]
    assert [found for found in told["findings"] if found["kind"] == "crash"] == []


def runs(pid: int) -> bool:
    """Whether the process runs; False for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    "arguments",
    [
        ("swarm", "--seeds", "1-9999", "-j", "2"),
        (
            *("sim", "permutation_1024", "--set", "workload.size_bytes=1 GB", "--limit", "1 s"),
            *("--seeds", "1-4", "-j", "2"),
        ),
    ],
)
def test_cli__workers_end_with_their_parent(arguments: tuple[str, ...], tmp_path: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.swarm.door", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        workers = wait_for_a_worker(running.pid)
        time.sleep(2)  # so that they compute, mostly; they end in the same way before that
    finally:
        running.kill()
        running.wait()
    until(lambda: not any(map(runs, workers)), f"some of {workers} still run")
