"""Tests baselines: faults that were there from the first iteration, beside a healthy trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.diagnose.test_answers import RANKS, job, written
from transport.cli import weft


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    written(folder / "trace", job())
    file = folder / "baseline.json"
    done = run("diagnose", folder / "trace", "--save", file)
    assert (done.exit_code, file.exists()) == (0, True), done.output
    return file


def slower(rank: int) -> dict[str, Any]:
    return {"kind": "straggler", "rank": rank, "at_step": 0, "compute_factor": 1.5}


def judged(folder: Path, saved: Path, *faults: dict[str, Any], seed: int = 5) -> dict[str, Any]:
    written(folder, job(*faults) | {"seed": seed})
    alone = run("diagnose", folder, "--json", "-")
    done = run("diagnose", folder, "--baseline", saved, "--json", "-")
    found: dict[str, Any] = json.loads(done.output)
    return found | {"status": done.exit_code, "alone": json.loads(alone.output)["answer"]}


def test_baseline__another_healthy_run_is_healthy(tmp_path: Path, saved: Path) -> None:
    found = judged(tmp_path, saved)
    assert (found["answer"], found["status"]) == ("healthy", 0)


def test_baseline__all_ranks_slower_from_the_start_is_slower(tmp_path: Path, saved: Path) -> None:
    found = judged(tmp_path, saved, *(slower(rank) for rank in range(RANKS)))
    assert (found["alone"], found["answer"], found["status"]) == (
        "healthy",
        "slower but unexplained",
        3,
    )
    assert "times as long as in the baseline" in found["unexplained"]
    assert "all ranks take" in found["unexplained"]


def test_baseline__a_group_that_is_slower_from_the_start_is_named(
    tmp_path: Path, saved: Path
) -> None:
    found = judged(tmp_path, saved, *(slower(rank) for rank in range(8)))
    (one,) = found["findings"]
    assert (one["place"]["name"], one["certain"]) == ("ranks 0-7", True)
    assert "compared with the baseline" in one["evidence"]


def test_baseline__a_nic_that_is_slow_from_the_start_shows_its_pairs(
    tmp_path: Path, saved: Path
) -> None:
    fault = {"kind": "slow_nic", "rank": 3, "at_ns": 0, "rate_factor": 0.6, "side": "both"}
    found = judged(tmp_path, saved, fault)
    assert found["status"] in (1, 3)
    said = str(found["unexplained"]) + str(found["findings"])
    assert "rank 3" in said


def test_baseline__is_not_saved_of_a_job_that_is_not_healthy(tmp_path: Path) -> None:
    written(tmp_path / "trace", job(steps=4))
    done = run("diagnose", tmp_path / "trace", "--save", tmp_path / "b.json")
    assert done.exit_code == 4
    assert "was not written: the job is not healthy" in done.output
    assert not (tmp_path / "b.json").exists()


def test_baseline__of_another_job_is_refused(tmp_path: Path, saved: Path) -> None:
    tables = job()
    tables["workload"][0]["operations"][1]["size_bytes"] = 4_000_000
    written(tmp_path, tables)
    done = run("diagnose", tmp_path, "--baseline", saved)
    assert (done.exit_code, "the baseline is of another job" in done.output) == (2, True)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weft_baseline": 2}', '{"weft_baseline": 1, "own_ns": 3}', "[" * 99_999],
)
def test_baseline__damaged_files_are_one_line(tmp_path: Path, saved: Path, text: str) -> None:
    file = tmp_path / "b.json"
    file.write_text(text)
    done = run("diagnose", saved.parent / "trace", "--baseline", file)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert "baseline" in done.output
