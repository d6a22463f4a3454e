"""Tests verdicts on a job of which a trace, dumps or logs tell, and statuses of NCCL's RAS as well.

Traces are of a simulated job; the statuses are made from its calls, in the shape of NCCL 2.28.9.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.support import found_by, traced
from tests.diagnose.test_joined import ABSENT, calls_of, dumped, logged, running, without
from tests.trace.ras import comm, missing, rank, status, text

LATER = "12:00:30"
WORLD = 0x1000  # the communicator of all


def asked(
    file: Path,
    calls: dict[int, list[Any]],
    *,
    silent: int = -1,
    times: int = 2,
    first_pid: int = 500,
) -> Path:
    """Writes the statuses that RAS gives of a job that stands still after these calls."""
    counts: dict[tuple[int, ...], dict[int, Counter[str]]] = defaultdict(dict)
    for member, mine in calls.items():
        for _, ranks, function, _, _, _ in mine:
            counts[ranks].setdefault(member, Counter())[function] += 1
    comms = []
    for at, (ranks, of_rank) in enumerate([(tuple(sorted(calls)), {}), *counts.items()]):
        answers = [
            rank(n, one, of_rank.get(one, {})) for n, one in enumerate(ranks) if one != silent
        ]
        gone = [missing(n, one) for n, one in enumerate(ranks) if one == silent]
        for one in (*answers, *gone):
            one["pid"] += first_pid - 500
        comms.append(comm(WORLD + at, answers, gone))
    each = [text(status(comms, at)) for at in ("12:00:00", LATER)[:times]]
    file.write_text("".join(each))
    return file


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job in which rank 5 does not call what the others wait in."""
    return traced(tmp_path / "t", ABSENT)


def first_of(*words: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first finding, and what the first other source says of it."""
    found = found_by(*words)
    one = found["findings"][0]
    return one, one["more"]["sources"][0]


def test_joined__ras_agrees_with_the_trace(job: Path, tmp_path: Path) -> None:
    one, said = first_of(job, "--with", asked(tmp_path / "ras.json", calls_of(job)))
    assert (one["class"], one["place"]["ranks"], one["certain"]) == (
        "non_communication_hang",
        [5],
        True,
    )
    assert (said["source"], said["says"]) == ("NCCL RAS", "agrees")
    own = sum(call[1] == tuple(range(8)) for call in calls_of(job)[5])
    assert said["text"] == f"rank 5 launched {own} AllReduces there, and ranks 0-4, 6-7 {own + 1}"
    assert "NCCL RAS agrees: rank 5 launched" in one["evidence"]


def test_joined__ras_names_a_rank_without_a_trace(job: Path, tmp_path: Path) -> None:
    file = asked(tmp_path / "ras.json", calls_of(job))
    without(job, 5)
    assert not any(one["certain"] for one in found_by(job)["findings"])
    one, _ = first_of(job, "--with", file)
    assert (one["place"]["ranks"], one["certain"]) == ([5], True)
    assert one["evidence"].startswith("rank 5 did not launch AllReduce")


def test_joined__ras_in_the_folder_of_the_trace_is_found(job: Path) -> None:
    asked(job / "ras.json", calls_of(job))
    assert "NCCL RAS (32 processes)" in found_by(job)["notes"][0]


def test_joined__ras_that_says_the_opposite_leaves_nothing_certain(
    job: Path, tmp_path: Path
) -> None:
    calls = calls_of(job)
    calls[5] = calls[4][:]  # rank 5 launched what its neighbour launched
    one, said = first_of(job, "--with", asked(tmp_path / "ras.json", calls))
    assert (one["place"]["ranks"], one["certain"], said["says"]) == ([5], False, "disagrees")
    assert "as many as the others, and nothing moved for 30 s" in said["text"]


def test_joined__one_status_contradicts_nothing(job: Path, tmp_path: Path) -> None:
    """It may be older than the hang."""
    calls = calls_of(job)
    calls[5] = calls[4][:]
    one, said = first_of(job, "--with", asked(tmp_path / "ras.json", calls, times=1))
    assert (one["certain"], said["says"]) == (True, "does not tell")


def test_joined__a_rank_that_does_not_answer_ras_agrees(job: Path, tmp_path: Path) -> None:
    file = asked(tmp_path / "ras.json", calls_of(job), silent=5)
    one, said = first_of(job, "--with", file)
    assert (one["place"]["ranks"], one["certain"], said["says"]) == ([5], True, "agrees")
    assert said["text"] == "rank 5 did not answer it"


@pytest.mark.parametrize("other", ["Flight Recorder", "NCCL's log"])
def test_joined__other_sources_agree_with_ras(job: Path, tmp_path: Path, other: str) -> None:
    """A log alone does not tell that a job hangs, and dumps do; both know who called less."""
    folder = tmp_path / "beside"
    folder.mkdir()
    whole = ("world", tuple(range(32)), "AllReduce", 1, "ncclFloat32", True)
    calls = {member: [whole, *mine] for member, mine in calls_of(job).items()}
    asked(folder / "ras.json", calls, first_pid=100)
    if other == "Flight Recorder":
        dumped(folder, calls)
    else:
        logged(folder / "job.log", calls)
    one, said = first_of(folder)
    assert (one["place"]["ranks"], one["certain"], said["says"]) == ([5], True, "agrees")


def test_joined__ras_beside_a_healthy_trace_leaves_its_answer(tmp_path: Path) -> None:
    job = traced(tmp_path / "t")
    found = found_by(job, "--with", asked(tmp_path / "ras.json", calls_of(job), times=1))
    assert (found["answer"], found["findings"]) == ("healthy", [])


def test_joined__ranks_that_did_launch_contradict_a_start_that_hangs(
    job: Path, tmp_path: Path
) -> None:
    """A log says that rank 1 never came, and RAS that it launched operations."""
    folder = tmp_path / "beside"
    folder.mkdir()
    calls = [("dp", (0, 1), "AllReduce", 4, "ncclFloat32", True)]
    asked(folder / "ras.json", {0: calls, 1: calls}, times=1, first_pid=100)
    line = "n0:100:100 [0] NCCL INFO ncclCommInitRank comm 0x90 rank 0 nranks 2 cudaDev 0 "
    (folder / "job.log").write_text(f"{line}commId 0x1 - Init START\n")
    one, said = first_of(folder)
    assert (one["class"], one["place"]["ranks"]) == ("initialization_hang", [1])
    assert (said["says"], said["text"]) == ("disagrees", "rank 1 launched operations")


@pytest.mark.parametrize(("first", "why"), [(500, "joined: weft's trace"), (700, "is left out")])
def test_joined__statuses_of_other_processes_are_left_out(
    tmp_path: Path, first: int, why: str
) -> None:
    """The statuses are of processes 500 and 501."""
    job = running(tmp_path / "t", first_pid=first)
    file = asked(tmp_path / "ras.json", {n: [] for n in range(2)})
    notes = "; ".join(found_by(job, "--with", file)["notes"])
    assert why in notes
    assert ("its ranks are other processes" in notes) == (first == 700)
