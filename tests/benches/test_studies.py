"""Runs every study with tiny settings; checks rows, columns, contents and exit status."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from bench import connections, peers, ring
from bench.__main__ import bench
from bench.lib import study, traffic
from bench.lib.collective import Buffers, Rank
from bench.lib.options import CHECKED
from bench.lib.record import seal_state
from tests.benches.support import children
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]


def call(*words: str) -> Result:
    return CliRunner().invoke(bench, list(words))


def tiny(name: str, *words: str) -> dict[str, Any]:
    done = call(name, "--tiny", *words, "--json", "-")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["bench"] == name
    assert seal_state(found) == "whole"
    assert found["environment"]["date"].endswith("Z")
    for row in found["rows"]:
        assert row["wrong"] == 0
        assert {"cpu_share", "note", "worst", "spread", *found["keys"]} <= set(row)
    return found


def of(found: dict[str, Any]) -> list[str]:
    return [row["contender"] for row in found["rows"]]


def test_bidirectional__one_flow_then_two() -> None:
    found = tiny("bidirectional")
    assert of(found) == ["weft", "weft", "tcp-cubic", "tcp-cubic"]
    assert [row["direction"] for row in found["rows"]] == ["one way", "both ways"] * 2
    for row in found["rows"]:
        assert len(row["flow_rates_bytes_per_s"]) == (2 if row["direction"] == "both ways" else 1)
        assert row["checked_messages"] > 0


def test_incast__the_victim_is_counted_apart() -> None:
    found = tiny("incast", "--victim")
    assert of(found) == ["weft", "tcp-cubic"]
    for row in found["rows"]:
        *incast, victim = row["flow_rates_bytes_per_s"]
        assert row["senders"] == len(incast) == 2
        assert row["rate_bytes_per_s"] == pytest.approx(sum(incast))
        assert row["victim_rate_bytes_per_s"] == victim
        assert row["slowest_bytes_per_s"] == min(incast)


def test_outcast__a_flow_a_receiver() -> None:
    (row,) = tiny("outcast", "--only", "weft")["rows"]
    assert row["receivers"] == len(row["flow_rates_bytes_per_s"]) == 2


def test_permutation__nobody_sends_to_itself() -> None:
    found = tiny("permutation", "--only", "weft", "--seed", "3")
    targets = found["settings"]["targets"]
    assert sorted(targets) == [0, 1, 2]
    assert all(target != one for one, target in enumerate(targets))


def test_fairness__all_mixtures() -> None:
    found = tiny("fairness", "--only", "2 weft", "--only", "1 weft + 1 tcp-cubic")
    assert of(found) == ["2 weft", "1 weft + 1 tcp-cubic"]
    assert all(row["jain"] >= 0 and row["weft_share"] >= 0 for row in found["rows"])


def test_cpu__both_sides_are_counted() -> None:
    for row in tiny("cpu", "-D", "0.5")["rows"]:
        if row["iterations"]:
            sides = row["sender_cpu_s_per_gbyte"] + row["receiver_cpu_s_per_gbyte"]
            assert row["cpu_s_per_gbyte"] == pytest.approx(sides)


@pytest.mark.parametrize("name", ["ring", "all_to_all"])
def test_collectives__every_size_as_nccl_tests_count(name: str) -> None:
    found = tiny(name)
    assert of(found) == ["weft"] * 3 + ["tcp-cubic"] * 3
    for row in found["rows"]:
        factor = 4 / 3 if name == "ring" else 2 / 3
        algbw = row["size_bytes"] / row["time_ns"] * 1e9
        assert row["algbw_bytes_per_s"] == pytest.approx(algbw)
        assert row["busbw_bytes_per_s"] == pytest.approx(algbw * factor)
        assert row["iterations"] == 3


@pytest.mark.parametrize(
    ("row", "marked"),
    [
        ({"counted_messages": study.FEW - 1}, True),
        ({"counted_messages": study.FEW}, False),
        ({"iterations": 20}, False),  # collectives are never marked: users choose their iterations
    ],
)
def test_study__too_few_messages_are_marked(row: dict[str, Any], marked: bool) -> None:
    shape = study.Study("x", ("contender",), {"rate_bytes_per_s": "higher"}, ())
    rows = [{"contender": "weft", "round": 0, "rate_bytes_per_s": 1.0, "wrong": 0, **row}]
    (found,) = study._found(shape, rows, [], {})["rows"]
    assert ("few messages" in found["note"]) == marked


@pytest.mark.parametrize(("share", "marked"), [(study.CPU_BOUND_SHARE, False), (1.0, True)])
def test_study__rows_that_are_cpu_bound_are_marked(share: float, marked: bool) -> None:
    shape = study.Study("x", ("contender",), {"rate_bytes_per_s": "higher"}, ())
    row = {"contender": "weft", "round": 0, "rate_bytes_per_s": 1.0, "wrong": 0, "cpu_share": share}
    (found,) = study._found(shape, [row], [], {})["rows"]
    assert ("cpu-bound" in found["note"]) == marked


def test_connections__memory_time_and_speed() -> None:
    found = tiny("connections")
    assert [row["connections"] for row in found["rows"]] == [1, 4, 16, 32] * 2
    assert all(row["open_ns"] > 0 and row["last_bytes_per_s"] >= 0 for row in found["rows"])
    alone, *more = [row for row in found["rows"] if row["contender"] == "weft"]
    assert alone["open_first_ns"] == alone["open_last_ns"]
    assert all(row["open_first_ns"] > 0 and row["open_last_ns"] > 0 for row in more)


def test_connections__first_and_last_take_turns() -> None:
    def order(number: int) -> list[tuple[int, Any]]:
        return list(connections.turns([str(index) for index in range(number)]))  # type: ignore[misc]

    assert order(1) == [(0, "0"), (1, "0")]
    assert order(5) == [(0, "0"), (1, "3"), (1, "4"), (0, "1")]
    many = order(4_096)
    assert sorted(int(name) for last, name in many if not last) == list(range(32))
    assert sorted(int(name) for last, name in many if last) == list(range(4_064, 4_096))


def test_beside__missing_peers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    done = call("beside", "--tiny", "--only", "weft", "--only", "iperf3", "--only", "ucx_perftest")
    assert done.exit_code == 0, done.output
    assert "missing: iperf3: no iperf3 here: apt-get install iperf3" in done.stdout
    assert "apt-get install ucx-utils" in done.stdout
    assert "bench nccl" in done.stdout
    done = call("beside", "--tiny", "--only", "iperf3")
    assert done.exit_code == 2
    assert "nothing to run" in done.output


def test_beside__iperf3_runs() -> None:
    if peers.missing("iperf3"):
        pytest.skip("needs iperf3: apt-get install iperf3")
    done = call("beside", "--tiny", "--only", "iperf3", "--json", "-")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert row["rate_bytes_per_s"] >= 0
    assert row["size_bytes"] == 65_536
    assert json.loads(done.stdout)["peers"]["iperf3"][0].isdigit()


def test_study__writes_every_kind_of_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    kinds = ("json", "csv", "plot", "html")
    files = {kind: tmp_path / f"r.{kind}" for kind in kinds} | {"plot": tmp_path / "r.svg"}
    words = [word for kind in kinds for word in (f"--{kind}", str(files[kind]))]
    done = call("cpu", "--tiny", "--only", "tcp-cubic", "--units", "Gb/s", *words)
    assert done.exit_code == 0, done.output
    heads = done.stdout.splitlines()[0]
    assert "BW average[Gb/s]" in heads
    assert all(title in heads for key, title in CHECKED if key in ("worst", "spread", "wrong"))
    found = json.loads(files["json"].read_text())
    (line,) = csv.DictReader(files["csv"].read_text().splitlines())
    assert float(line["rate_bytes_per_s"]) == found["rows"][0]["rate_bytes_per_s"]
    assert "<svg" in files["plot"].read_text()
    page = files["html"].read_text()
    assert found["sha256"] in page
    assert "<svg" in page
    assert os.uname().release not in page + files["json"].read_text()


def test_study__wrong_usage_is_one_line(tmp_path: Path) -> None:
    for words, said in (
        (("incast", "--only", "nosuch"), "no contender 'nosuch'"),
        (("incast", "-s", "12Q"), "is not a size"),
        (("ring", "-b", "1M", "-e", "4K"), "is less than"),
        (("cpu", "-D", "nan"), "not in the range"),
        (("cpu", "--html", str(tmp_path / "no" / "r.html")), "there is no folder"),
        (("permutation", "-N", "1"), "not in the range"),
    ):
        done = call(*words)
        assert done.exit_code == 2, done.output
        assert said in done.output


def test_study__wrong_contents_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(*_: object) -> dict[str, Any]:
        keys = ("cpu_share", "sender_cpu_s_per_gbyte", "receiver_cpu_s_per_gbyte")
        return {"size_bytes": 1, "rate_bytes_per_s": 1.0, "wrong": 2, **dict.fromkeys(keys, 0.6)}

    monkeypatch.setattr(traffic, "run", corrupt)
    done = call("cpu", "--tiny", "--only", "weft")
    assert done.exit_code == 1
    assert "contents were wrong" in done.output
    assert "cpu-bound" in done.output


def test_study__a_failed_run_does_not_lose_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = traffic.run

    def run(flows: Any, *rest: Any) -> dict[str, Any]:
        if flows[0].kind == "weft":
            raise click.ClickException("process n0: it broke")
        return genuine(flows, *rest)

    monkeypatch.setattr(traffic, "run", run)
    done = call("cpu", "--tiny", "--json", "-")
    assert done.exit_code == 1
    assert "weft: process n0: it broke" in done.stderr
    found = json.loads(done.stdout)
    assert of(found) == ["tcp-cubic"]
    assert [one["contender"] for one in found["failed"]] == ["weft"]


def test_traffic__a_wrong_byte_is_seen() -> None:
    content = traffic.content(1, 64)
    memory = np.tile(content, (4, 1))
    for index in range(2, 6):
        traffic.stamp(memory[index % 4], index)
    assert not traffic.wrong(memory[1], 5, content)
    assert traffic.wrong(memory[1], 9, content)
    assert traffic.wholly_wrong(memory, 6, content) == 0
    memory[2, 30] ^= 1
    assert traffic.wholly_wrong(memory, 6, content) == 1
    short = traffic.content(1, 8)
    assert not traffic.wrong(short, 0, short)
    assert traffic.wrong(short[::-1], 0, short)


def test_traffic__jain() -> None:
    assert traffic.jain([5.0, 5.0, 5.0]) == pytest.approx(1)
    assert traffic.jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert traffic.jain([0.0, 0.0]) == 0


def test_ring__a_wrong_sum_is_seen() -> None:
    buffers: Buffers = ring.OPERATION.prepare(0, 1, 4_096)
    ring.step(Rank(0, 1, {}, {}), buffers)
    assert ring.OPERATION.wrong(0, 1, buffers) == 0
    buffers.made[7] += 1
    assert ring.OPERATION.wrong(0, 1, buffers) == 1


def _alive(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_study__killed_it_leaves_no_process() -> None:
    words = ["cpu", "--only", "weft", "-D", "60", "--repeats", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, stdout=subprocess.DEVNULL
    ) as running:
        try:
            # Four processes: the fork server, its resource tracker, and both hosts.
            until(lambda: len(children(running.pid)) >= 4, "it starts no processes")
            started = children(running.pid)
        finally:
            running.kill()
    until(lambda: not _alive(started), lambda: f"{_alive(started)} still run")


def test_study__ctrl_c_leaves_a_partial_result_and_no_process(tmp_path: Path) -> None:
    out = tmp_path / "cut.json"
    words = ["cpu", "--only", "tcp-cubic", "--tiny", "--repeats", "1000", "--json", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "bench", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        try:
            until(lambda: len(children(running.pid)) >= 3, "it starts no processes")
            time.sleep(1.5)  # so that it has some rows, mostly; without a row it ends alike
            started = children(running.pid)
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
            said, errors = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
    assert running.returncode == 130, errors
    assert "interrupted" in said
    assert "Traceback" not in errors
    found = json.loads(out.read_text())
    assert found["partial"] is True
    assert seal_state(found) == "whole"
    assert len(found["rounds"]) < 1_000
    until(lambda: not _alive(started), lambda: f"{_alive(started)} still run")
