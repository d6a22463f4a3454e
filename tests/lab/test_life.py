"""Tests building and removing labs, and the errors of `weft lab`."""

import ctypes
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.support import ROOT, left_behind, line, reason_to_skip, unique, weft
from tests.waiting import PATIENCE_S
from transport.cli import invoke
from transport.lab import Lab, LabError, LabModelError, namespace, state

pytestmark = pytest.mark.namespaces

# Builds a lab, and waits for a signal when it has made ten of its namespaces.
BUILD = """
import signal, sys
from transport.lab import Lab, LabModel, namespace
make, made = namespace.make, []
def make_and_wait(name):
    make(name)
    made.append(name)
    if len(made) == 10:
        print("half built", flush=True)
        signal.pause()
namespace.make = make_and_wait
Lab(LabModel(hosts=20, spines=8), name=sys.argv[1]).up()
"""
PR_CAPBSET_DROP = 24


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)


@pytest.fixture
def name() -> Iterator[str]:
    """A name for a lab; a lab of this name is removed after the test in any case."""
    one = unique("life")
    yield one
    if one in state.names():
        Lab(state.load(one).model, name=one).down()
    assert left_behind(one) == []


def building(name: str) -> "subprocess.Popen[bytes]":
    """Starts a process that has built half of a lab."""
    child = subprocess.Popen(
        [sys.executable, "-c", BUILD, name],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"half built\n"
    child.stdout.close()
    return child


def test_life__up_exec_status_down(name: str, tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('spines = 2\n[uplinks]\nrate = "80 Mb/s"\n')
    up = weft("lab", "up", str(file), "--name", name)
    assert (up.returncode, up.stderr) == (0, "")
    assert up.stdout.startswith(f"{name}: 2 hosts, 2 paths of 80 Mb/s: host0 10.0.0.2")
    again = weft("lab", "up", "--name", name)
    assert again.returncode == 2
    assert f"a lab named {name} exists: weft lab down --name {name}" in again.stderr

    script = "import socket, sys; print([i[1] for i in socket.if_nameindex()]); sys.exit(7)"
    done = weft("lab", "exec", "--name", name, "host1", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout) == (7, "['lo', 'eth0']\n")
    missing = weft("lab", "exec", "--name", name, "host1", "--", "no-such-command")
    assert (missing.returncode, missing.stdout) == (127, "")
    nobody = weft("lab", "exec", "--name", name, "hots1", "--", "true")
    assert (nobody.returncode, nobody.stdout) == (2, "")
    assert "did you mean host1?" in nobody.stderr

    change = weft("lab", "set", "--name", name, "leaf0-spine1", "loss=0.25", "--degrade", "25%")
    assert (change.returncode, change.stderr) == (0, "")
    assert weft("lab", "cut", "--name", name, "leaf0-spine0").returncode == 0
    report = weft("lab", "status", "--name", name, "--json", "-")
    (lab,) = json.loads(report.stdout)
    assert lab["links"]["leaf0-spine1"]["rate_bytes_per_s"] == 2_500_000
    assert lab["links"]["leaf0-spine1"]["loss"] == 0.25
    assert lab["links"]["leaf0-spine0"]["cut"] == "silent"
    assert set(lab["links"]["leaf0-spine0"]["directions"]) == {"leaf0>spine0", "spine0>leaf0"}
    assert lab["nodes"]["host1"]["namespace"] == f"weft-{name}-host1"
    table = weft("lab", "status", "--name", name).stdout
    assert "cut" in table
    assert "loss 0.25" in table
    assert weft("lab", "heal", "--name", name, "leaf0-spine0").returncode == 0

    down = weft("lab", "down", "--name", name)
    assert (down.returncode, down.stdout) == (0, f"{name}: down\n")
    assert left_behind(name) == []
    gone = weft("lab", "down", "--name", name)
    assert gone.returncode == 2
    assert f"there is no lab named {name}" in gone.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("set", "leaf0-spine0"), "nothing to change"),
        (("set", "leaf0-spine0", "loss"), "expected key=value"),
        (("set", "leaf0-spine0", "los=1"), "did you mean loss?"),
        (("set", "leaf0-spine0", "loss=x"), "loss = 'x': expected a number from 0 to 1"),
        (("set", "leaf0-spine0", "--degrade", "much"), "expected a share such as 25%"),
        (("set", "leaf0-spine9", "loss=1"), "did you mean leaf0-spine0?"),
        (("set", "leaf0-spine0", "mtu_bytes=1500"), "mtu_bytes cannot change"),
        (("heal", "leaf0-spine0"), "leaf0-spine0 is not cut"),
        (("exec", "host0", "--"), "give a command after --"),
        (("down", "--all"), "--all and --name cannot be used together"),
    ],
)
def test_life__wrong_usage(
    shared: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], line: str
) -> None:
    status = invoke(["lab", words[0], "--name", shared, *words[1:]])
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert line in said.err
    assert said.err.count("\n") == 1


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    with Lab(line(), name=unique("usage")) as lab:
        yield lab.name


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_life__ended_while_building(name: str, number: signal.Signals) -> None:
    child = building(name)
    child.send_signal(number)
    child.wait(timeout=PATIENCE_S)
    if number == signal.SIGINT:
        assert left_behind(name) == []
        return
    assert left_behind(name) != []
    half = weft("lab", "status", "--name", name)
    assert "half built" in half.stdout
    with pytest.raises(LabError, match="half built"):
        Lab.attach(name)
    assert weft("lab", "down", "--name", name).returncode == 0
    assert left_behind(name) == []


def test_life__a_failure_while_building_leaves_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("cannot set the address")

    monkeypatch.setattr("transport.lab.kernel.load_classifier", fail)
    monkeypatch.setattr("transport.lab.features.require_kernel", lambda _: None)
    with pytest.raises(LabError, match=f"the lab {name} cannot be built: cannot set the address"):
        Lab(line(), name=name).up()
    assert left_behind(name) == []


def test_life__a_foreign_namespace_is_left_alone(name: str) -> None:
    foreign = f"weft-{name}-host1"
    namespace.make(foreign)
    try:
        with pytest.raises(LabError, match=f"{foreign} exists and belongs to no lab"):
            Lab(line(), name=name).up()
        assert left_behind(name) == [foreign]
    finally:
        namespace.remove(foreign)


def test_life__a_lab_that_lost_a_namespace_can_be_removed(name: str) -> None:
    lab = Lab(line(), name=name)
    lab.up()
    namespace.remove(f"weft-{name}-spine0")
    for wrong in (lab.counters, lambda: lab.cut("leaf0-spine0", down=True)):
        with pytest.raises(LabError, match=f"weft-{name}-spine0 is gone: weft lab down"):
            wrong()
    lab.down()
    assert left_behind(name) == []


def test_life__down_ends_what_runs_in_it(name: str) -> None:
    lab = Lab(line(), name=name)
    lab.up()
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    child = lab.popen(
        "host0", [sys.executable, "-c", stubborn + "time.sleep(60)"], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    child.stdout.close()
    assert lab.down() == 1
    assert child.returncode == -signal.SIGKILL


def test_life__run_and_errors_of_the_python_door(name: str) -> None:
    with Lab(line(), name=name) as lab:
        script = "import socket; print(socket.socket().getsockname())"
        assert lab.run("host0", [sys.executable, "-c", script], capture_output=True).returncode == 0
        for wrong in (
            lambda: lab.cut("leaf0-spine7"),
            lambda: lab.set("leaf0-spine0", speed=3),
            lambda: lab.address("leaf0"),
            lambda: lab.enter("host9"),
        ):
            with pytest.raises(LabModelError):
                wrong()
    assert left_behind(name) == []


def without_capabilities() -> Callable[[], None]:
    """A preexec_fn that makes a process drop all capabilities, even if it runs as root."""
    prctl = ctypes.CDLL(None).prctl

    def drop() -> None:
        for number in range(41):
            prctl(PR_CAPBSET_DROP, number, 0, 0, 0)

    return drop


@pytest.mark.parametrize("words", [("up",), ("down", "--name", "x"), ("exec", "host0", "true")])
def test_life__without_the_rights(name: str, words: tuple[str, ...]) -> None:
    with Lab(line(), name=name):
        more = () if "--name" in words else ("--name", name)
        done = weft("lab", words[0], *more, *words[1:], preexec_fn=without_capabilities())
    assert done.returncode == 1
    assert done.stderr == (
        "weft: weft lab needs CAP_NET_ADMIN and CAP_SYS_ADMIN, which this process lacks: "
        "run it as root (sudo)\n"
    )


def test_life__delay_without_netem_is_said(name: str, tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text("[uplinks]\ndelay_ns = 1_000_000\n")
    done = weft("lab", "up", str(file), "--name", name)
    if done.returncode == 0:
        pytest.skip("this kernel has netem")
    assert done.returncode == 1
    assert "this kernel lacks netem, for delay_ns of leaf0-spine0" in done.stderr
    assert "CONFIG_NET_SCH_NETEM" in done.stderr
    assert left_behind(name) == []
