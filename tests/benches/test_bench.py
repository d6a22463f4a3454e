"""Runs every benchmark and example that needs no GPU, tiny, and checks status and output."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bench import nccl, strangers
from bench.__main__ import BENCHES
from bench.lib import callgrind, nccl_hosts
from bench.lib.common import document, rounds
from tests.environment import clean_environment
from tests.waiting import PATIENCE_S, until
from transport import Endpoint
from transport.examples import ring_of_hosts

TIMES = ("t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "99%[usec]")
ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = clean_environment()
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=clean | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def bench(*arguments: str) -> dict[str, Any]:
    done = run("bench", *arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # progress is shown on terminals only
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["bench"] == arguments[0]
    assert {"cpu", "cores", "commit", "knobs", "weft"} <= set(found["environment"])
    return found


def test_bench__estimate_published() -> None:
    (row,) = bench("estimate_published", "--only", "megatron-1.7b")["rows"]
    assert row["error"] == pytest.approx(row["estimated"] / 137 - 1)
    assert abs(row["error"]) < 0.1


def test_bench__estimate_held_out() -> None:
    found = bench("estimate_held_out", "--set", "fit", "--only", "megatron-1.7b")
    (row,) = found["rows"]
    assert row["error"] == pytest.approx(row["estimated_s"] / row["published_s"] - 1)
    assert [one["group"] for one in found["by_generation"]] == ["A100", "all"]
    refused = run("bench", "estimate_held_out", "--only", "no such run")
    assert (refused.returncode, "no run begins with" in refused.stderr) == (2, True)


def test_bench__estimate_simulated_steps() -> None:
    """Times are virtual, so they are the same on every machine."""
    found = bench("estimate_simulated_steps", "--gpus-max", "16", "--shape", "PP 8, TP 2")
    (row,) = found["rows"]
    assert (row["gpus"], row["hosts"], row["between_nodes"]) == (16, 8, ["pipeline"])
    assert row["difference"] == pytest.approx(0.0, abs=0.05)
    refused = run("bench", "estimate_simulated_steps", "--gpus-max", "16", "--shape", "PP 4, TP 8")
    assert refused.returncode == 2
    assert "needs more than 16 GPUs: raise --gpus-max" in refused.stderr


def test_bench__estimate_fit() -> None:
    pytest.importorskip("scipy")
    rows = bench("estimate_fit", "--only", "megatron-1.7b")["rows"]
    # Of one publisher there is no error of a publisher that was left out, and so no range.
    assert [row["parameter"] for row in rows] == ["products", "depth", "memory", "unfused"]
    refused = run("bench", "estimate_fit", "--only", "no such run")
    assert (refused.returncode, "begins with" in refused.stderr) == (2, True)


def test_bench__estimate_measured() -> None:
    pytest.importorskip("scipy")
    file = "bench/results/2026-11-26-nccl-times-lab-2xH100.json"
    every, large = bench("estimate_measured", "--fitted", file)["rows"]
    assert (every["rows"], large["rows"], every["in_sample"]) == (48, 16, True)
    assert every["median"] < 0.06


def test_bench__diagnose_live() -> None:
    pytest.importorskip("duckdb")
    found = bench("diagnose_live", "--ranks", "64", "--intervals", "2", "--steps", "2")
    agent, judge = found["rows"]
    assert agent["records"] > 1_000
    assert (judge["ranks"], judge["findings"]) == (64, 1)


@pytest.mark.long
def test_bench__cost() -> None:
    rows = {
        row["contender"]: row
        for row in bench("cost", "--repeats", "1", "--duration", "0.2")["rows"]
    }
    assert set(rows) == {"weft", "TCP", "UDP"}
    assert "weft-engine" in rows["weft"]["threads"]
    assert "weft-engine" not in rows["TCP"]["threads"]
    for row in rows.values():
        assert row["gbytes_per_s"] > 0
        assert row["cpu_ns_per_byte"] > 0
        assert row["half_us"] > 0
        assert row["rested_half_us"] > 0
        assert row["idle_cores"] >= 0  # of a TCP process: numpy's threads, if they run at all


@pytest.mark.long
def test_bench__strangers() -> None:
    found = bench("strangers", "--pairs", "1", "--seconds", "0.5", "--rate", "100")
    assert [row["contender"] for row in found["rows"]] == list(strangers.CONTENDERS)
    for row in found["rows"]:
        assert set(row) == set(strangers.COLUMNS)
        assert row["dials"] > 0


@pytest.mark.long
def test_bench__turnaround() -> None:
    pytest.importorskip("numba")
    found = bench("turnaround", "--repeats", "1")
    (row,) = found["rows"]
    assert row["corrupt_messages"] == 0
    assert row["messages"] > 0
    assert row["policy_lines"] <= 60
    assert found["policies_failed"] == 0
    assert row["total_s"] > 0
    assert isinstance(found["budget_met"], bool)


def test_bench__turnaround_fails_on_a_missed_budget_only_when_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench import turnaround

    row = dict.fromkeys(turnaround.COLUMNS, 0) | {"total_s": 6.0}
    monkeypatch.setattr(turnaround, "turn", lambda *_: row)
    for words, status in (([], 0), (["--strict"], 1)):
        done = CliRunner().invoke(turnaround.command, ["--repeats", "1", *words])
        assert done.exit_code == status, done.output
        assert "the budget of 5 s is MISSED" in done.output


def test_bench__fabric_beside_published_figures() -> None:
    found = bench("fabric", "--only", "128 hosts", "--seeds", "2")
    (row,) = found["rows"]
    assert (row["seeds"], row["unfinished"], row["peer"]) == (2, 0, 202.0)
    assert 170 < row["median"] <= row["worst"]
    assert len({run["fingerprint"] for run in found["runs"]}) == 2


def test_bench__fabric_by_size() -> None:
    found = bench("fabric", "--study", "sizes", "--largest", "128", "--repeats", "2")
    first, again = found["rows"]
    assert first["fingerprint"] == again["fingerprint"]
    assert first["finished"]
    assert first["packet_hops"] > first["data_packets"] >= 128 * 2_000_000 // 4_096


def test_bench__p2p() -> None:
    found = bench("p2p", "--pairs", "1", "--passes", "1", "--segment", "9000")
    assert [row["contender"] for row in found["rows"]] == ["TCP", "weft 9000"]
    both = bench("p2p", "--pairs", "1", "--passes", "1", "--segment", "9000", "--unchecked")
    assert [row["contender"] for row in both["rows"]][1:] == ["weft 9000", "weft 9000 unchecked"]
    assert ["payload check off" in row["summary"] for row in both["rows"][1:]] == [False, True]
    words = ("--pairs", "1", "--passes", "1", "--segment", "9000", "--read", "100")
    read = bench("p2p", *words)["rows"][2]
    assert (read["contender"], read["corrupt_messages"]) == ("weft 9000 read", 0)
    assert read["page_reads_per_s"] > 0
    for row in found["rows"]:
        assert row["gbytes_per_s"] > 0
        assert row["corrupt_messages"] == 0
    assert sum(found["rows"][1]["path_shares"]) == pytest.approx(1, abs=0.01)


def test_bench__latency() -> None:
    found = bench("latency", "--repeats", "1", "--iterations", "20")
    assert {row["size_bytes"] for row in found["rows"]} >= {8, 65_536}
    assert all(row["p50_us"] > 0 and row["p99.9_us"] > 0 for row in found["rows"])


def test_bench__latency_in_perftest_style() -> None:
    words = ("--repeats", "1", "--iterations", "5", "-s", "64", "-s", "1K", "--style", "perftest")
    done = run("bench", "latency", *words)
    assert done.returncode == 0, done.stderr
    heads, *lines, note = done.stdout.splitlines()
    assert note.startswith("local off: ")
    assert heads.split() == ["contender", "#bytes", "#iterations", *TIMES]
    assert [line.split()[:2] for line in lines] == [
        *(["TCP", "64"], ["weft", "64"], ["TCP", "1024"], ["weft", "1024"])
    ]


@pytest.mark.parametrize("name", ["p2p", "latency"])
def test_bench__interrupted_writes_what_there_is(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench import latency, p2p

    module = {"p2p": p2p, "latency": latency}[name]
    rest = iter([module.duel])

    def once(*given: Any, **more: Any) -> Any:
        for duel in rest:
            return duel(*given, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "duel", once)
    words = {"p2p": ["--passes", "1"], "latency": ["--iterations", "5", "-s", "8"]}[name]
    done = CliRunner().invoke(module.command, [*words, "--json", str(tmp_path / "cut.json")])
    assert done.exit_code == 130, done.output
    assert "interrupted" in done.output
    found = json.loads((tmp_path / "cut.json").read_text())
    assert found["partial"] is True
    assert {row["contender"] for row in found["rows"]} == {"TCP"}


def test_bench__core() -> None:
    found = bench("core", "--segments", "20000", "--repeats", "1")
    assert all(row["ns_per_segment"] > 0 for row in found["rows"])


@pytest.mark.parametrize("name", ["core", "verbs", "trace_events"])
def test_bench__says_how_to_build_its_loops(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CMAKE_BINARY_DIR", str(tmp_path))
    done = run("bench", name)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: {tmp_path}/_loops.")
    assert "run make bench-native" in done.stderr
    assert done.stderr.count("\n") == 1


def test_bench__verbs() -> None:
    found = bench("verbs", "--segments", "2000", "--repeats", "1", "--peers", "3", "--mode", "UD")
    assert "fake" in found["provider"]
    rows = [row for row in found["rows"] if row["what"] == "datapath"]
    assert {(row["burst"], row["payload"]) for row in rows} == {
        (burst, payload) for burst in (1, 4, 16) for payload in ("none", "copied")
    }
    assert all(row["ns_per_segment"] > 0 and row["fake_ns"] > 0 for row in rows)
    (setup,) = found["setup"]
    assert setup["reestablished"] == 3 * 256
    assert 0 < setup["bytes_per_path"] < 1_000


def test_verbs__callgrind_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(click.ClickException, match="apt-get install valgrind"):
        callgrind.count("", "f")


@pytest.mark.skipif(shutil.which("valgrind") is None, reason=callgrind.INSTALL)
def test_verbs__instructions_are_counted_and_repeat() -> None:
    run_ = "loops.bench_rdma('stub', 'UC', 'none', {}, 4096, 1, 1)"
    program = "from bench.lib import loops; " + "; ".join(run_.format(n) for n in (320, 640, 640))
    short, long, again = callgrind.count(program, "weft::bench::bench_rdma")
    assert 0 < short < long
    assert again == pytest.approx(long, rel=0.01)


def test_bench__unknown_name_is_wrong_usage() -> None:
    assert run("bench", "nosuch").returncode == 2
    assert all(name in run("bench", "--help").stdout for name in BENCHES)


def test_nccl__log_proves_the_network(tmp_path: Path) -> None:
    log = tmp_path / "nccl.1.log"
    log.write_text("Channel 00/0 : 0[0] -> 1[1] [send] via NET/weft/0\n")
    nccl.prove("weft", tmp_path)
    with pytest.raises(Exception, match="not NET/Socket"):
        nccl.prove("Socket 4x4", tmp_path)
    log.write_text("nothing")
    with pytest.raises(Exception, match="no network"):
        nccl.prove("weft", tmp_path)


def test_nccl__a_contender_that_fails_is_named_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(name: str, *_: object, ranks: int) -> list[dict[str, Any]]:
        assert ranks == 4
        if name == "Socket 4x4":
            raise click.ClickException(f"{name}: a rank failed")
        return [{"facts": {"nccl": "2"}, "found": [{"operation": "all_reduce", "algbw": 1.0}]}]

    monkeypatch.setattr(nccl, "run", run)
    found = nccl.Measured()
    known: dict[str, dict[str, str]] = {"weft": {}, "Socket 4x4": {}, "Socket": {}}
    nccl.measure(2, 4, 2, {"sizes": [8]}, known, nccl_hosts.Hosts(), found)
    assert [row["contender"] for row in found.rows] == ["weft", "Socket"] * 2
    assert {row["busbw"] for row in found.rows} == {1.5}
    assert [(one["contender"], one["round"]) for one in found.failed] == [
        ("Socket 4x4", 0),
        ("Socket 4x4", 1),
    ]


def test_nccl__ranks_share_gpus_each_as_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    monkeypatch.setattr(nccl, "prove", lambda *_: None)
    stub, task = "tests.benches.stub_rank", {"sizes": [8]}
    alone = nccl.run("weft", nccl.weft(), 2, task, module=stub)
    assert [(one["RANK"], one["BENCH_GPU"]) for one in alone] == [("0", "0"), ("1", "1")]
    assert all(one["WORLD_SIZE"] == "2" and "NCCL_HOSTID" not in one for one in alone)
    shared = nccl.run("weft", nccl.weft(), 2, task, module=stub, ranks=4)
    assert [one["BENCH_GPU"] for one in shared] == ["0", "1", "0", "1"]
    assert len({one["NCCL_HOSTID"] for one in shared}) == 4
    assert all(one["WORLD_SIZE"] == "4" and one["task"] == task for one in shared)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--gpus", "4", "--ranks", "2"), "lower --gpus or raise --ranks"),
        (("--ranks", "4", "--only", "SHM"), "SHM needs a GPU per rank"),
        (("--only", "nothing"), "choose from weft"),
        (("--gpus", "0"), "0 is not in the range"),
    ],
)
def test_nccl__wrong_options_say_what_to_do(words: tuple[str, ...], error: str) -> None:
    done = CliRunner().invoke(nccl.command, words)
    assert done.exit_code == 2
    assert error in done.output


def test_nccl__contenders_within_a_host_are_left_out_if_ranks_share_gpus() -> None:
    assert set(nccl.LOCAL) <= set(nccl.chosen((), False, None, False, False))
    assert not set(nccl.LOCAL) & set(nccl.chosen((), False, None, True, False))
    assert set(nccl.MEMORY) <= set(nccl.chosen((), False, None, True, False))
    assert not set(nccl.MEMORY) & set(nccl.chosen((), False, None, False, True))
    with pytest.raises(click.UsageError, match="weft ring needs ranks on one host"):
        nccl.chosen(("weft ring",), False, None, False, True)


def test_nccl__bytes_on_loopback_were_not_in_memory() -> None:
    rows = [{"size_bytes": 8 << 20, "calls": 10}, {"size_bytes": 64 << 20, "calls": 4}]
    assert nccl.not_in_memory(rows, 200 << 20) == ""  # what ranks exchange to find each other
    assert "went over loopback" in nccl.not_in_memory(rows, 300 << 20)


def test_nccl__a_host_without_gpus_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nccl, "find_spec", lambda _: None)
    with pytest.raises(click.ClickException, match="pip install torch"):
        nccl.check_host(2)
    monkeypatch.setattr(nccl, "find_spec", lambda _: object())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(click.ClickException, match="no GPU found"):
        nccl.check_host(2)
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho GPU 0: a card\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    nccl.check_host(1)
    with pytest.raises(click.ClickException, match="1 GPUs: lower --gpus"):
        nccl.check_host(2)


def test_nccl__tuned_is_weft_with_rules(tmp_path: Path) -> None:
    (name, variables), *others = nccl.tuned(tmp_path / "tune.txt").items()
    assert (name, others) == ("weft tuned", [])
    assert variables == nccl.weft() | {"WEFT_TUNE": str(tmp_path / "tune.txt")}


def test_nccl__medians_and_ratios() -> None:
    rows = [
        {"contender": name, "operation": "all_reduce", "size_bytes": 8, "time_us": 1.0}
        | {"algbw": value, "busbw": value, "wrong": 0}
        for name, values in (("weft", (1, 4, 9)), ("Socket", (2, 2, 2)), ("Socket 2x2", (8, 8, 8)))
        for value in values
    ]
    (ratio,) = nccl.ratios(nccl.medians(rows))
    assert (ratio["over_default"], ratio["over_best"], ratio["best"]) == (2, 0.5, "Socket 2x2")


def test_common__rounds_interleave() -> None:
    assert list(rounds(2, ("a", "b"))) == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]


def test_common__document_names_no_host() -> None:
    text = json.dumps(document("x", []))
    assert os.uname().release not in text


def test_examples__two_endpoints() -> None:
    done = run("examples.two_endpoints")
    assert (done.returncode, done.stderr) == (0, "")
    assert "hello" in done.stdout


def test_examples__kv_cache() -> None:
    done = run("examples.kv_cache", "--layers", "3", "--blocks", "9", "--moved", "5")
    assert done.returncode == 0, done.stderr
    assert "0 layers wrong" in done.stdout
    refused = run("examples.kv_cache", "--blocks", "2", "--moved", "3")
    assert refused.returncode == 2
    assert "must be from 1 to --blocks (2)" in refused.stderr


@pytest.mark.parametrize("module", ["examples.ring_all_reduce", "transport.examples.ring"])
def test_examples__ring_all_reduce(module: str) -> None:
    done = run(module, "--elements", "10001", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    assert "0 elements wrong" in done.stdout


def test_examples__ring_says_why_a_rank_failed() -> None:
    """Three processes of 32 paths do not fit into 40 ports, whoever else has some of these."""
    done = run("transport.examples.ring", "--elements", "100", WEFT_PORT_BASE="20000-20039")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("Error: rank "), done.stderr
    assert "give a larger range (WEFT_PORT_BASE)" in last


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_examples__ring_says_which_rank_was_killed(number: signal.Signals) -> None:
    words = [sys.executable, "-m", "transport.examples.ring", "--rounds", "1000000000"]
    ring = subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        children = Path(f"/proc/{ring.pid}/task/{ring.pid}/children")
        until(lambda: len(children.read_text().split()) == 4)  # Python's tracker, and three ranks
        os.kill(int(children.read_text().split()[-1]), number)
        _, errors = ring.communicate(timeout=PATIENCE_S)
    finally:
        ring.kill()
    assert ring.returncode == 1
    lines = [one for one in errors.splitlines() if not one.startswith("weft")]
    assert lines == [f"Error: rank 2 was killed by {number.name}"], errors


def test_examples__ring_ends_at_interrupts_of_all_its_processes() -> None:
    ring = subprocess.Popen(
        [sys.executable, "-m", "transport.examples.ring", "--rounds", "1000000000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        children = Path(f"/proc/{ring.pid}/task/{ring.pid}/children")
        until(lambda: len(children.read_text().split()) == 4)  # three ranks, and Python's tracker
        for _ in range(2):
            os.killpg(ring.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
        said, errors = ring.communicate(timeout=PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ring.pid, signal.SIGKILL)
    assert (ring.returncode, said, errors) == (130, "", "interrupted\n")


@pytest.mark.parametrize("last", ["", "-65535"])
def test_examples__ring_of_hosts_takes_the_first_control_port(last: str) -> None:
    """A ring of one host, which sends to itself."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ring = ("transport.examples.ring_of_hosts", "127.0.0.1", "--seconds", "0.3", "--open")
    done = run(*ring, WEFT_CONTROL_PORT=f"{port}{last}")
    said = f"listening on TCP port {port}, connecting to 127.0.0.1 port {port}\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert " MB/s to 127.0.0.1: udp, " in done.stdout


def test_examples__ring_of_hosts_names_its_option_if_the_port_is_taken() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        ring = ("transport.examples.ring_of_hosts", "127.0.0.1", "--open")
        done = run(*ring, WEFT_CONTROL_PORT=f"{port}-65535")
    assert done.returncode == 1
    assert f"port {port}: Address already in use: give another port with --port" in done.stderr
    assert "WEFT_CONTROL_PORT" not in done.stderr


def test_examples__ring_of_hosts_names_its_port_if_nothing_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ring_of_hosts, "START_S", 0.0)
    with socket.socket() as closed, Endpoint(interfaces="lo") as endpoint:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with pytest.raises(click.ClickException, match=rf"port {port}: .*--port.*CONTROL_PORT"):
            ring_of_hosts.connect(endpoint, "127.0.0.1", port)


def test_examples__ring_of_hosts_has_a_port_without_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WEFT_CONTROL_PORT", raising=False)
    assert ring_of_hosts.usual_port() == ring_of_hosts.PORT


def test_gpu__says_what_is_missing() -> None:
    if importlib.util.find_spec("cupy") is not None or Path("/dev/nvidiactl").exists():
        pytest.skip("CuPy or a GPU is here: tests/device runs this on a GPU")
    done = run("bench", "gpu")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: needs an NVIDIA GPU: ")
    done = run("examples.kv_cache", "--with", "cupy")
    assert (done.returncode, "--with cupy: No module named" in done.stderr) == (1, True)


def test_examples__first_run() -> None:
    done = run("examples.first_run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it works" in done.stdout


def test_nccl_hosts__on_loopback_nothing_is_entered_and_no_path_counted() -> None:
    with nccl_hosts.hosts(None, 2) as where:
        assert (where.address, where.interface) == ("127.0.0.1", "lo")
        assert where.enter(1) is None
        assert nccl_hosts.shares(where.carried(), where.carried()) == []


def test_nccl_hosts__shares_are_of_what_was_carried_in_between() -> None:
    before, after = {"spine0": 100, "spine1": 50}, {"spine0": 400, "spine1": 150}
    assert nccl_hosts.shares(before, after) == [0.75, 0.25]
    assert nccl_hosts.shares(after, after) == [0.0, 0.0]


def test_nccl_hosts__a_rank_needs_a_host_of_its_own() -> None:
    file = ROOT / "examples" / "labs" / "gpus.toml"
    with (
        pytest.raises(click.UsageError, match="3 ranks need a host each, the lab has 2"),
        nccl_hosts.hosts(file, 3),
    ):
        pytest.fail("three ranks were accepted on two hosts")


def test_bench__plan_c4p_shows_that_plans_beat_hashes() -> None:
    pytest.importorskip("numba")
    found = bench("plan_c4p", "--tiny", "--seeds", "2")
    rows = {(row["experiment"], row["way"]): row for row in found["rows"]}
    assert len(rows) == 4 * 6
    assert all(row["unfinished"] == 0 for row in rows.values())
    planned = rows["eight jobs, 1:1", "plan, single paths"]
    hashed = rows["eight jobs, 1:1", "ECMP, single paths"]
    assert planned["median"] > 1.1 * hashed["median"]
    assert planned["max_to_mean"] < 1.05 < hashed["max_to_mean"]


def test_bench__plan_c4p_loses_a_link() -> None:
    pytest.importorskip("numba")
    found = bench("plan_c4p", "--tiny", "--loss", "--seeds", "1")
    rows = {row["way"]: row for row in found["rows"]}
    both = rows["plan, 16 paths, round_robin"]
    assert both["least"] < both["after"]
    assert both["after"] > 0.7 * both["before"]
    assert both["assign_s"] > 0
