"""Tests jobs that hang at their start, by logs of NCCL, dumps of the Flight Recorder and traces.

Logs and dumps are made up, in the forms of NCCL 2.28 and PyTorch 2.11.
"""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path

from tests.diagnose.support import found_by, invoked
from tests.trace.test_import_flight import dump, entry
from tests.trace.writer import communicator, rank_of
from transport.diagnose import diagnose
from transport.trace import open_store

SECOND = 10**9


def lines(rank: int, *ends: str, ranks: int = 4, comm_id: str = " commId 0x77") -> str:
    """The lines of one rank's start. ends: such as START and COMPLETE."""
    head = f"node{rank}:{100 + rank}:{100 + rank} [0] NCCL INFO "
    made = [f"{head}Bootstrap: Using eth0:10.0.0.{rank + 1}<0>\n"]
    place = f"comm 0x5{rank}0 rank {rank} nranks {ranks} cudaDev 0 nvmlDev 0 busId 1b000{comm_id}"
    made += [f"{head}ncclCommInitRank {place} - Init {end}\n" for end in ends]
    return "".join(made)


def log(folder: Path, text: str, age_s: int = 600, name: str = "job.log") -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(text)
    when_s = time.time() - age_s
    os.utime(file, (when_s, when_s))
    return file


def test_logs__a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    log(tmp_path / "t", "".join(lines(rank, "START") for rank in (0, 1, 3)))
    (one,) = found_by(tmp_path / "t")["findings"]
    assert (one["class"], one["certain"]) == ("initialization_hang", True)
    assert one["place"]["ranks"] == [2]
    assert "3 of 4 ranks began to initialise a communicator of NCCL" in one["evidence"]
    assert "none finished: rank 2 never came; no line names it." in one["evidence"]


def test_logs__without_ids_communicators_are_joined_by_size(tmp_path: Path) -> None:
    text = "".join(lines(rank, "START", comm_id="") for rank in (0, 1, 3))
    log(tmp_path / "t", text)
    (one,) = found_by(tmp_path / "t")["findings"]
    assert one["place"]["ranks"] == [2]


def test_logs__a_process_that_came_to_the_bootstrap_only_is_told(tmp_path: Path) -> None:
    text = "".join(lines(rank, "START") for rank in (0, 1, 3)) + lines(2)
    log(tmp_path / "t", text)
    (one,) = found_by(tmp_path / "t")["findings"]
    assert "These processes came to the bootstrap only: 102 on node2." in one["evidence"]
    assert one["place"]["ranks"] == [2]


def test_logs__of_old_versions_name_processes_only(tmp_path: Path) -> None:
    """Before NCCL 2.23, no rank is named until all have passed the bootstrap."""
    text = "".join(lines(rank) for rank in (0, 1)).replace("Bootstrap:", "Bootstrap :")
    log(tmp_path / "t", text)
    (one,) = found_by(tmp_path / "t")["findings"]
    assert (one["class"], one["place"]["ranks"]) == ("initialization_hang", [])
    assert not one["certain"]
    assert "came to the bootstrap only: 100 on node0, 101 on node1." in one["evidence"]


def test_logs__a_job_that_is_starting_is_only_suspected(tmp_path: Path) -> None:
    log(tmp_path / "t", "".join(lines(rank, "START") for rank in (0, 1, 3)), age_s=5)
    done = invoked("diagnose", tmp_path / "t")
    assert done.exit_code == 4
    assert "suspicion: initialization_hang: rank 2" in done.output


def test_logs__of_single_ranks_may_be_incomplete(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        log(tmp_path / "t", lines(rank, "START"), name=f"rank{rank}.log")
    (one,) = found_by(tmp_path / "t")["findings"]
    assert (one["place"]["ranks"], one["certain"]) == ([2], False)
    assert "Its log may be elsewhere" in one["evidence"]


def test_logs__a_rank_that_does_not_finish_is_named(tmp_path: Path) -> None:
    text = "".join(lines(rank, "START", "COMPLETE") for rank in (0, 1, 3)) + lines(2, "START")
    log(tmp_path / "t", text)
    (one,) = found_by(tmp_path / "t")["findings"]
    assert (one["place"]["ranks"], one["certain"]) == ([2], False)
    assert "rank 2 did not finish, although all came, or its line is missing" in one["evidence"]


def test_logs__if_all_came_and_none_finished_it_is_the_network(tmp_path: Path) -> None:
    log(tmp_path / "t", "".join(lines(rank, "START") for rank in range(4)))
    (one,) = found_by(tmp_path / "t")["findings"]
    assert (one["class"], one["place"]["kind"]) == ("initialization_hang", "network")
    assert "they may not reach each other" in one["evidence"]


def test_logs__a_job_that_started_has_no_such_finding(tmp_path: Path) -> None:
    log(tmp_path / "t", "".join(lines(rank, "START", "COMPLETE") for rank in range(4)))
    assert found_by(tmp_path / "t")["findings"] == []


def dumps(folder: Path, *ranks: int, done: bool = False) -> None:
    folder.mkdir(exist_ok=True)
    for rank in ranks:
        file = folder / f"nccl_trace_rank_{rank}"
        file.write_bytes(pickle.dumps(dump([entry(1, done=done)])))


def test_dumps__the_first_call_waits_and_a_dump_is_missing(tmp_path: Path) -> None:
    dumps(tmp_path / "t", 0, 1, 3)
    (one,) = found_by(tmp_path / "t")["findings"]
    assert (one["class"], one["place"]["ranks"]) == ("initialization_hang", [2])
    assert not one["certain"]  # the dump may be elsewhere
    (tmp_path / "all").mkdir()
    dumps(tmp_path / "all", 0, 1, 2, 3)
    kinds = {one["class"] for one in found_by(tmp_path / "all")["findings"]}
    assert "initialization_hang" not in kinds


def test_joined__logs_and_dumps_agree_on_who_is_missing(tmp_path: Path) -> None:
    dumps(tmp_path / "t", 0, 1, 3)
    log(tmp_path / "t", "".join(lines(rank, "START") for rank in (0, 1, 3)))
    (one,) = found_by(tmp_path / "t")["findings"]
    assert (one["place"]["ranks"], one["certain"]) == ([2], True)
    (said,) = one["more"]["sources"]
    assert said["says"] == "agrees"


def test_joined__a_rank_that_called_elsewhere_did_come(tmp_path: Path) -> None:
    dumps(tmp_path / "t", 0, 1, 2, 3, done=True)
    log(tmp_path / "t", "".join(lines(rank, "START") for rank in (0, 1, 3)))
    (one,) = found_by(tmp_path / "t")["findings"]
    (said,) = one["more"]["sources"]
    assert (said["says"], one["certain"]) == ("disagrees", False)
    assert said["text"] == "rank 2 called operations there"


def traces(folder: Path, made: tuple[int, ...], ranks: tuple[int, ...]) -> Path:
    """Traces of processes that run and have no operation. made: those with a communicator."""
    for rank in ranks:
        one = rank_of(folder, rank, 4)
        one.ended = False
        if rank in made:
            communicator(one, 7, rank, 4, SECOND)
        one.new("event", 90 * SECOND, what="path_up", peer="10.0.0.1")
        one.write()
    return folder


def test_traces__a_process_without_the_communicator_is_named(tmp_path: Path) -> None:
    with open_store(traces(tmp_path, (0, 1, 3), (0, 1, 2, 3))) as store:
        (one,) = diagnose(store).findings
    assert (one.kind, one.place.ranks, one.certain) == ("initialization_hang", (2,), True)
    assert "ranks 0-1, 3 made a communicator, rank 2 did not." in one.evidence


def test_traces__a_communicator_of_a_part_tells_nothing(tmp_path: Path) -> None:
    for rank in range(4):
        one = rank_of(tmp_path, rank, 4)
        one.ended = False
        if rank < 2:
            communicator(one, 7, rank, 2, SECOND)
        one.new("event", 90 * SECOND, what="path_up", peer="10.0.0.1")
        one.write()
    with open_store(tmp_path) as store:
        assert diagnose(store).findings == ()


def test_traces__a_rank_without_a_trace_is_suspected(tmp_path: Path) -> None:
    with open_store(traces(tmp_path, (), (0, 1, 3))) as store:
        (one,) = diagnose(store).findings
    assert (one.kind, one.place.ranks, one.certain) == ("initialization_hang", (2,), False)
    assert "rank 2 left no trace: it never came, or it writes elsewhere." in one.evidence
