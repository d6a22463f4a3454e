"""Tests runs of the real simulator, sweeps and the command line of `weft sim`."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.sim.support import (
    needs_fabric,
    scenario,
    wait_for_a_worker,
    wait_until_it_computes,
    wait_until_rows_are_done,
)
from tests.waiting import PATIENCE_S
from transport import native
from transport.cli import sim
from transport.errors import InvalidArgumentError
from transport.ground import build_info
from transport.sim import Simulation, load, parse, run, schema, sweep
from transport.sim.run import PLAN_NAMES

ROOT = Path(__file__).resolve().parents[2]
SMALL = "hosts = 8\nhosts_per_leaf = 4\nspines = 4"

pytestmark = needs_fabric


def test_run__every_transfer_takes_at_least_its_ideal_time() -> None:
    for text in (
        SMALL,
        "hosts = 16\ntiers = 3",
        'topology = "rail"\nhosts = 16\nrails = 4',
        'topology = "multi_plane"\nhosts = 8\nplanes = 2',
        'topology = "dumbbell"\nhosts = 4\nuplink_rate = "10 Gb/s"',
    ):
        for size in (0, 1, 4_096, 300_000):
            found = run(scenario(text, f"[[workload]]\nsize_bytes = {size}\n"), check=True)
            assert found.good, found.violation
            assert (found.fct_ns >= found.ideal_ns).all(), (text, size)


def test_run__what_meets_nobody_takes_about_its_ideal_time() -> None:
    rest = '[[workload]]\npattern = "all_reduce_ring"\nsize_bytes = "8 MB"\n'
    found = run(scenario("hosts = 8\nhosts_per_leaf = 8", rest))
    assert np.median(found.slowdown) < 1.1


def test_run__where_threads_cannot_be_had_it_says_so_and_ends() -> None:
    """A run with 64 threads fails cleanly if there is memory for a few thread stacks only."""
    program = """
import resource
from transport.errors import OutOfMemoryError
from transport.sim import Simulation, load
simulation = Simulation(load("first"), threads=64)
simulation.plan.check = False
here = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (here + (96 << 20), resource.RLIM_INFINITY))
try:
    simulation.step()
except OutOfMemoryError as error:
    print("said:", error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "of 64 cannot be created" in done.stdout


def test_run__the_same_is_the_same_and_another_seed_is_not() -> None:
    own = scenario(SMALL)
    prints = [run(own, threads=threads).fingerprint for threads in (1, 2)]
    assert prints[0] == prints[1]
    assert run(own, seed=2).fingerprint != prints[0]
    assert run(own, {"window": "dctcp"}).fingerprint != prints[0]


def test_run__dependencies_hold_in_time() -> None:
    rest = '[[workload]]\npattern = "all_reduce_ring"\nsize_bytes = 80_000\nrepeats = 2\n'
    rest += "gap_ns = 500\n"
    found = run(scenario(SMALL, rest), check=True)
    assert found.good, found.violation
    waits = found.scenario.work.dependencies
    before, after = found.transfers[waits["before"]], found.transfers[waits["after"]]
    assert (after["ready_ns"] >= before["received_ns"] + waits["delay_ns"]).all()


@pytest.mark.parametrize(
    "text",
    [
        *('pattern = "incast"\nsize_bytes = 50_000', 'pattern = "outcast"\nsize_bytes = 50_000'),
        *('pattern = "all_to_all"\nsize_bytes = 80_000', 'pattern = "moe"\ntokens = 20\ntop_k = 2'),
        'pattern = "all_reduce_tree"\nsize_bytes = 80_000\nrepeats = 2',
        'pattern = "poisson"\nsizes = "hadoop"\nduration_ns = "50 us"',
    ],
)
def test_run__every_pattern_ends(text: str) -> None:
    found = run(scenario(SMALL, f"[[workload]]\n{text}\n"), check=True)
    assert found.good, found.violation
    assert found.transfers["received_ns"].min() > 0


def test_run__bytes_that_left_the_hosts_are_those_that_were_sent() -> None:
    found = run(scenario(SMALL))
    ups = found.scenario.network.tier_ports["host>leaf"]
    least = found.scenario.work.transfers["bytes"].sum()
    assert found.ports["bytes"][ups].sum() > least
    assert found.totals["packet_hops"] == found.ports["packets"].sum()


def test_run__a_hosts_own_port_loses_no_burst() -> None:
    text = 'topology = "multi_plane"\nhosts = 16\nplanes = 4\nrate = "25 Gb/s"'
    found = run(scenario(text, "[[workload]]\nsize_bytes = 500_000\n"))
    assert found.good
    assert found.ports["dropped"][found.scenario.network.tier_ports["host>leaf"]].sum() == 0


def test_run__a_link_that_is_down_carries_nothing() -> None:
    event = "[[events]]\nlink = 'leaf0-spine0'\nup = false\n"
    found = run(scenario(SMALL, event + "[[workload]]\nsize_bytes = 500_000\n"))
    assert found.good
    (port,) = found.scenario.network.find_ports("leaf0>spine0")
    assert found.ports["lost"][port] > 0


def test_run__samples_are_of_what_was_asked() -> None:
    text = "[samples]\nevery_ns = 1_000\nlinks = 'leaf0>spine*'\ntransfers = 3\n"
    found = run(scenario(SMALL, text + "[[workload]]\nsize_bytes = 500_000\n"))
    count = len(found.samples["at_ns"])
    assert count > 10
    assert set(np.diff(found.samples["at_ns"])) == {1_000}
    assert found.samples["queue_bytes"].size == 4 * count
    assert found.samples["window_bytes"].size == 3 * count
    assert len(found.sampled_transfers) == 3


NETWORK = (
    *("trim", "priority", "header_queue_bytes_max", "buffer_bytes", "buffer_alpha"),
    *("pause_bytes", "resume_bytes"),
)


def test_run__the_defaults_of_hosts_are_the_plans() -> None:
    plan = native.FabricPlan()
    for name, key in schema.HOSTS.items():
        if key.default is not None:
            assert getattr(plan, PLAN_NAMES.get(name, name)) == key.default, name
    for name in NETWORK:
        assert getattr(plan, name) == schema.NETWORK[name].default, name
    assert plan.limit_ns == schema.TOP["limit_ns"].default


def test_run__every_field_of_a_plan_is_some_key() -> None:
    fields = {
        name
        for name in dir(native.FabricPlan)
        if not name.startswith("_") and not callable(getattr(native.FabricPlan, name))
    }
    hosts = {PLAN_NAMES.get(name, name) for name in schema.HOSTS} - {"link_rate"}
    others = {"seed", "threads", "check", "limit_ns", "ecmp", "link_bytes_per_s"}
    # What only dumbbells use: transport/policies/dumbbell.py.
    dumbbell = {"recording_bytes_max", "rtt_expected_ns"}
    samples = {"sample_ns", "sample_ports", "sample_streams", "trace_ns"}
    assert fields == hosts | set(NETWORK) | others | samples | dumbbell


def test_run__policies_may_be_files_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text((ROOT / "examples" / "my_policy.py").read_text())
    (tmp_path / "a.toml").write_text(
        f"[network]\n{SMALL}\n[policies]\nwindow = 'mine.py:factor=0.7'\n[[workload]]\n"
    )
    found = run(tmp_path / "a.toml")
    assert found.good
    assert found.policies["window"] == "mine.py:factor=0.7"
    assert found.sources["window"].endswith(":factor=0.7")
    with pytest.raises(InvalidArgumentError, match="no window policy 'nope'"):
        run(load(tmp_path / "a.toml"), {"window": "nope"})
    with pytest.raises(InvalidArgumentError, match="no policy family"):
        run(load(tmp_path / "a.toml"), {"windows": "swift"})


def test_run__a_limit_ends_it(tmp_path: Path) -> None:
    found = run(
        scenario(SMALL, "[[workload]]\nsize_bytes = '10 MB'\n"), changes={"limit_ns": 9_000}
    )
    assert not found.finished
    assert not found.good
    assert found.totals["ended_ns"] <= 9_000
    assert Simulation(scenario(SMALL)).result(partial=True).partial


def test_sweep__processes_give_what_this_one_gives() -> None:
    own = scenario(SMALL)
    cases = sweep.cases_of(own, [1, 2], {"workload.size_bytes": [10_000, 20_000]}, {})
    rows = dict(sweep.local(own, cases, 2))
    assert sorted(rows) == [0, 1, 2, 3]
    for index, case in enumerate(cases):
        alone = sweep.one_run(own, case, 1, False)
        assert rows[index] == alone
    assert all(row["good"] for row in rows.values())


def test_sweep__workers_get_huge_pages_beside_what_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sweep.TUNABLES, raising=False)
    with sweep.worker_environment():
        assert os.environ[sweep.TUNABLES] == sweep.HUGE_PAGES
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert sweep.TUNABLES not in os.environ
    monkeypatch.setenv(sweep.TUNABLES, "glibc.malloc.hugetlb=0")  # the user's setting
    with sweep.worker_environment():
        assert os.environ[sweep.TUNABLES] == "glibc.malloc.hugetlb=0"
    monkeypatch.setenv(sweep.TUNABLES, "glibc.malloc.check=1")
    with sweep.worker_environment():
        assert os.environ[sweep.TUNABLES] == f"glibc.malloc.check=1:{sweep.HUGE_PAGES}"


def test_sweep__a_case_that_cannot_be_is_a_row_that_says_so() -> None:
    own = scenario(SMALL)
    rows = dict(sweep.local(own, [sweep.Case({"workload.hosts": "0-8"}, {}, 1)], 1))
    assert not rows[0]["good"]
    assert "hosts are 0 to 7" in rows[0]["problem"]


def test_sweep__dask_gives_the_same() -> None:
    distributed = pytest.importorskip("distributed", reason="needs distributed: weft[sweep]")
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        dashboard_address=None,
        protocol="tcp://",
        host="127.0.0.1",
    ) as cluster:
        own = scenario(SMALL)
        cases = sweep.cases_of(own, [1, 2], {}, {})
        rows = dict(sweep.on_dask(own, cases, cluster.scheduler_address))
    assert rows[1] == sweep.one_run(own, cases[1], 1, False)


# Tests of the command line.


def weft(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from transport.cli import main; main()", "sim", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


CONSTANT = """
from congestion.api import record, window_policy

Flow = record(unused=float)
Params = record(window_bytes=4160.0)


def answer(flow, params, event, result):
    result.window_bytes = params.window_bytes


POLICY = window_policy(
    "constant",
    flow=Flow,
    params=Params,
    on_start=answer,
    on_ack=answer,
    on_loss=answer,
    on_timeout=answer,
)
"""


def test_first__a_bad_policy_loses_against_the_default(tmp_path: Path) -> None:
    file = tmp_path / "constant.py"
    file.write_text(CONSTANT)
    bulk, small = run("first").jobs
    slow, _ = run("first", {"window": str(file)}).jobs
    assert slow["completion_ns"] > 10 * bulk["completion_ns"]
    _, late = run("first", {"window": f"{file}:window_bytes=16777216"}).jobs
    assert late["fct_ns_p99"] > 10 * small["fct_ns_p99"]
    uneven, _ = run("first", {"path": "single"}).jobs
    assert uneven["completion_ns"] > 2 * bulk["completion_ns"]


def test_cli__the_default_is_shown_beside_the_policy(tmp_path: Path) -> None:
    files = {f"--{kind}": tmp_path / f"a.{kind}" for kind in ("html", "json", "csv")}
    words = [str(one) for option in files.items() for one in option]
    done = weft("first", "--window", "fixed", *words)
    assert done.returncode == 0, done.stderr
    # Two jobs, a group of message sizes of each, and four tiers of links.
    assert [done.stdout.count(f"\n{one} ") for one in ("fixed", "default (nscc)")] == [8, 8]
    found = json.loads(files["--json"].read_text())
    assert found["policies"]["window"] == "fixed"
    assert found["default"]["policies"]["window"] == "nscc:rtt_ns_min=0,hold_ns=0"
    assert found["default"]["fingerprint"] == run("first").fingerprint
    assert len(files["--csv"].read_text().splitlines()) == 1 + found["summary"]["transfers"]
    assert "<td>default (nscc)</td>" in files["--html"].read_text()
    alone = weft("first", "--window", "fixed", "--no-compare", "--json", "-")
    assert "default" not in json.loads(alone.stdout)
    assert "default" not in weft("first").stdout


def test_cli__the_page_shows_what_the_first_run_prints() -> None:
    """The page has a copy of the example in the reader's folder."""
    command = "weft sim first --policy my_policy.py"
    page = (ROOT / "docs" / "SIMULATOR.md").read_text()
    shown = page.partition(f"$ {command}\n")[2].partition("```")[0].splitlines()
    printed = weft("first", "--policy", "examples/my_policy.py").stdout
    lines = printed.replace("examples/my_policy.py", "my_policy.py").splitlines()
    assert len(shown) == 6
    for line, whole in zip(shown, lines, strict=False):
        assert whole.startswith(line)


def test_cli__any_scenario_can_be_compared(small: str) -> None:
    done = weft(small, "--path", "single", "--compare")
    assert "\ndefault (power_of_two) " in done.stdout
    same = weft(small, "--path", "power_of_two", "--compare")
    assert "\ngiven " in same.stdout
    assert "\ndefault " in same.stdout


@pytest.fixture
def small(tmp_path: Path) -> str:
    file = tmp_path / "small.toml"
    file.write_text(f"[network]\n{SMALL}\n[[workload]]\n[samples]\nevery_ns = 1_000\n")
    return str(file)


def test_cli__a_run_with_every_file(small: str, tmp_path: Path) -> None:
    done = weft(
        *(small, "--policy", "examples/my_policy.py:factor=0.6", "--path", "reps", "--check"),
        *("--csv", str(tmp_path / "a.csv"), "--html", str(tmp_path / "a.html")),
        *("--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.svg")),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"wrote {tmp_path / 'a.svg'}\n"
    assert "window=examples/my_policy.py:factor=0.6 path=reps" in done.stdout
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 9
    page = (tmp_path / "a.html").read_text()
    assert "<script" not in page
    assert page.count("<svg") == 7
    assert "<svg" in (tmp_path / "a.svg").read_text()
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["summary"]["done"] == 8
    (row,) = found["slowdown_by_size"]
    assert (row["bytes_from"], row["bytes_to"], row["transfers"]) == (100_001, 1_000_000, 8)
    assert row["slowdown_p50"] >= 1
    assert row["slowdown_p95"] is None
    assert found["fingerprint"] in done.stdout


def test_cli__json_to_stdout_is_nothing_else(small: str) -> None:
    done = weft(small, "--json", "-", "--seed", "5")
    assert json.loads(done.stdout)["seed"] == 5


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([], 2, "give a SCENARIO"),
        (["nope"], 2, "no shipped scenario"),
        (["small", "--seed", "1", "--seeds", "1-2"], 2, "cannot be used together"),
        (["small", "--seeds", "2-1"], 2, "write the smaller seed first"),
        (["small", "--set", "network.hosts"], 2, "write KEY=VALUE"),
        (["small", "--set", "network.hsots=3"], 2, "did you mean hosts"),
        (["small", "--set", "network.hosts=0"], 2, "network.hosts: 0"),
        (["small", "--policy", "nope"], 2, "nope"),
        (["small", "--window", "reps"], 2, "reps"),
        (["small", "--policy", "swift", "--window", "dctcp"], 2, "are both window policies"),
        (["small", "--limit", "1 day"], 2, "nanoseconds"),
        (["small", "--limit", "3 us"], 1, "8 of 8 transfers did not finish within 3 us"),
        (["small", "--seeds", "1-2", "--estimate"], 2, "--estimate is for one run"),
        (["small", "--seeds", "1-2", "--plot", "a.nope"], 2, "give a name that ends in"),
        (["small", "--plot", "a.nope"], 2, "give a name that ends in"),
        (["small", "--json", "/no/such/folder/a.json"], 2, "there is no folder"),
        (["small", "--set", "network.queue_bytes=300"], 2, "raise it (set for this run"),
        (["small", "--set", "policies.wndow=swift,dctcp"], 2, "did you mean window?"),
        (["small", "--set", "policies=swift"], 2, "policies: no such policy family"),
        (["small", "--set", "policies.window="], 2, "policies.window: give a value"),
        (["small", "--set", "policies.window.p_ns=1,2"], 2, "swift has no parameter 'p_ns'"),
        (["small", "--set", "policies.window.p_ns=1"], 2, "swift has no parameter 'p_ns'"),
        (["small", "--set", "policies.credit.rate=1,2"], 2, "the scenario has no credit policy"),
        (["small", "--set", "policies.window.a.b=1"], 2, "policies.FAMILY.PARAMETER"),
        (["small", "--window", "dctcp", "--set", "policies.window=swift"], 2, "given twice"),
        (["small", "--window", "dctcp", "--set", "policies.window=swift,bbr"], 2, "given twice"),
        (
            ["small", "--window", "dctcp:gain=0.1", "--set", "policies.window.gain=0.2"],
            2,
            "gain of the window policy is given twice",
        ),
        (["small", "--set", "seed=1", "--set", "seed=2"], 2, "--set seed is given twice"),
        (["small", "--set", "seed=1,2"], 2, "give the seeds of a sweep with --seeds"),
        (["small", "--set", "seed=1", "--seeds", "1-2"], 2, "--seeds and --set seed"),
        (["small", "--set", "limit_ns=5", "--limit", "3 us"], 2, "--limit and --set limit_ns"),
        (["small", "--csv", "a.json"], 2, "end the name in .csv or .txt or .parquet"),
        (["small", "--html", "a.pdf"], 2, "end the name in .html"),
        (["small", "--json", "a.csv"], 2, "end the name in .json"),
        (["small", "--dask", "tcp://127.0.0.1:9"], 2, "the scheduler does not answer"),
    ],
)
def test_cli__what_is_wrong_is_one_line(
    arguments: list[str], status: int, said: str, small: str
) -> None:
    if "--dask" in arguments:
        pytest.importorskip("distributed", reason="needs distributed: weft[sweep]")
    done = weft(*(small if one == "small" else one for one in arguments))
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert (done.stdout == "") == (status == 2)


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("network.hosts=64,128", "network.hosts", [64, 128]),
        ("network.rate=100 Gb/s,1_000", "network.rate", ["100 Gb/s", 1000]),
        ("network.trim=true,false", "network.trim", [True, False]),
        ("workload.0.hosts=0-3,8", "workload.0.hosts", ["0-3,8"]),
        ("workload.sizes=[[1, 0.5], [9, 1.0]]", "workload.sizes", [[[1, 0.5], [9, 1.0]]]),
        (
            "policies.window=swift:a=1,b=2,dctcp,mine.py:c=3",
            "policies.window",
            ["swift:a=1,b=2", "dctcp", "mine.py:c=3"],
        ),
    ],
)
def test_cli__settings(text: str, key: str, values: list[object]) -> None:
    assert sim.setting(text) == (key, values)


def test_cli__a_sweep(small: str, tmp_path: Path) -> None:
    done = weft(
        *(small, "--seeds", "1-3", "--set", "policies.window=swift:decrease_max=0.3,dctcp"),
        *("--csv", str(tmp_path / "a.csv"), "--html", str(tmp_path / "a.html"), "-j", "2"),
        *("--plot", str(tmp_path / "a.svg")),
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.svg").read_text().count('<g id="axes_') >= 5  # a plot per measure
    assert "swift:decrease_max=0.3" in done.stdout
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 7
    assert weft(small, "--seeds", "1-2", "--limit", "3 us").returncode == 1


def test_cli__a_parameter_is_swept(small: str, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.csv", "a.json")]
    done = weft(
        *(small, "--seeds", "1-2", "-j", "2", "--path", "reps"),
        *("--set", "policies.window.decrease_max=0.1,0.5", "--set", "policies.window=swift"),
        *("--set", "policies.path.freeze_ns=7", "--csv", str(files[0]), "--json", str(files[1])),
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(files[0].read_text())))
    assert [row["policies.window.decrease_max"] for row in rows] == ["0.1", "0.1", "0.5", "0.5"]
    assert [row["window_policy"] for row in rows[::2]] == [
        "swift:decrease_max=0.1",
        "swift:decrease_max=0.5",
    ]
    assert {row["path_policy"] for row in rows} == {"reps:freeze_ns=7"}
    assert {row["loss_policy"] for row in rows} == {"rack"}
    assert {row["weft"] for row in rows} == {build_info.version()}
    found = json.loads(files[1].read_text())
    assert (found["weft"], found["commit"]) == (build_info.version(), build_info.commit())


def test_sweep__a_parameter_that_matters_changes_the_run() -> None:
    own = scenario(SMALL)
    settings = {"policies.window.window_bytes": [3_000, 30_000]}
    cases = sweep.cases_of(own, [1], settings, {"window": "fixed"})
    slow, fast = (sweep.one_run(own, case, 1, False) for case in cases)
    assert slow is not None
    assert fast is not None
    assert slow["completion_ns"] > fast["completion_ns"]


def test_cli__list_and_estimate(small: str) -> None:
    done = weft("--list")
    assert done.returncode == 0
    assert "permutation_1024" in done.stdout
    assert weft(small, "--estimate").stdout.startswith("the run needs about ")


@pytest.mark.parametrize("arguments", [(), ("--seeds", "1-4", "-j", "2")])
def test_cli__ctrl_c_shows_what_there_is(arguments: tuple[str, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from transport.cli import main; main()", "sim"]
    # A run that would take minutes if it were not stopped.
    command += ["permutation_1024", "--set", "workload.size_bytes=1 GB", "--limit", "1 s"]
    out, rows = tmp_path / "a.json", tmp_path / "a.csv"
    running = subprocess.Popen(
        [*command, *arguments, "--json", str(out), "--csv", str(rows)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until_it_computes(running.pid)
        os.killpg(running.pid, signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
    assert running.returncode == 130, said
    assert "interrupted" in said
    assert '"partial": true' in out.read_text()
    marks = [row["partial"] for row in csv.DictReader(io.StringIO(rows.read_text()))]
    assert set(marks) == (
        set() if arguments else {"True"}
    )  # the interrupted sweep has no finished run


def test_cli__a_worker_that_is_killed_costs_no_row_that_was_done(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    command = [sys.executable, "-c", "from transport.cli import main; main()", "sim"]
    command += ["first", "--seeds", "1-5000", "-j", "2", "--json", str(out)]
    running = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until_rows_are_done(running.pid)
        os.kill(wait_for_a_worker(running.pid)[0], signal.SIGKILL)
        _, said = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
    assert running.returncode == 1, said
    assert "a process of the sweep was killed" in said
    assert "Traceback" not in said
    found = json.loads(out.read_text())
    assert found["partial"]
    assert found["rows"]


def test_cli__a_shipped_scenario_by_its_name() -> None:
    done = weft("first", "--limit", "100 ms")
    assert done.returncode == 0, done.stderr


def test_parse__is_public() -> None:
    assert parse(f"[network]\n{SMALL}\n[[workload]]\n").network.hosts == 8


def test_lab__an_idle_link_lets_through_at_once_what_it_saved(tmp_path: Path) -> None:
    (tmp_path / "slow.toml").write_text(
        'spines = 1\n[host_links]\nrate = "100 Mb/s"\nqueue_bytes = 4_194_304\n'
        '[uplinks]\nrate = "50 Mb/s"\nqueue_bytes = 4_194_304\n'
    )
    text = """limit_ns = "10 s"
[network]
topology = "lab"
lab = "slow.toml"
host_queues = true
[hosts]
segment_bytes = 8972
rtt_ns = 1000000
rto_ns_min = "1 s"
rto_ns_max = "2 s"
[policies]
window = "fixed"
path = "fixed"
loss = "fixed"
[[workload]]
hosts = "0-1"
size_bytes = 1_000_000
"""
    made = parse(text, folder=tmp_path)
    burst = int(made.network.ports["burst_bytes"][made.network.find_ports("leaf0>spine0")][0])
    assert burst == 2 * 9_014  # the minimum of two packets: at this rate, 2 ms carry less
    wire_bytes = 1_000_000 + 64 * -(-1_000_000 // (8_972 - 64))
    alone_ns = wire_bytes * 1e9 / 6_250_000
    saved_ns = burst * 1e9 / 6_250_000
    one_ns = 8_972 * 1e9 / 6_250_000
    for fct_ns in run(made).fct_ns.tolist():
        # Both directions carry data at once, so acknowledgments add a little time.
        assert alone_ns - saved_ns - 1 <= fct_ns <= alone_ns - saved_ns + 2 * one_ns
