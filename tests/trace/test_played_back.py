"""Tests the playback of traces in the simulator, at the same scale and at others."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.waiting import PATIENCE_S
from transport.sim import ScenarioError, Simulation, parse
from transport.sim.result import Result
from transport.sim.steps import COLLECTIVES
from transport.sim.trace import write_trace
from transport.trace import open_store
from transport.trace.matrix import matrix_of

NETWORK = '[network]\nhosts = {hosts}\nrate = "100 Gb/s"\n[[workload]]\n'
STEPS = """
pattern = "steps"
repeats = 2
slow_ranks = [1]
operations = [
  {name = "forward", compute_ns = "100 us"},
  {name = "tensor", collective = "all_reduce_ring", size_bytes = "200 kB", group_ranks = 4},
  {name = "backward", compute_ns = "200 us"},
  {name = "grads", collective = "reduce_scatter", size_bytes = "1 MB"},
  {name = "weights", collective = "all_gather", size_bytes = "1 MB"},
  {name = "in", collective = "receive", size_bytes = "30 kB", shift = 4, stream = "in"},
  {name = "out", collective = "send", size_bytes = "30 kB", shift = 4, stream = "out"},
]
"""


def run(text: str) -> Result:
    simulation = Simulation(parse(text), check=True)
    while simulation.step():
        pass
    result = simulation.result()
    assert result.good, result.violation
    return result


def played(trace: Path, hosts: int = 8, more: str = "") -> Result:
    return run(NETWORK.format(hosts=hosts) + f'pattern = "trace"\nfile = "{trace}"\n{more}')


def matrix(folder: Path) -> np.ndarray:
    with open_store(folder) as store:
        return matrix_of(store).dense_values()


def sent(result: Result) -> np.ndarray:
    work = result.scenario.work
    hosts = result.scenario.network.hosts
    found = np.zeros((hosts, hosts), np.int64)
    np.add.at(found, (work.transfers["from"], work.transfers["to"]), work.transfers["bytes"])
    return found


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    result = run(NETWORK.format(hosts=8) + STEPS)
    folder = tmp_path_factory.mktemp("original")
    write_trace(result, folder)
    return result, folder


def test_playback__the_same_scale_gives_the_same_traffic_and_time(
    original: tuple[Result, Path], tmp_path: Path
) -> None:
    result, folder = original
    again = played(folder)
    assert (sent(again) == sent(result)).all()
    write_trace(again, tmp_path)
    assert (matrix(tmp_path) == matrix(folder)).all()
    # A trace has no computation before its first operation, so the playback omits that time.
    begun = int(result.transfers["ready_ns"].min())
    took = int(result.totals["ended_ns"]) - begun
    assert int(again.totals["ended_ns"]) == pytest.approx(took, rel=0.02)
    assert again.scenario.work.notes == []


def test_playback__the_slow_rank_is_still_slow(original: tuple[Result, Path]) -> None:
    _, folder = original
    faster = played(folder, more="compute_factor = 0.1")
    assert int(faster.totals["ended_ns"]) < int(played(folder).totals["ended_ns"]) * 0.7
    work = played(folder).scenario.work
    program = work.jobs[0].program
    assert program is not None
    start = program.operations[0].compute_ns
    assert start is not None
    assert (start == np.where(np.arange(8) == 1, 50_000, 0)).all()


def test_playback__twice_the_ranks(original: tuple[Result, Path]) -> None:
    """A communicator of all ranks becomes a larger one; groups of four ranks are copied."""
    result, folder = original
    small, large = sent(result), sent(played(folder, 16, "scale = 2"))
    # In each of two steps, a rank sends to the next one 2 * 3 chunks of 50 kB for "tensor", and 7
    # chunks of 125 kB each for "grads" and "weights" (with 16 ranks: 15 chunks of 125 kB).
    # It also sends 30 kB to rank + 4.
    assert small[1, 2] == 2 * (6 * 50_000 + 2 * 7 * 125_000)
    assert large[1, 2] == large[9, 10] == 2 * (6 * 50_000 + 15 * 125_000 + 15 * 125_000)
    assert large[7, 8] == 2 * 2 * 15 * 125_000
    assert large[3, 0] == large[11, 8] == 2 * 6 * 50_000
    assert large[0, 4] == large[8, 12] == small[0, 4] == 60_000
    assert large[4, 8] == 0


def test_playback__half_the_ranks(original: tuple[Result, Path]) -> None:
    _, folder = original
    small = sent(played(folder, 8, "scale = 0.5"))
    assert small[4:].sum() == small[:, 4:].sum() == 0
    assert small[1, 2] == 2 * (6 * 50_000 + 2 * 3 * 125_000)


def test_playback__channels_keep_their_directions(tmp_path: Path) -> None:
    steps = """
pattern = "steps"
operations = [{collective = "all_reduce_ring", size_bytes = "1 MB", channels = 2}]
"""
    result = run(NETWORK.format(hosts=8) + steps)
    write_trace(result, tmp_path)
    with open_store(tmp_path) as store:
        assert store.rows("SELECT DISTINCT channels FROM operations") == [(2,)]
        assert store.rows("SELECT DISTINCT channel FROM channels ORDER BY 1") == [(0,), (1,)]
    # Times are averaged over the trace's 8 ranks, although the network has 16 hosts.
    again = played(tmp_path, hosts=16)
    assert again.jobs[0]["ranks"] == 8
    assert (sent(again)[:8, :8] == sent(result)).all()
    network_ns = result.steps[0]["network_ns"]
    assert again.steps[0]["network_ns"] == pytest.approx(network_ns, rel=0.1)


MOE = """pattern = "moe"
tokens = 512
token_bytes = 100
top_k = 2
skew = 1
"""
STEP = 'pattern = "steps"\noperations = [{{collective = "{0}", size_bytes = "1 MB"}}]\n'


@pytest.mark.parametrize(
    "workload", [MOE, 'pattern = "all_to_all"', *map(STEP.format, COLLECTIVES)]
)
def test_playback__every_function_keeps_its_volume(workload: str, tmp_path: Path) -> None:
    """Functions differ in whether a call states the whole buffer or the part of one rank."""
    result = run(NETWORK.format(hosts=8) + workload)
    write_trace(result, tmp_path)
    found, wanted = sent(played(tmp_path)), sent(result)
    if workload == MOE:
        # Who sent how many tokens to whom is not in the operations.
        assert found.sum() == pytest.approx(wanted.sum(), rel=0.001)
    else:
        assert (found == wanted).all()


ROOTED = """pattern = "steps"
operations = [
  {name = "a", collective = "broadcast", size_bytes = "80 kB", root = 5},
  {name = "b", collective = "reduce", size_bytes = "80 kB", root = 2},
  {name = "c", collective = "broadcast", size_bytes = "80 kB", root = 1, group_ranks = 4},
]
"""
BROADCAST = 'pattern = "broadcast"\nroot = 5\nsize_bytes = "80 kB"\n'


@pytest.mark.parametrize("workload", [ROOTED, BROADCAST])
def test_playback__roots_are_recorded(workload: str, tmp_path: Path) -> None:
    result = run(NETWORK.format(hosts=8) + workload)
    write_trace(result, tmp_path)
    with open_store(tmp_path) as store:
        roots = store.rows("SELECT DISTINCT root FROM operations ORDER BY 1")
    assert roots == ([(1,), (2,), (5,)] if workload == ROOTED else [(5,)])
    again = played(tmp_path)
    assert (sent(again) == sent(result)).all()
    assert again.scenario.work.notes == []


def test_playback__a_single_tree_stays_one(tmp_path: Path) -> None:
    result = run(NETWORK.format(hosts=8) + 'pattern = "all_reduce_tree"\nsize_bytes = "80 kB"')
    write_trace(result, tmp_path)
    again = played(tmp_path)
    assert (sent(again) == sent(result)).all()
    assert again.scenario.work.notes == []


def test_playback__algorithms_that_run_as_rings_are_said(
    original: tuple[Result, Path], tmp_path: Path
) -> None:
    with open_store(original[1]) as store:
        store.rows("UPDATE operations SET algorithm = 'NVLS' WHERE function = 'AllReduce'")
        store.rows("UPDATE operations SET algorithm = NULL WHERE function = 'AllGather'")
        store.to_parquet(tmp_path / "tables")
    (note,) = played(tmp_path / "tables").scenario.work.notes
    assert note.startswith("6 operations run as rings, ")
    assert note.endswith(": NVLS (4), not known (2)")


def test_playback__a_root_that_is_not_known_is_said(tmp_path: Path) -> None:
    write_trace(run(NETWORK.format(hosts=8) + ROOTED), tmp_path / "one")
    with open_store(tmp_path / "one") as store:
        store.rows("UPDATE operations SET root = NULL WHERE function = 'Broadcast'")
        store.to_parquet(tmp_path / "two")
    (note,) = played(tmp_path / "two").scenario.work.notes
    assert note == (
        "the trace does not tell the root of 3 Broadcasts and Reduces: the first rank of their "
        "communicator is the root"
    )
    (note,) = played(tmp_path / "one", more="scale = 0.5").scenario.work.notes
    assert note.startswith("1 Broadcasts and Reduces have a root that the smaller job lacks")


def test_playback__sizes_by_a_factor(original: tuple[Result, Path]) -> None:
    result, folder = original
    assert sent(played(folder, more="size_factor = 3")).sum() == 3 * sent(result).sum()


def test_playback__a_rank_without_trace_communicates(
    original: tuple[Result, Path], tmp_path: Path
) -> None:
    """The other ranks wait for it; its sends outside of collectives are not known."""
    result, folder = original
    for number, file in enumerate(sorted(folder.glob("*.trace"))):
        if number:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    found = played(tmp_path)
    notes = found.scenario.work.notes
    assert notes[0] == "1 of 8 ranks have no trace: they communicate without computing"
    missing = sent(result) - sent(found)
    assert 0 < missing.sum() <= 2 * 30_000
    assert ("lacks the matching call" in notes[1]) == (missing.sum() > 0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("scale = 0.3", "scale: 0.3: give a whole number or its reciprocal"),
        ("scale = 0.2", "scale: 0.2: the 8 ranks of the trace cannot be divided by 5"),
        ("scale = 0.125", "0.125: 1 of the 8 ranks of the trace would remain: a job needs"),
        ("scale = 2", "the trace has 16 ranks at this scale, and there are 8 hosts"),
        ('job = "other"', "no traces of the job"),
    ],
)
def test_playback__a_wrong_key_is_said(original: tuple[Result, Path], more: str, said: str) -> None:
    with pytest.raises(ScenarioError, match=r"workload\.0") as caught:
        played(original[1], more=more)
    assert said in str(caught.value)


def test_playback__folders_that_cannot_be_played_back(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is not a folder"):
        played(tmp_path / "none")
    with pytest.raises(ScenarioError, match="has no trace files"):
        played(tmp_path)
    with pytest.raises(ScenarioError, match="missing: name a folder with a trace"):
        run(NETWORK.format(hosts=8) + 'pattern = "trace"')


def test_playback__a_trace_of_messages_alone_is_refused(
    original: tuple[Result, Path], tmp_path: Path
) -> None:
    with open_store(original[1]) as store:
        store.rows("DELETE FROM operations")
        store.to_parquet(tmp_path / "tables")
    with pytest.raises(ScenarioError, match=r"messages and no operations of NCCL, as of a program"):
        played(tmp_path / "tables")


def weft_sim(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from transport.cli import main; main()", "sim"]
    return subprocess.run(
        [*command, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_command__plays_a_trace_back(original: tuple[Result, Path]) -> None:
    words: list[str | Path] = ["first", "--workload", original[1]]
    words += ["--set", "network.hosts=16", "--scale", "2"]
    done = weft_sim(*words)
    assert done.returncode == 0, done.stderr
    assert "trace  16" in done.stdout
    assert "note:" not in done.stderr


def test_command__needs_only_a_network(original: tuple[Result, Path], tmp_path: Path) -> None:
    fabric = tmp_path / "fabric.toml"
    fabric.write_text("[network]\nhosts = 8\n")
    done = weft_sim(fabric, "--workload", original[1])
    assert done.returncode == 0, done.stderr
    assert "trace  8" in done.stdout
    done = weft_sim(fabric, "--workload", original[1], "--scale", "2")
    assert "8 hosts: set network.hosts to 16 or more (set for this run" in done.stderr


def test_command__says_what_the_trace_lacks(original: tuple[Result, Path], tmp_path: Path) -> None:
    """A file is cut off, some operations have no size, and some no bytes."""
    files = sorted(original[1].glob("*.trace"))
    cut = tmp_path / "cut"
    cut.mkdir()
    for number, file in enumerate(files):
        (cut / file.name).write_bytes(file.read_bytes()[: -200 if number == 0 else None])
    with open_store(cut) as store:
        store.rows("UPDATE operations SET bytes = NULL WHERE function = 'AllReduce'")
        store.rows("UPDATE operations SET bytes = 0 WHERE function = 'AllGather'")
        store.rows("UPDATE operations SET begin_ns = NULL WHERE function = 'Recv'")
        store.to_parquet(tmp_path / "tables")
    words: list[str | Path] = ["first", "--workload", tmp_path / "tables", "--json", "-"]
    done = weft_sim(*words, "--set", "network.hosts=8")
    assert done.returncode == 0, done.stderr
    assert "note: 8 operations are left out: the trace lacks their begin, " in done.stderr
    assert "note: 16 operations are left out: the trace does not tell their size" in done.stderr
    assert "note: 2 operations of 0 bytes are played back with 1 byte" in done.stderr
    assert "note: no end: rank" in done.stderr
    assert json.loads(done.stdout)["notes"]
    done = weft_sim(*words, "--set", "network.hosts=8,9", "-j", "1")
    assert "note: 16 operations are left out" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--scale", "2"], "--scale needs --workload"),
        (["--workload", "/none"], "/none is not a folder with a trace"),
        (["--workload", "/tmp", "--scale", "0"], "scale: 0.0: expected a number"),
    ],
)
def test_command__wrong_options_are_said(words: list[str], said: str) -> None:
    done = weft_sim("first", *words)
    assert done.returncode == 2
    assert said in done.stderr
