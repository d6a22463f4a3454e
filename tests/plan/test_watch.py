"""Tests that shares move off paths that die, slow or lose much, and back; also after a real cut."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.environment import clean_environment
from tests.lab.support import ROOT, reason_to_skip, unique, weft
from tests.live.support import page, peer
from tests.plan.support import clos
from tests.waiting import PATIENCE_S, until
from transport.cli.plan_watch import Lasting
from transport.lab import Lab, LabModel
from transport.plan import planfile, watch
from transport.plan.assign import assign
from transport.plan.shares import LEAST, Change, Judge, Seen
from transport.plan.watch import Moved
from transport.telemetry import PagesRead


class Paths:
    """Counters of four paths that carry 100 segments each in a step."""

    def __init__(self) -> None:
        self.sent, self.lost = [0] * 4, [0] * 4
        self.rtt_ns, self.usable = [1_000_000] * 4, [True] * 4

    def step(self, **lost: int) -> Seen:
        self.sent = [one + 100 for one in self.sent]
        for name, count in lost.items():
            self.lost[int(name[1:])] += count
        return Seen(list(self.sent), list(self.lost), list(self.rtt_ns), list(self.usable))


def shares(judge: Judge) -> list[float]:
    weights = judge.weights
    return [round(float(one), 3) for one in weights / weights.sum()]


def test_judge__a_dead_path_carries_nothing_until_it_is_usable_again() -> None:
    judge, paths = Judge([1.0] * 4), Paths()
    assert judge.step(paths.step()) == []
    paths.usable[2] = False
    (change,) = judge.step(paths.step())
    assert (change.path, change.state, change.was, change.share) == (2, "dead", "well", 0.0)
    assert shares(judge) == [0.333, 0.333, 0.0, 0.333]
    paths.usable[2] = True
    (change,) = judge.step(paths.step())
    assert (change.state, change.was) == ("well", "dead")
    assert shares(judge) == [0.323, 0.323, 0.03, 0.323]
    for _ in range(10):
        assert judge.step(paths.step()) == []
    assert shares(judge) == [0.25] * 4


@pytest.mark.parametrize("trouble", ["slow", "lossy"])
def test_judge__a_sick_path_loses_half_its_share_a_step_but_stays_measured(trouble: str) -> None:
    judge, paths = Judge([1.0] * 4), Paths()
    judge.step(paths.step())
    paths.rtt_ns[0] = 9_000_000 if trouble == "slow" else paths.rtt_ns[0]
    for count in range(8):
        changes = judge.step(paths.step(**({"p0": 30} if trouble == "lossy" else {})))
        assert [one.state for one in changes] == ([trouble] if count == 0 else [])
    assert judge.weights.tolist() == [LEAST, 1.0, 1.0, 1.0]


def test_judge__equal_trouble_on_all_paths_moves_nothing() -> None:
    judge, paths = Judge([0.25] * 4), Paths()
    judge.step(paths.step())
    paths.rtt_ns = [50_000_000] * 4
    assert judge.step(paths.step(p0=20, p1=20, p2=20, p3=20)) == []
    paths.usable = [False] * 4
    judge.step(paths.step())
    assert judge.weights.tolist() == [1.0] * 4


def test_weights__survive_a_file_and_wrong_ones_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    weights = {"0-7-12-9-0": {"10.1.0.2": {"0": [1.0, 0.5]}}}
    watch.write(weights, file)
    assert watch.read(file) == weights
    for text, said in (
        ("", "is no file of weights"),
        ('{"weft_weights":9}', "is version 9 of weights; this weft reads 2"),
        ('{"weft_weights":2,"pages":{"1":{"a":{"0":[2.0]}}}}', "is no file of weights"),
        ('{"weft_weights":2,"pages":{"1":{"a":{"x":[1.0]}}}}', "is no file of weights"),
    ):
        file.write_text(text)
        with pytest.raises(watch.WeightsError, match=said):
            watch.read(file)


def test_cli__probing_a_name_twice_is_one_line() -> None:
    run = weft("plan", "probe", "--from", "a=127.0.0.1", "a=127.0.0.2")
    assert run.returncode == 2
    assert "the name a is given to several addresses" in run.stderr


@pytest.mark.parametrize("known", [True, False])
def test_cli__a_plan_of_other_hosts_is_one_line(tmp_path: Path, known: bool) -> None:
    addresses = {"host0": "198.51.100.7", "host1": "198.51.100.8"} if known else {}
    routes = replace(clos(2, 1, 2, 8), addresses=addresses)
    pairs = assign(routes, {("host0", "host1"): 1_000}, paths=2).pairs
    planfile.write(planfile.Plan("x", {"job": pairs}), tmp_path / "plan.json")
    run = weft("plan", "watch", "--plan", str(tmp_path / "plan.json"), "--seconds", "1")
    assert run.returncode == 1
    assert "has no pair that sends from an address of this host" in run.stderr
    assert run.stderr.count("\n") == 1


JOB = """
import sys, threading, time
from transport import ControlLoop, Endpoint
from transport.plan.follow import Follower
name, far, weights = sys.argv[1:]
with Endpoint(path_policy="weighted") as endpoint:
    if name == "server":
        with endpoint.listen(port=7000, open=True) as listener:
            print("ready", flush=True)
            with listener.accept(timeout_s=240) as connection:
                while connection.recv(1 << 20):
                    pass
    else:
        follower = Follower(weights, on_error=print) if weights != "-" else lambda _: None
        seen = set()
        with endpoint.connect(far, 7000, timeout_s=240) as connection:
            with ControlLoop(endpoint, follower, pace_s=0.05):
                print("ready", flush=True)
                stop = threading.Event()
                threading.Thread(target=lambda: (sys.stdin.readline(), stop.set())).start()
                while not stop.is_set():
                    connection.send(bytes(1 << 18), timeout_s=240)
                    seen.add(tuple(connection.policies["path"].params["weight"][:8]))
                    time.sleep(0.001)  # weights change every 50 ms: no need to send faster
                connection.send(b"", timeout_s=240)
                print(len(seen), flush=True)
"""


@pytest.mark.namespaces
@pytest.mark.parametrize("by", ["a control loop", "WEFT_WEIGHTS"])
def test_watch__shares_leave_a_cut_link_and_come_back(tmp_path: Path, by: str) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    with Lab(LabModel(), name=unique("watch")) as lab:
        for words in (
            ("probe", "--lab", lab.name, "--samples", "1", "-o", "r.json"),
            ("assign", "r.json", "--ring", "all", "--plan", "plan.json"),
        ):
            run = subprocess.run(
                command("plan", *words),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                check=False,
            )
            assert run.returncode == 0, run.stderr
        watch_a_cut(lab, tmp_path, by == "WEFT_WEIGHTS")


def command(*words: str) -> list[str]:
    script = "import sys; from transport.cli import main; sys.argv[0] = 'weft'; main()"
    return [sys.executable, "-c", script, *words]


def watch_a_cut(lab: Lab, folder: Path, by_itself: bool) -> None:
    """by_itself: the job follows the weights without a control loop."""
    clean = clean_environment()
    clean |= {"WEFT_INTERFACES": "eth0", "WEFT_ENGINES": "1", "WEFT_PATHS": "8"}
    clean |= {"WEFT_PLAN": str(folder / "plan.json"), "WEFT_PORT_BASE": "20000"}
    clean |= {"PYTHONPATH": str(ROOT), "WEFT_TELEMETRY": str(folder)}
    weights = folder / "weights.json"
    if by_itself:
        clean["WEFT_WEIGHTS"] = str(weights)
    started = []

    def start(host: str, words: list[str]) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        made = lab.popen(host, words, stdin=pipe, stdout=pipe, text=True, cwd=folder, env=clean)
        started.append(made)
        assert made.stdout is not None
        assert made.stdout.readline()
        return made

    def row() -> list[float]:
        found = watch.read(weights) if weights.exists() else {}
        (page,) = [one for one in found if one.split("-")[2] == str(client.pid)] or [""]
        return found.get(page, {}).get(lab.address("host1"), {}).get("0", [])

    try:
        start("host1", [sys.executable, "-c", JOB, "server", "-", "-"])
        far, loop = lab.address("host1"), "-" if by_itself else str(weights)
        client = start("host0", [sys.executable, "-c", JOB, "client", far, loop])
        watcher = start("host0", command("plan", "watch", "--telemetry", str(folder)))
        until(lambda: row() == [1.0] * 8)
        plan = planfile.read(folder / "plan.json").jobs["job"]
        links = next(pair.links for pair in plan if pair.source == "host0")
        cut = [path for path, crossed in enumerate(links) if "leaf0>spine1" in crossed]
        lab.cut("leaf0-spine1")
        until(lambda: [path for path, one in enumerate(row()) if one == 0.0] == cut)
        lab.heal("leaf0-spine1")
        until(lambda: min(row()) == 1.0)
        output, _ = client.communicate("\n", timeout=PATIENCE_S)
        assert client.returncode == 0
        assert int(output) >= 2
        watcher.send_signal(signal.SIGINT)
        said, _ = watcher.communicate(timeout=PATIENCE_S)
        assert watcher.returncode == 0
        assert "over leaf0>spine1 spine1>leaf1 is dead (was well): now carries 0 %" in said
        assert said.endswith("ended; the weights stay as they are\n")
    finally:
        for one in started:
            one.kill()
            one.communicate(timeout=PATIENCE_S)


def test_watch__containers_and_endpoints_of_one_process_have_weights_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four pages with the same pid, row and generation; the second one's first path is dead."""
    names = ("0-1-4711-5-0", "0-1-4711-5-1", "0-2-4711-5-0", "7-2-4711-5-0")

    def read_pages(_: Path | None) -> PagesRead:
        made = []
        for name in names:
            one = peer(address="10.0.0.2")
            if name == names[1]:
                first = replace(one.paths[0], counters={"usable": 0})
                one = replace(one, paths=(first, *one.paths[1:]))
            file = Path(f"/pages/weft-{name}.page")
            made.append(page(peers=(one,), path=file, process_state="unknown"))
        return PagesRead(tuple(made), ("ignored /pages/x: it belongs to uid 9",), 1)

    monkeypatch.setattr(watch, "read_pages", read_pages)
    pair = SimpleNamespace(source_address="127.0.0.1", target_address="10.0.0.2", links=())
    judge = watch.Watch(cast(planfile.Plan, SimpleNamespace(jobs={"job": [pair]})))
    moved = judge.step()
    assert [(one.page, one.change.path, one.change.state) for one in moved] == [
        (names[1], 0, "dead")
    ]
    well, sick = {"10.0.0.2": {"0": [1.0, 1.0]}}, {"10.0.0.2": {"0": [0.0, 1.0]}}
    assert judge.weights() == dict.fromkeys(names, well) | {names[1]: sick}
    assert judge.processes == 3
    assert judge.ignored == "ignored /pages/x: it belongs to uid 9"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
def test_weights__of_another_user_are_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "weights.json"
    watch.write({"0-7-12-9-0": {"10.1.0.2": {"0": [1.0, 0.5]}}}, file)
    os.chown(file, 65_534, -1)
    with pytest.raises(watch.WeightsError, match="belongs to uid 65534"):
        watch.read(file)
    file.chmod(0o666)
    os.chown(file, 0, -1)
    with pytest.raises(watch.WeightsError, match="has mode 0666"):
        watch.read(file)


def test_watch__tells_what_lasts() -> None:
    """A path that is lossy for moments gets no lines; its death and its return get one at once."""
    lasting = Lasting()

    def told(at_s: float, state: str = "", was: str = "") -> list[tuple[str, str]]:
        moves = (
            [Moved("0-1-7-3-0", 7, "10.0.0.2", 0, Change(3, state, was, 0.1), ())] if state else []
        )
        return [(one.change.was, one.change.state) for one in lasting.of(moves, at_s)]

    assert told(0.0, "lossy", "well") == told(0.4, "well", "lossy") == told(2.0) == []
    assert told(3.0, "lossy", "well") == told(3.9) == []
    assert told(4.0) == [("well", "lossy")]
    assert told(5.0, "slow", "lossy") == told(5.5, "lossy", "slow") == told(9.0) == []
    assert told(9.1, "dead", "lossy") == [("lossy", "dead")]
    assert told(9.2, "well", "dead") == [("dead", "well")]
