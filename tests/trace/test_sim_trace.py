"""Tests traces of simulated jobs: compares matrices with the volumes of NCCL's algorithms.

The volumes, bytes from each rank to each other rank, are computed here without the simulator.
"""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import numpy as np
import pytest

from tests.diagnose.support import traced
from transport.cli import invoke
from transport.cli.sim import save_trace
from transport.sim import Simulation, parse
from transport.sim.result import Result
from transport.sim.trace import write_trace
from transport.trace import open_store, read_segment
from transport.trace.folder import scan
from transport.trace.matrix import matrix_of
from transport.trace.segment import read_rows
from transport.trace.write import TraceFile

SIZE = 1 << 20
# Numbers of ranks; make scale adds 1,024, which take minutes.
RANKS = [8, 64, *map(int, os.environ.get("SIM_RANKS", "").split())]


def simulated(pattern: str, ranks: int, repeats: int = 1, more: str = "") -> Result:
    text = f"""
[network]
hosts = {ranks}
[[workload]]
name = "job"
pattern = "{pattern}"
size_bytes = {SIZE}
repeats = {repeats}
{more}
"""
    simulation = Simulation(parse(text))
    while simulation.step():
        pass
    return simulation.result()


def ring(ranks: int, each: int) -> np.ndarray:
    """Every rank sends `each` bytes to the next rank."""
    wanted = np.zeros((ranks, ranks), np.int64)
    wanted[np.arange(ranks), (np.arange(ranks) + 1) % ranks] = each
    return wanted


def tree(ranks: int, size: int) -> np.ndarray:
    """Every rank but the root exchanges `size` bytes with its parent, in each direction."""
    wanted = np.zeros((ranks, ranks), np.int64)
    for rank in range(1, ranks):
        wanted[rank, (rank - 1) // 2] = wanted[(rank - 1) // 2, rank] = size
    return wanted


def chain(ranks: int, without: int) -> np.ndarray:
    """Every rank but `without` sends the whole buffer to the next rank of the ring."""
    wanted = ring(ranks, SIZE)
    wanted[without] = 0
    return wanted


def two_trees(ranks: int) -> np.ndarray:
    """Half of the buffer goes up and down each of NCCL's two trees, here only those of 8 ranks."""
    assert ranks == 8
    first = {1: 2, 3: 2, 2: 4, 5: 6, 7: 6, 6: 4, 4: 0}
    second = {7 - child: 7 - parent for child, parent in first.items()}
    wanted = np.zeros((ranks, ranks), np.int64)
    for links in (first, second):
        for child, parent in links.items():
            wanted[child, parent] += SIZE // 2
            wanted[parent, child] += SIZE // 2
    return wanted


def pat(ranks: int, direction: int) -> np.ndarray:
    """For each offset 1 to n - 1, a rank sends a block; distance: the offset's lowest set bit."""
    wanted = np.zeros((ranks, ranks), np.int64)
    for number in range(1, ranks):
        distance = number & -number
        for rank in range(ranks):
            wanted[rank, (rank + direction * distance) % ranks] += SIZE // ranks
    return wanted


EXPECTED: dict[str, Callable[[int], Any]] = {
    "all_reduce_ring": lambda n: ring(n, 2 * (n - 1) * SIZE // n),
    "reduce_scatter": lambda n: ring(n, (n - 1) * SIZE // n),
    "all_gather": lambda n: ring(n, (n - 1) * SIZE // n),
    "all_reduce_tree": lambda n: tree(n, SIZE),
    "all_to_all": lambda n: np.full((n, n), SIZE // n) - np.diag(np.full(n, SIZE // n)),
}


ROOTED: dict[str, Callable[[int], Any]] = {
    "broadcast": lambda n: chain(n, n - 1),
    "reduce": lambda n: chain(n, 0),
    "all_reduce_double_tree": two_trees,
    "all_gather_pat": lambda n: pat(n, -1),
    "reduce_scatter_pat": lambda n: pat(n, 1),
}


@pytest.mark.parametrize("pattern", ROOTED)
def test_sim_trace__matrices_of_roots_trees_and_pat(tmp_path: Path, pattern: str) -> None:
    write_trace(simulated(pattern, 8, repeats=2), tmp_path)
    with open_store(tmp_path) as store:
        assert (matrix_of(store).dense_values() == 2 * ROOTED[pattern](8)).all()


@pytest.mark.parametrize("ranks", [16, *RANKS[2:]])
@pytest.mark.parametrize("pattern", ["all_gather_pat", "reduce_scatter_pat"])
def test_sim_trace__pat_of_more_ranks(tmp_path: Path, pattern: str, ranks: int) -> None:
    write_trace(simulated(pattern, ranks), tmp_path)
    with open_store(tmp_path) as store:
        assert (matrix_of(store).dense_values() == ROOTED[pattern](ranks)).all()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("pattern", EXPECTED)
def test_sim_trace__a_matrix_is_what_arithmetic_says(
    tmp_path: Path, pattern: str, ranks: int
) -> None:
    if pattern == "all_to_all" and ranks > 256:
        pytest.skip("a connection for each pair of 1,024 ranks does not fit into memory")
    assert write_trace(simulated(pattern, ranks, repeats=2), tmp_path) == ranks
    with open_store(tmp_path) as store:
        found = matrix_of(store).dense_values()
        assert (found == 2 * EXPECTED[pattern](ranks)).all()
        messages = store.rows("SELECT sum(bytes) FROM messages WHERE sends")
        assert messages == [(int(found.sum()),)]
        assert store.rows("SELECT count(*) FROM operations") == [(2 * ranks,)]


def test_sim_trace__times_are_those_of_the_run(tmp_path: Path) -> None:
    result = simulated("incast", 4)
    write_trace(result, tmp_path)
    with open_store(tmp_path) as store:
        ends = store.rows("SELECT end_ns FROM messages WHERE NOT sends ORDER BY 1")
        assert [end for (end,) in ends] == sorted(result.transfers["received_ns"].tolist())
        assert store.rows("SELECT DISTINCT clock FROM processes") == [(0,)]
        functions = store.rows("SELECT function, count(*) FROM operations GROUP BY 1 ORDER BY 1")
        assert functions == [("Recv", 3), ("Send", 3)]


def test_sim_trace__files_are_whole_and_the_truth_lies_beside_them(tmp_path: Path) -> None:
    result = simulated("all_reduce_ring", 8)
    write_trace(result, tmp_path)
    for path in tmp_path.glob("*.trace"):
        segment = read_segment(path)
        assert (segment.damage, segment.dropped) == ("", 0)
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert truth["fingerprint"] == result.fingerprint
    assert len(truth["ports"]) == len(result.ports)
    carried = sum(row["bytes"] for row in truth["ports"] if row["from"].startswith("host"))
    assert carried >= int(result.scenario.work.transfers["bytes"].sum())


def test_sim_trace__what_did_not_end_has_no_end(tmp_path: Path) -> None:
    scenario = parse(
        "limit_ns = 30000\n[network]\nhosts = 4\n[[workload]]\npattern = 'permutation'\n"
        "size_bytes = 10000000\n"
    )
    simulation = Simulation(scenario)
    while simulation.step():
        pass
    write_trace(simulation.result(), tmp_path)
    with open_store(tmp_path) as store:
        assert store.rows("SELECT count(*) FROM messages") == [(0,)]
        assert store.rows("SELECT count(*), count(end_ns) FROM operations") == [(8, 0)]


@pytest.mark.parametrize(
    "workload",
    [
        "pattern = 'steps'\noperations = [{compute_ns = 1000}]",
        "pattern = 'poisson'\nload = 0.0001\nduration_ns = 1",
    ],
)
def test_sim_trace__a_job_without_transfers_has_an_empty_trace(
    tmp_path: Path, workload: str
) -> None:
    simulation = Simulation(parse(f"[network]\nhosts = 4\n[[workload]]\n{workload}\n"))
    while simulation.step():
        pass
    assert write_trace(simulation.result(), tmp_path) == 4
    with open_store(tmp_path) as store:
        assert store.rows("SELECT rank, world_size, ended FROM processes ORDER BY 1") == [
            (rank, 4, True) for rank in range(4)
        ]
        assert store.rows("SELECT count(*) FROM operations") == [(0,)]
        assert matrix_of(store).dense_values().tolist() == [[0] * 4] * 4


def test_sim_trace__operations_of_steps_are_events_with_names(tmp_path: Path) -> None:
    text = """
limit_ns = 1_000_000
[network]
hosts = 2
[[workload]]
pattern = "steps"
repeats = 2
operations = [
  {name = "forward", compute_ns = 100_000},
  {name = "sum", collective = "all_reduce_ring", size_bytes = 100, group_ranks = 2},
  {name = "long", compute_ns = 500_000},
]
"""
    simulation = Simulation(parse(text))
    while simulation.step():
        pass
    write_trace(simulation.result(), tmp_path)
    with open_store(tmp_path) as store:
        sql = "SELECT process, what, time_ns, value FROM events ORDER BY ALL"
        found = store.rows(sql)
        ((begun, ended),) = store.rows(
            "SELECT min(begin_ns), max(end_ns) FROM operations WHERE process = 0 AND sequence = 0"
        )
    mine = [row[1:] for row in found if row[0] == 0]
    assert len(found) == 2 * len(mine)
    assert next(row for row in mine if row[0] == "sum") == ("sum", begun, ended - begun)
    assert [row for row in mine if row[0] == "forward"] == [
        ("forward", 0, 100_000),
        ("forward", 600_000, 100_000),
    ]
    # 0: the second operation "long" did not end within the limit.
    assert [row for row in mine if row[0] == "long"][1][2] == 0


def test_sim_trace__two_jobs_in_a_folder_stay_apart(tmp_path: Path) -> None:
    write_trace(simulated("incast", 4), tmp_path / "one")
    write_trace(simulated("outcast", 4), tmp_path / "two")
    processes, problems = scan(tmp_path)
    assert (len(processes), problems) == (8, [])
    assert len({process.job for process in processes}) == 2
    cut = tmp_path / "three"
    cut.mkdir()
    for path in (tmp_path / "one").glob("*.trace"):
        (cut / path.name).write_bytes(path.read_bytes()[:-200])
    processes, problems = scan(tmp_path)
    assert len(processes) == 8
    assert all("shorter copy" in one for one in problems)
    assert all("three" not in str(p) for one in processes for p, _ in one.paths.values())


def test_sim_trace__a_full_disk_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = simulated("all_reduce_ring", 2)
    with pytest.raises(OSError, match="/dev/full"):
        TraceFile({}).write(Path("/dev/full"))
    full = OSError(errno.ENOSPC, "No space left on device", "truth.json")
    monkeypatch.setattr("transport.sim.trace.truth", Mock(side_effect=full))
    with pytest.raises(click.ClickException, match=r"cannot write truth\.json: No space"):
        save_trace(result, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_sim_trace__a_folder_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["sim", "incast", "--trace", ""]) == 2
    assert "'--trace': the name is empty" in capsys.readouterr().err


def test_sim_trace__a_stopped_process_records_nothing_until_it_goes_on(tmp_path: Path) -> None:
    at_ns, until_ns = 3_600_000, 6_600_000
    fault = {"kind": "stopped_process", "rank": 21, "at_ns": at_ns, "until_ns": until_ns}
    for path in traced(tmp_path, fault).glob("*.trace"):
        segment = read_rows(path)
        times = np.concatenate(
            [
                rows[name]
                for rows in segment.rows.values()
                for name in ("time_ns", "posted_ns", "first_ns")
                if name in (rows.dtype.names or ())
            ]
        )
        meanwhile = (times >= at_ns) & (times < until_ns)
        assert meanwhile.any() == (segment.header.identity["RANK"] != "21")
        assert (times >= until_ns).any()
