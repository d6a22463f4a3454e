"""Tests `weft diagnose`, and `weft sim --faults`."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.diagnose.support import ring, tables, traced
from tests.stopping import stopped
from tests.trace.writer import message, rank_of
from tests.waiting import until
from transport.cli import weft
from transport.diagnose import report
from transport.diagnose.diagnosis import judged
from transport.diagnose.facts import facts_of
from transport.diagnose.settings import Settings
from transport.plan import routes
from transport.sim.run import run as simulated
from transport.sim.scenario import from_tables, shipped
from transport.sim.trace import write_trace
from transport.trace import open_store

STRAGGLER = {"kind": "straggler", "rank": 21, "at_step": 3, "compute_factor": 2}


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


def test_diagnose__prints_evidence_and_advice(tmp_path: Path) -> None:
    done = run("diagnose", traced(tmp_path, STRAGGLER))
    assert done.exit_code == 1
    assert done.output.startswith("non_communication_slow: rank 21, confidence 9")
    for word in ("evidence: rank 21 took", "query:    weft trace query", "do:", "looked at: 32"):
        assert word in done.output


def test_diagnose__finds_the_slow_nic_of_the_example(tmp_path: Path) -> None:
    scenario = shipped()["slow_nic"]
    assert run("sim", scenario, "--trace", tmp_path / "t").exit_code == 0
    done = run("diagnose", tmp_path / "t")
    assert done.output.startswith("communication_slow: NIC of rank 21, confidence 9")
    # Its peers have timeouts, and it records little, as it gets few messages: yet it runs.
    assert "hang" not in done.output


def test_diagnose__its_queries_run(tmp_path: Path) -> None:
    done = run("diagnose", traced(tmp_path, STRAGGLER), "--json", "-")
    found = json.loads(done.output)
    assert found["findings"][0]["class"] == "non_communication_slow"
    query = run("trace", "query", tmp_path, found["findings"][0]["query"])
    assert query.exit_code == 0
    assert "first_message_ns" in query.output


def test_diagnose__programs_without_operations_are_queried_by_message(tmp_path: Path) -> None:
    with open_store(traced(tmp_path, STRAGGLER)) as store:
        facts = replace(facts_of(store), has_operations=False)
        found = judged(facts, [], Settings(), []).findings[0]
        assert "operations" not in found.query
        assert len(store.rows(found.query)) == 32


def test_diagnose__healthy_is_0(tmp_path: Path) -> None:
    done = run("diagnose", traced(tmp_path))
    assert (done.exit_code, done.output.splitlines()[0][:18]) == (0, "healthy: 32 ranks,")
    assert "note: not seen: NaN or Inf in the data, silent data corruption" in done.output
    assert json.loads(run("diagnose", tmp_path, "--json", "-").output)["not_seen"]


def without(folder: Path, rank: int) -> None:
    """Removes the trace of a rank."""
    with open_store(folder) as store:
        ((trace,),) = store.rows("SELECT trace FROM processes WHERE rank = ?", rank)
    for one in folder.glob(f"weft-{trace}-*.trace"):
        one.unlink()


def test_diagnose__of_a_part_of_the_job_says_so(tmp_path: Path) -> None:
    without(traced(tmp_path), 21)
    done = run("diagnose", tmp_path)
    assert done.exit_code == 4
    assert done.output.startswith("not judged: 31 of 32 ranks,")
    assert "lacks:    no trace of rank 21: collect the traces of all hosts" in done.output
    found = json.loads(run("diagnose", tmp_path, "--json", "-").output)
    assert (found["answer"], found["ranks"], found["missing"]) == ("not judged", 31, 1)
    assert found["judged"]["lacks"][0]["what"] == "no trace of rank 21"


def test_diagnose__a_straggler_is_named_without_its_trace(tmp_path: Path) -> None:
    traced(tmp_path, STRAGGLER)
    without(tmp_path, 21)
    done = run("diagnose", tmp_path)
    assert done.exit_code == 1
    assert done.output.startswith("non_communication_slow: rank 21, ")
    assert "Rank 21 has no trace" in done.output


def test_diagnose__names_no_side_if_the_trace_of_the_slow_nic_is_cut(tmp_path: Path) -> None:
    """Without the messages that the rank sent, its NIC seems slow as receiver only."""
    scenario = shipped()["slow_nic"]
    assert run("sim", scenario, "--trace", tmp_path / "t").exit_code == 0
    with open_store(tmp_path / "t") as store:
        ((trace,),) = store.rows("SELECT trace FROM processes WHERE rank = 21")
    (file,) = (tmp_path / "t").glob(f"weft-{trace}-*.trace")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = run("diagnose", tmp_path / "t")
    assert done.output.startswith("communication_slow: NIC of rank 21, confidence 9")
    assert "The trace of rank 21 is incomplete, so the side is not known." in done.output
    assert "the last block is cut off" in done.output
    assert "looked at: 32 ranks, 1 with an incomplete trace, " in done.output


def test_diagnose__cut_traces_do_not_pass_for_healthy(tmp_path: Path) -> None:
    for file in traced(tmp_path).glob("*.trace"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    done = run("diagnose", tmp_path)
    assert done.exit_code == 4
    assert done.output.startswith("not judged: 32 ranks, 32 with an ")
    found = json.loads(run("diagnose", tmp_path, "--json", "-").output)
    assert (found["missing"], found["incomplete"]) == (0, 32)


def test_live__without_a_running_job_nothing_is_judged(tmp_path: Path) -> None:
    """Neither of traces whose processes ended long ago, nor of a folder that is not there."""
    live = ("--live", "--count", "2", "--interval", "0.1")
    done = run("diagnose", traced(tmp_path / "t"), *live)
    assert done.exit_code == 2
    assert f"32 traces in {tmp_path / 't'} are of a simulation" in done.output
    assert "nothing was judged" in done.output
    done = run("diagnose", tmp_path / "none", *live)
    assert (done.exit_code, f"there is no folder {tmp_path / 'none'} yet" in done.output) == (2, 1)
    then_ns = time.monotonic_ns() - 10 * 10**9
    old = rank_of(tmp_path / "t", 1, 2)
    message(old, 1, 0, 100, then_ns, then_ns, sends=1)
    (tmp_path / "old").mkdir()
    old.write().rename(tmp_path / "old" / f"weft-{2:016x}-000000.trace")
    done = run("diagnose", tmp_path / "old", *live, "--window", "2")
    assert (done.exit_code, "1 traces in" in done.output, "have ended" in done.output) == (2, 1, 1)
    killed = rank_of(tmp_path / "t", 1, 2)
    killed.host, killed.ended = socket.gethostname(), False
    message(killed, 1, 0, 100, then_ns, then_ns, sends=1)
    (tmp_path / "killed").mkdir()
    killed.write().rename(tmp_path / "killed" / f"weft-{2:016x}-000000.trace")
    done = run("diagnose", tmp_path / "killed", *live)
    assert (done.exit_code, "were killed or crashed" in done.output) == (2, True)
    assert f"weft diagnose {tmp_path / 'killed'} judges" in done.output
    done = run("diagnose", tmp_path / "none", *live, "--share", tmp_path / "share")
    assert (done.exit_code, "wrote a trace to" in done.output) == (2, True)


def test_report__a_moment_is_no_span() -> None:
    assert report.when(5_000_000, 5_000_000) == "5 ms"
    assert report.when(5_000_000, 7_000_000) == "5 ms to 7 ms (2 ms)"
    assert "to" not in report.when(1_700_000_000 * 10**9, 1_700_000_000 * 10**9)


def test_diagnose__routes_of_another_fabric_are_refused(tmp_path: Path) -> None:
    traced(tmp_path)
    other = tmp_path / "other.json"
    routes.Routes(("host0>leaf9",), {("host0", "host1", 0): (0,)}).write(other)
    done = run("diagnose", tmp_path, "--routes", other)
    assert done.exit_code == 2
    assert "is of another fabric than" in done.output
    assert run("diagnose", tmp_path, "--routes", tmp_path / routes.FILE).exit_code == 0


def test_diagnose__of_no_trace_is_one_line(tmp_path: Path) -> None:
    done = run("diagnose", tmp_path)
    assert done.exit_code == 2
    assert "has no trace files of weft" in done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is no file of routes"),
        ('{"weft_routes": 9}', "has version 9 of routes"),
        (
            '{"weft_routes": 1, "links": [], "routes": [["a", "b", 0, [4]]]}',
            "names link 4, but there are 0 links",
        ),
        ('{"weft_routes": 1, "links": 5, "routes": 5}', "links and routes must be lists"),
    ],
)
def test_diagnose__wrong_routes_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    traced(tmp_path)
    (tmp_path / routes.FILE).write_text(text)
    done = run("diagnose", tmp_path)
    assert done.exit_code == 2
    assert said in done.output
    assert done.output.count("\n") == 1 or "Usage" in done.output


def test_diagnose__a_pipe_among_traces_is_left_out(tmp_path: Path) -> None:
    traced(tmp_path)
    os.mkfifo(tmp_path / "weft-x.trace")
    done = run("diagnose", tmp_path)
    assert done.exit_code == 0
    assert "weft-x.trace is left out: it is not a file" in done.output


def test_diagnose__control_characters_are_escaped(tmp_path: Path) -> None:
    wrong = {"kind": "wrong_call", "rank": 2, "at_step": 3, "calls": "Foo\n\x1b[31mcrash"}
    done = run("diagnose", traced(tmp_path, wrong, limit_ns=10_000_000))
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert "called Foo\\n\\x1b[31mcrash of" in done.output


def test_diagnose__errors_end_with_2_and_options_of_live_are_refused(tmp_path: Path) -> None:
    traced(tmp_path)
    assert run("diagnose", tmp_path, "--json", "/dev/full").exit_code == 2
    done = run("diagnose", tmp_path, "--interval", "3")
    assert (done.exit_code, "--interval needs --live: add it" in done.output) == (2, True)


def test_diagnose__output_that_cannot_be_written_is_no_finding(tmp_path: Path) -> None:
    """A full disk, and a pipe whose reader has gone: both end with 2, of a healthy job."""
    words = ["diagnose", str(traced(tmp_path))]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("weft: ")
    assert "Traceback" not in done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *words], stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_cli__a_closed_standard_error_is_no_place_for_other_files() -> None:
    code = (
        "import os, sys; os.close(2); from transport.cli import main; sys.argv = ['weft', '-h']\n"
    )
    code += "try: main()\nexcept SystemExit: print(os.readlink('/proc/self/fd/2'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "/dev/null"


def test_diagnose__iterations_that_became_longer_are_slower(tmp_path: Path) -> None:
    """All ranks compute three times as long from step 4 on, so no rank is slower than others."""
    slow = [
        {"kind": "straggler", "rank": rank, "at_step": 4, "compute_factor": 3} for rank in range(32)
    ]
    job = tables(*slow)
    job["workload"][0]["repeats"] = 11
    write_trace(simulated(from_tables(job, file="job"), trace_ns=200_000), tmp_path)
    done = run("diagnose", tmp_path)
    assert done.exit_code == 3
    assert done.output.startswith("slower but unexplained: 32 ranks, 11 iterations")
    assert "all ranks take" in done.output
    assert "longer between operations. No rank, NIC or link explains it." in done.output


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ('kind = "lossy_lin"', "faults.0.kind: 'lossy_lin': choose one of slow_nic"),
        ('kind = "slow_nic"\nrank = 3\nat_step = 7', "faults.0.at_step: slow_nic has no such key"),
        ('kind = "slow_nic"', "faults.0.rank: missing: slow_nic is a fault of a rank"),
        ('kind = "slow_nic"\nrank = 999', "faults.0.rank: 999: ranks are 0 to 31"),
        ('kind = "link_down"\nlink = "x"', "faults.0.link: 'x': no such link"),
        ('kind = "straggler"\nrank = 3\nat_step = 99', "faults.0.at_step: 99: rank 3 computes"),
    ],
)
def test_faults__wrong_ones_are_one_line_that_names_the_file(
    tmp_path: Path, fault: str, said: str
) -> None:
    file = tmp_path / "faults.toml"
    file.write_text(f"[[faults]]\n{fault}\n")
    scenario = shipped()["slow_nic"]
    done = run("sim", scenario, "--faults", file, "--trace", tmp_path / "t")
    assert done.exit_code == 2
    assert f"{file}: {said}" in done.output.splitlines()[-1]


MAIN = "from transport.cli import main; main()"


def stop_of(pid: int, done: Result) -> Result | None:
    """The result if it says that this process is stopped. Another one may be for a moment, too."""
    return done if f"(pid {pid}) is stopped (state T)" in done.output else None


def test_diagnose__says_that_a_process_is_stopped(tmp_path: Path) -> None:
    with ring(tmp_path) as ranks:
        with stopped(ranks[1].pid):
            # It is found when the pause exceeds all earlier pauses of this job.
            pid = ranks[1].pid
            done = until(lambda: stop_of(pid, run("diagnose", tmp_path)), "nothing is found")
        assert done.output.startswith("non_communication_hang: rank 1, confidence 99 %")
        assert f"\n  process:  pid {pid} on {socket.gethostname()}\n" in done.output


SCENARIO = """
[network]
hosts = 8
hosts_per_leaf = 4
[[workload]]
pattern = "steps"
repeats = 6
launch_ns = 1000
operations = [{compute_ns = "100 us"}, {collective = "all_reduce_ring", size_bytes = "100 KB"}]
"""


def test_sim__takes_faults_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SCENARIO)
    (tmp_path / "faults.toml").write_text(
        '[[faults]]\nkind = "straggler"\nrank = 5\nat_step = 2\ncompute_factor = 3\n'
    )
    trace = tmp_path / "trace"
    done = run("sim", tmp_path / "job.toml", "--faults", tmp_path / "faults.toml", "--trace", trace)
    assert done.exit_code == 0, done.output
    assert run("diagnose", trace).output.startswith("non_communication_slow: rank 5,")


def test_sim__notes_faults_that_begin_after_its_end(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SCENARIO)
    (tmp_path / "faults.toml").write_text('[[faults]]\nkind = "crash"\nrank = 5\nat_ns = "1 s"\n')
    done = run("sim", tmp_path / "job.toml", "--faults", tmp_path / "faults.toml")
    assert done.exit_code == 0
    assert "note: faults.0 (crash) begins at 1 s, and the run ended at" in done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[faults]]\nkind = 'sloth'\n", "choose one of"),
        ("[[faults]]\nkind = 'crash'\n", "crash is a fault of a rank"),
        ("[[faults]]\nkind = 'crash'\nrank = 99\n", "ranks are 0 to 7"),
        ("[[faults]]\nkind = 'straggler'\nrank = 99\n", "ranks are 0 to 7"),
        ("[[faults]]\nkind = 'lossy_link'\nlink = 'leaf9-spine9'\n", "no such link"),
        ("[[faults]]\nkind = 'second_job'\nhosts = '0-99'\n", "hosts are 0 to 7"),
        ("[[faults]]\nkind = 'wrong_call'\nrank = 1\nsize_bytes = 100_000\n", "this very call"),
        (
            "[[faults]]\nkind = 'flapping'\nlink = 'leaf0-spine0'\nat_ns = 9\nuntil_ns = 9\n",
            "must be later",
        ),
        (
            "[[faults]]\nkind = 'flapping'\nlink = 'leaf0-spine0'\nflap_ns = 2\n",
            "faults.0.flap_ns: flaps 500,000,000 times: give a longer period",
        ),
        (
            "[[faults]]\nkind = 'second_job'\nhosts = '0-3'\nrepeats = 9_999_999\n",
            "faults.toml: faults.0.",
        ),
        ("seed = 4\n", "must have [[faults]] tables only"),
        ("[[faults]\n", "is not TOML"),
    ],
)
def test_sim__wrong_faults_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "job.toml").write_text(SCENARIO)
    (tmp_path / "faults.toml").write_text(text)
    done = run("sim", tmp_path / "job.toml", "--faults", tmp_path / "faults.toml")
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_diagnose__a_plan_needs_routes(tmp_path: Path) -> None:
    done = run("diagnose", tmp_path, "--plan", "plan.json")
    assert done.exit_code == 2
    assert "--plan needs --routes: the file of weft plan probe" in done.output
