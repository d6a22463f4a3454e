"""Tests verdicts on a job of which a trace, dumps of the Flight Recorder and logs of NCCL tell.

Traces are of simulated jobs. Dumps and logs are made from their calls, in the formats of PyTorch
and NCCL; these tools themselves do not run here.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.diagnose.support import found_by, invoked, traced
from tests.trace.writer import AHEAD_NS, channel, communicator, operation, rank_of
from transport.diagnose.diagnosis import Diagnosis
from transport.diagnose.facts import facts_of
from transport.diagnose.finding import Finding, Place
from transport.diagnose.joined import joined, paths_of_rank
from transport.diagnose.told import Told, matched
from transport.trace import open_store
from transport.trace.beside import named, read
from transport.trace.nccl_log import DATATYPES

ABSENT = {"kind": "absent_rank", "rank": 5, "at_step": 4}
SECOND = 10**9
BEGIN_NS = 1_790_000_000 * SECOND
FRAME = {"name": "load", "filename": "/job/data.py", "line": 7}
TORCH_NAMES = {"AllReduce": "all_reduce", "AllGather": "all_gather"}
DTYPES = {"ncclFloat32": "Float", "ncclBfloat16": "BFloat16", "ncclInt8": "Char"}


def calls_of(folder: Path) -> dict[int, list[tuple[str, tuple[int, ...], str, int, str, bool]]]:
    """Rank -> its calls: communicator, its ranks, function, count, datatype, whether it ended."""
    with open_store(folder) as store:
        sql = "SELECT m.comm_id, p.rank FROM comms m JOIN processes p USING (process) ORDER BY 1, 2"
        members: dict[int, list[int]] = defaultdict(list)
        for comm, rank in store.rows(sql):
            members[comm].append(rank)
        rows = store.rows(
            "SELECT p.rank, m.comm_id, o.function, o.count, o.datatype, "
            "coalesce(bool_and(c.end_ns IS NOT NULL), false) "
            "FROM operations o JOIN processes p USING (process) "
            "JOIN comms m ON m.process = o.process AND m.id = o.comm "
            "LEFT JOIN channels c ON c.process = o.process AND c.operation = o.id "
            "WHERE o.kind = 'collective' "
            "GROUP BY p.rank, m.comm_id, o.function, o.count, o.datatype, o.begin_ns, o.id "
            "ORDER BY o.begin_ns, o.id"
        )
    made: dict[int, list[Any]] = defaultdict(list)
    for rank, comm, function, count, datatype, ended in rows:
        ranks = tuple(members[comm])
        made[rank].append(
            (f"pg{min(ranks)}of{len(ranks)}", ranks, function, count, datatype, ended)
        )
    return made


def dumped(folder: Path, calls: dict[int, list[Any]], keep: int = 1000) -> list[Path]:
    """Writes a dump of the Flight Recorder for each rank, with its last `keep` calls."""
    folder.mkdir(exist_ok=True)
    files = []
    for rank, mine in calls.items():
        config, entries = {}, []
        turn: dict[str, int] = defaultdict(int)
        for at, (name, ranks, function, count, datatype, ended) in enumerate(mine):
            config[name] = {"name": name, "desc": name, "ranks": str(list(ranks))}
            turn[name] += 1
            created_ns = BEGIN_NS + at * 10**9
            entries.append(
                {
                    "frames": [FRAME],
                    "process_group": [name, name],
                    "collective_seq_id": turn[name],
                    "p2p_seq_id": 0,
                    "profiling_name": f"nccl:{TORCH_NAMES[function]}",
                    "time_created_ns": created_ns,
                    "input_sizes": [[count]],
                    "input_dtypes": [DTYPES[datatype]],
                    "output_sizes": [[count]],
                    "output_dtypes": [DTYPES[datatype]],
                    "state": "completed" if ended else "scheduled",
                    "time_discovered_completed_ns": created_ns + 10**8 if ended else None,
                    "retired": ended,
                    "timeout_ms": 600_000,
                }
            )
        file = folder / f"nccl_trace_rank_{rank}"
        dump = {"version": "2.10", "pg_config": config, "entries": entries[-keep:]}
        file.write_bytes(pickle.dumps(dump))
        files.append(file)
    return files


def logged(file: Path, calls: dict[int, list[Any]]) -> Path:
    """Writes NCCL's log of all ranks."""
    lines = []
    for rank, mine in calls.items():
        head = f"node{rank}:{100 + rank}:{100 + rank} [0] NCCL INFO "
        whole = f"comm 0x9{rank} rank {rank} nranks {len(calls)} cudaDev 0"
        lines.append(f"{head}ncclCommInitRank {whole} commId 0x77 - Init COMPLETE\n")
        made: dict[str, str] = {}
        for name, ranks, function, count, datatype, _ in mine:
            address = made.get(name)
            if address is None:
                address = made[name] = f"0x{len(made) + 1}{rank:04}0"
                place = f"rank {ranks.index(rank)} nranks {len(ranks)}"
                uid = int.from_bytes(name.encode(), "big") & 0xFFFF_FFFF
                text = f"comm {address} {place} cudaDev 0 commId 0x{uid:x} - Init COMPLETE"
                lines.append(f"{head}ncclCommInitRank {text}\n")
            call = f"count {count} datatype {DATATYPES.index(datatype)} op 0 root 0 comm {address}"
            lines.append(
                f"{head}{function}: opCount 0 sendbuff 0x1 recvbuff 0x2 {call} "
                f"[nranks={len(ranks)}] stream (nil)\n"
            )
    file.write_text("".join(lines))
    return file


def without(folder: Path, rank: int) -> None:
    """Removes the trace of a rank."""
    with open_store(folder) as store:
        ((trace,),) = store.rows("SELECT trace FROM processes WHERE rank = ?", rank)
    for one in folder.glob(f"weft-{trace}-*.trace"):
        one.unlink()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return traced(tmp_path / "t", ABSENT)


def test_joined__dumps_agree_with_the_trace_and_bring_the_stack(job: Path, tmp_path: Path) -> None:
    dumped(job, calls_of(job))
    found = found_by(job)
    (first,) = found["findings"]
    assert (first["class"], first["place"]["ranks"]) == ("non_communication_hang", [5])
    assert first["certain"]
    (said,) = first["more"]["sources"]
    assert (said["source"], said["says"]) == ("Flight Recorder", "agrees")
    assert "Its last call came from /job/data.py:7 in load (Flight Recorder)." in first["evidence"]
    assert "Its paths to ranks " in first["evidence"]
    assert found["notes"][0].startswith("joined: weft's trace (32 processes), Flight Recorder (32")


def test_joined__a_rank_without_a_trace_is_named_by_its_dump(job: Path, tmp_path: Path) -> None:
    files = dumped(tmp_path / "dumps", calls_of(job), keep=4)
    without(job, 5)
    alone = found_by(job)
    assert not any(one["certain"] for one in alone["findings"])
    given = [word for file in files for word in ("--with", file)]
    for words in (given, ["--with", tmp_path / "dumps"]):
        (first,) = found_by(job, *words)["findings"]
        assert (first["place"]["ranks"], first["certain"]) == ([5], True)


def test_joined__a_source_that_says_the_opposite_leaves_nothing_certain(
    job: Path, tmp_path: Path
) -> None:
    calls = calls_of(job)
    calls[5] = calls[4][:]  # the dump says that the absent rank called what its neighbour called
    dumped(job, calls)
    done = invoked("diagnose", job)
    assert done.exit_code == 4
    (first,) = found_by(job)["findings"]
    (said,) = first["more"]["sources"]
    assert (first["place"]["ranks"], first["certain"]) == ([5], False)
    assert (said["says"], "rank 5 did call it there" in said["text"]) == ("disagrees", True)


def test_joined__logs_count_calls(job: Path, tmp_path: Path) -> None:
    log = logged(tmp_path / "job.log", calls_of(job))
    (first,) = found_by(job, "--with", log)["findings"]
    (said,) = first["more"]["sources"]
    assert (said["source"], said["says"]) == ("NCCL's log", "agrees")
    assert first["certain"]


def test_joined__a_log_tells_of_a_rank_without_a_trace(job: Path, tmp_path: Path) -> None:
    log = logged(tmp_path / "job.log", calls_of(job))
    without(job, 5)
    (first,) = found_by(job, "--with", log)["findings"]
    assert (first["class"], first["place"]["ranks"]) == ("non_communication_hang", [5])
    assert not first["certain"]  # the last lines of a log may be missing
    assert "as NCCL's log tells, it did not call it" in first["evidence"]


def test_joined__a_folder_without_a_trace_needs_no_import(job: Path, tmp_path: Path) -> None:
    dumped(tmp_path / "dumps", calls_of(job))
    (first,) = found_by(tmp_path / "dumps")["findings"]
    assert (first["place"]["ranks"], first["certain"]) == ([5], True)


def test_joined__healthy_sources_say_nothing(tmp_path: Path) -> None:
    folder = traced(tmp_path / "t")
    dumped(folder, calls_of(folder))
    done = invoked("diagnose", folder)
    assert done.exit_code == 0, done.output
    assert "note: joined: weft's trace (32 processes)" in done.output


def test_joined__files_of_another_kind_are_left_out_or_refused(tmp_path: Path) -> None:
    folder = traced(tmp_path / "t")
    (folder / "rank_0").write_text("nothing")
    (folder / "nccl_trace_rank_1").write_bytes(b"\x80\x04pg_config")
    (folder / "notes.json").write_text('{"entries": 3}')
    done = invoked("diagnose", folder)
    assert done.exit_code == 0, done.output
    assert "nccl_trace_rank_1 is left out" in done.output
    with (folder / "job.log").open("wb") as log:
        log.write(b"node0:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n")
        log.truncate((1 << 30) + 1)
    done = invoked("diagnose", folder)
    assert "job.log is left out: it is larger than 1 GiB: use --with" in done.output
    (folder / "job.log").unlink()
    done = invoked("diagnose", folder, "--with", folder / "rank_0")
    assert done.exit_code == 2
    assert "rank_0 is neither a dump of the Flight Recorder, nor a log of NCCL" in done.output
    (tmp_path / "empty").mkdir()
    done = invoked("diagnose", folder, "--with", tmp_path / "empty")
    assert (done.exit_code, "has no dump" in done.output) == (2, True)


def told_of(*files: Path) -> Told:
    (source,), _ = read(named(files), {})
    with source.store as store:
        facts = facts_of(store)
        return Told(source.name, facts, Diagnosis((), 0, 0, 0, ()))


def two_groups() -> dict[int, list[Any]]:
    """Calls of four ranks in two communicators of the same ranks, which differ in their sizes."""
    ranks = (0, 1, 2, 3)
    calls = [
        ("dp", ranks, "AllReduce", 100, "ncclFloat32", True),
        ("tp", ranks, "AllReduce", 7, "ncclFloat32", True),
        ("dp", ranks, "AllGather", 300, "ncclFloat32", True),
    ]
    return dict.fromkeys(ranks, calls * 5)


def test_told__communicators_of_the_same_ranks_are_told_by_their_calls(tmp_path: Path) -> None:
    one = told_of(*dumped(tmp_path / "dumps", two_groups()))
    other = told_of(logged(tmp_path / "job.log", two_groups()))
    shifts = []
    for group in one.groups.values():
        match = matched(one, group, other)
        assert match is not None
        keys = {key[:2] for key in group.calls[0].keys.values()}
        assert {key[:2] for key in match.group.calls[0].keys.values()} == keys
        shifts.append(match.shift)
    assert shifts == [-1, -1]  # PyTorch numbers from 1, a log from 0


def test_told__a_buffer_that_wrapped_is_aligned_by_its_calls(tmp_path: Path) -> None:
    calls = {
        rank: [("dp", (0, 1), "AllReduce", at * at, "ncclFloat32", True) for at in range(12)]
        for rank in (0, 1)
    }
    one = told_of(*dumped(tmp_path / "dumps", calls, keep=5))
    other = told_of(logged(tmp_path / "job.log", calls))
    (group,) = one.groups.values()
    match = matched(one, group, other)
    assert match is not None
    assert (group.calls[0].first, match.shift) == (8, -1)


def test_told__what_is_not_clear_is_not_matched(tmp_path: Path) -> None:
    """All calls are alike, and neither source has the first one nor a time of day in common."""
    calls = {
        rank: [("dp", (0, 1), "AllReduce", 8, "ncclFloat32", True) for _ in range(12)]
        for rank in (0, 1)
    }
    one = told_of(*dumped(tmp_path / "dumps", calls, keep=5))
    other = told_of(logged(tmp_path / "job.log", calls))
    (group,) = one.groups.values()
    assert matched(one, group, other) is None


def test_joined__paths_that_are_lost_are_told(tmp_path: Path) -> None:
    none: dict[str, Any] = {name: np.zeros(0) for name in ("source", "target", "path", "time_ns")}
    downs = {
        "source": np.array([0, 0, 0, 1]),
        "target": np.array([1, 1, 2, 0]),
        "path": np.array([0, 0, 1, 3]),
        "time_ns": np.array([5, 9, 5, 6]),
        "what": np.array(["path_down", "path_up", "path_down", "timeout"]),
    }
    ranks = [SimpleNamespace(rank=one) for one in range(3)]
    facts: Any = SimpleNamespace(processes=ranks, samples=none, downs=downs)
    assert paths_of_rank(facts, 0) == {1: (0, 1), 2: (1, 1)}


def running(folder: Path, ranks: int = 2, first_pid: int | None = None) -> Path:
    """A trace at times of day, of ranks that all wait in the last of five AllReduces."""
    folder.mkdir()
    for rank in range(ranks):
        one = rank_of(folder, rank, ranks)
        one.ended = False
        if first_pid is not None:
            one.pid = first_pid + rank
        comm = communicator(one, 7, rank, ranks)
        for at in range(5):
            begin_ns = at * SECOND
            op = operation(one, comm, "AllReduce", begin_ns, begin_ns + 1000, count=4, sequence=at)
            if at < 4:
                channel(one, comm, op, 1 - rank, 64, begin_ns + 10, begin_ns + SECOND // 2)
        one.write()
    return folder


@pytest.mark.parametrize(
    ("ranks", "later_ns", "why"),
    [
        (3, 0, "Flight Recorder is left out: it is of a job of 3 ranks, and not of 2"),
        (2, 7 * 86_400 * SECOND, "Flight Recorder is left out: it is of another time, 168 h"),
        (2, 0, "joined: weft's trace (2 processes), Flight Recorder (2 processes)"),
    ],
)
def test_joined__dumps_of_other_runs_are_left_out(
    tmp_path: Path, ranks: int, later_ns: int, why: str
) -> None:
    job = running(tmp_path / "t")
    calls = ("dp", tuple(range(ranks)), "AllReduce", 4, "ncclFloat32", True)
    files = dumped(tmp_path / "dumps", {rank: [calls] * 5 for rank in range(ranks)})
    for file in files:
        found = pickle.loads(file.read_bytes())
        for entry in found["entries"]:
            for name in ("time_created_ns", "time_discovered_completed_ns"):
                entry[name] += AHEAD_NS - BEGIN_NS + later_ns
        file.write_bytes(pickle.dumps(found))
    assert why in "; ".join(found_by(job, "--with", tmp_path / "dumps")["notes"])


def test_logs__alone_tell_who_called_less_when_others_ran_into_the_timeout(tmp_path: Path) -> None:
    one = ("dp", (0, 1, 2), "AllReduce", 4, "ncclFloat32", True)
    calls = {rank: [one] * (5 - (rank == 1)) for rank in range(3)}
    (tmp_path / "t").mkdir()
    log = logged(tmp_path / "t" / "job.log", calls)
    (nothing,) = [found_by(tmp_path / "t")["findings"]]
    assert nothing == []  # without a timeout, the log may just end there
    late = "[rank{0}]:[E ProcessGroupNCCL.cpp:523] [Rank {0}] Watchdog caught collective operation "
    late += (
        "timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000"
    )
    late += ") ran for 600072 milliseconds before timing out.\n"
    log.write_text(log.read_text() + late.format(0) + late.format(2))
    (first,) = found_by(tmp_path / "t")["findings"]
    assert (first["class"], first["place"]["ranks"]) == ("non_communication_hang", [1])
    assert "ranks 0, 2 ran into PyTorch's timeout." in first["evidence"]
    assert "rank 1 called 4 operations of a communicator, and others 5." in first["evidence"]
    assert not first["certain"]


ABSENCE, NETWORK = "non_communication_hang", "communication_hang"


def verdict(kind: str, place: str, *ranks: int, certain: bool = True) -> Told:
    """A source without calls that has one verdict."""
    name = f"{place} {ranks}"
    one = Finding(kind, Place(place, name, ranks), 1, 2, 0.9, certain, "It is so.", "", "")
    found = Diagnosis((one,), 0, 0, 4, ())
    facts: Any = SimpleNamespace(
        processes=[SimpleNamespace(rank=rank) for rank in range(4)],
        samples={name: np.zeros(0) for name in ("source", "target", "path", "time_ns")},
        downs={name: np.zeros(0) for name in ("source", "target", "path", "time_ns", "what")},
    )
    return Told(f"source of {name}", facts, found)


@pytest.mark.parametrize(
    ("first", "second", "ranks", "says", "certain"),
    [
        # A dead NIC is why its rank does not call.
        ((ABSENCE, "rank", 3), (NETWORK, "nic", 3), [3], "agrees", True),
        # All called: that contradicts no dead NIC.
        ((NETWORK, "nic", 3), (NETWORK, "pair"), [3], "agrees", True),
        ((NETWORK, "nic", 3), (NETWORK, "pair", 0, 1), [3], "does not tell", True),
        # Two ranks that are said to be absent.
        ((ABSENCE, "rank", 3), (ABSENCE, "rank", 1), [3], "disagrees", False),
        (("crash", "rank", 3), (ABSENCE, "rank", 1), [3], "disagrees", False),
        ((ABSENCE, "rank", 3), ("crash", "rank", 3), [3], "agrees", True),
        (("mismatch", "rank", 3), (ABSENCE, "rank", 1), [3], "does not tell", True),
    ],
)
def test_joined__of_two_verdicts_the_more_telling_counts(
    first: Any, second: Any, ranks: list[int], says: str, certain: bool
) -> None:
    (one,) = joined([verdict(*first), verdict(*second)]).findings
    assert list(one.place.ranks) == ranks
    assert [each["says"] for each in one.more["sources"]] == [says]
    assert one.certain == certain
