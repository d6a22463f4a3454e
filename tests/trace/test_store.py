"""Tests the tables into which the traces of several processes are read."""

import builtins
import random
from pathlib import Path
from typing import Any

import pytest

from transport.diagnose import Answer, diagnose
from transport.trace import read_segment
from transport.trace.layout import TraceError
from transport.trace.store import Store, TraceExtraError, open_store
from transport.trace.tables import TABLES

from .writer import (
    AHEAD_NS,
    Process,
    block,
    channel,
    communicator,
    message,
    operation,
    rank_of,
)


def one(store: Store, sql: str) -> Any:
    ((value,),) = store.rows(sql)
    return value


def test_store__begins_and_ends_are_joined_and_times_are_since_1970(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    comm = communicator(process, (1 << 64) - 2, 0, 1, 10, name="world")
    made = operation(process, comm, "AllReduce", 100, 250, count=3, sequence=7)
    channel(process, comm, made, 0, 12, 110, 240)
    process.put("communicator_end", comm, 900)
    process.write()
    with open_store(tmp_path) as store:
        assert store.rows("SELECT comm_id, name, ranks, begin_ns, end_ns FROM comms") == [
            ((1 << 64) - 2, "world", 1, AHEAD_NS + 10, AHEAD_NS + 900)
        ]
        assert store.rows(
            "SELECT process, id, comm, sequence, function, kind, bytes, root, begin_ns, end_ns, "
            "captured FROM operations"
        ) == [
            (
                0,
                made,
                comm,
                7,
                "AllReduce",
                "collective",
                12,
                None,
                AHEAD_NS + 100,
                AHEAD_NS + 250,
                False,
            )
        ]
        sql = "SELECT operation, peer, sends, bytes, messages, end_ns - begin_ns FROM channels"
        assert store.rows(sql) == [(made, 0, True, 12, 1, 130)]
        (note,) = store.notes()
        assert note.startswith("nothing is recorded of weft as the network")
        row = store.rows("SELECT host, pid, rank, world_size, records, first_ns FROM processes")
        assert row == [("node0", 100, 0, 1, 7, AHEAD_NS + 10)]


def test_store__later_records_can_be_left_out(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    comm = communicator(process, 1, 0, 1, 10)
    operation(process, comm, "AllReduce", 100, 250)
    operation(process, comm, "AllReduce", 240, 260)
    process.write()
    with open_store(tmp_path, until_ns=AHEAD_NS + 245) as store:
        rows = store.rows("SELECT begin_ns, end_ns FROM operations ORDER BY id")
        assert rows == [(AHEAD_NS + 100, None), (AHEAD_NS + 240, None)]
        assert one(store, "SELECT last_ns FROM processes") == AHEAD_NS + 240


def test_store__what_began_in_a_removed_file_is_kept_with_nulls(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    comm = communicator(process, 5, 0, 1)
    made = operation(process, comm, "AllReduce", 100, 250)
    channel(process, comm, made, 0, 12, 110, 240)
    first = process.write()
    process.put("operation_end", 77, 300)
    process.put("channel_end", 78, 300, bytes=5)
    process.put("communicator_end", 79, 300)
    process.write()
    first.unlink()
    with open_store(tmp_path) as store:
        ends = "SELECT id, function, kind, bytes, begin_ns, end_ns FROM operations"
        assert store.rows(ends) == [(77, None, None, None, None, AHEAD_NS + 300)]
        sql = "SELECT id, operation, sends, bytes FROM channels"
        assert store.rows(sql) == [(78, None, None, 5)]
        assert store.rows("SELECT id, rank FROM comms ORDER BY id") == [(comm, 0), (79, None)]
        assert store.notes()[1:] == [
            "1 older files of 1 processes were removed: the start is missing"
        ]


def test_store__files_missing_between_others_are_named(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    communicator(process, 5, 0, 1)
    written = [process.write() for _ in range(8)]
    for at in (0, 2, 4, 5):
        written[at].unlink()
    with open_store(tmp_path) as store:
        assert one(store, "SELECT removed FROM processes") == 1
        assert store.notes() == [
            "1 older files of 1 processes were removed: the start is missing",
            "rank 0 (process 100 of node0): file 2 is missing; files 4 to 5 are missing",
        ]


def test_store__communicators_that_several_files_repeat_are_one_row(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    communicator(process, 5, 0, 1)
    for at in range(3):
        process.new("event", at, what="loss", value=at)
        process.write()
    with open_store(tmp_path) as store:
        assert one(store, "SELECT count(*) FROM comms") == 1
        assert store.rows("SELECT what, value FROM events ORDER BY time_ns") == [
            ("loss", 0),
            ("loss", 1),
            ("loss", 2),
        ]


def test_store__datatypes_give_sizes_and_unknown_ones_none(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    comm = communicator(process, 5, 0, 1)
    for at, datatype in enumerate(("ncclBfloat16", "ncclInt8", "ncclFloat64", "ncclNew")):
        operation(process, comm, "AllReduce", at, at, count=10, datatype=datatype)
    process.write()
    with open_store(tmp_path) as store:
        found = store.rows("SELECT bytes FROM operations ORDER BY id")
        assert found == [(20,), (10,), (80,), (None,)]


def test_store__a_second_process_with_the_same_pid_stays_apart(tmp_path: Path) -> None:
    for attempt in (0, 1):
        process = rank_of(tmp_path, 0, 1, TORCHELASTIC_RESTART_COUNT=str(attempt))
        process.name = f"{attempt:016x}"
        comm = communicator(process, 50 + attempt, 0, 1)
        operation(process, comm, "AllReduce", 1, 2)
        process.write()
    with open_store(tmp_path) as store:
        sql = "SELECT process, attempt, pid, (SELECT any_value(comm_id) FROM comms c"
        sql += " WHERE c.process = p.process) FROM processes p ORDER BY process"
        assert store.rows(sql) == [(0, 0, 100, 50), (1, 1, 100, 51)]
        assert "restarted" in "".join(store.notes())


def test_store__processes_are_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    ranks = list(range(12))
    random.Random(1).shuffle(ranks)
    for rank in ranks:
        process = rank_of(tmp_path, rank, 12)
        process.name = f"{random.Random(rank).getrandbits(64):016x}"
        process.write()
    with open_store(tmp_path) as store:
        found = store.rows("SELECT process, rank FROM processes ORDER BY process")
        assert found == [(rank, rank) for rank in range(12)]


def test_store__missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 1, 5):
        rank_of(tmp_path, rank, 8).write()
    with open_store(tmp_path) as store:
        assert store.notes()[0] == "no trace of ranks 2-4, 6-7 (of 8)"


def test_store__missing_ranks_are_found_in_communicators_too(tmp_path: Path) -> None:
    process = Process(tmp_path)
    communicator(process, 5, 1, 4)
    process.write()
    with open_store(tmp_path) as store:
        assert store.notes() == ["no trace of ranks 0, 2-3 (of 4)"]


def test_store__two_jobs_are_said_and_one_can_be_chosen(tmp_path: Path) -> None:
    for at, job in enumerate(("17", "18", "18")):
        process = rank_of(tmp_path, 0, 1, SLURM_JOB_ID=job, TORCHELASTIC_RUN_ID="none")
        process.name = f"{at:016x}"
        communicator(process, at, 0, 1)
        process.write()
    with open_store(tmp_path) as store:
        assert store.jobs() == [("17", 1), ("18", 2)]
        notes = "the folder has traces of 2 jobs: 17 (1 processes), 18 (2 processes)"
        assert store.notes()[0] == notes
    with open_store(tmp_path, job="18") as store:
        assert one(store, "SELECT count(*) FROM comms") == 2
    with pytest.raises(TraceError, match="no traces of the job '19', only of '17', '18'"):
        open_store(tmp_path, job="19")


def test_store__two_runs_in_one_folder_are_said(tmp_path: Path) -> None:
    for run, began_ns in enumerate((0, 1_000_000)):
        for rank in range(2):
            process = rank_of(tmp_path, rank, 2, 2)
            process.pid += 10 * run
            process.name = f"{10 * run + rank + 1:016x}"
            communicator(process, 9, rank, 2, began_ns)
            process.write()
    with open_store(tmp_path) as store:
        said = "two runs in one folder: ranks 0-1 twice; their numbers are added together"
        assert said in "".join(store.notes())
        found = diagnose(store)
        assert (found.answer, found.findings) == (Answer.NOT_JUDGED, ())
        assert "ranks 0-1 twice: give each run its own folder" in found.evidence.lacks[0].text


def test_store__processes_of_a_rank_at_the_same_time_are_one_run(tmp_path: Path) -> None:
    for number in range(2):
        process = rank_of(tmp_path, 0, 1)
        process.pid += number
        process.name = f"{number + 1:016x}"
        communicator(process, 9, 0, 1, 0)
        communicator(process, 10, 0, 1, 1_000_000)
        process.write()
    with open_store(tmp_path) as store:
        assert "two runs" not in "".join(store.notes())


def test_store__damage_and_losses_are_said(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    communicator(process, 5, 0, 1)
    process.dropped = 9
    path = process.write()
    path.write_bytes(path.read_bytes() + b"wblk")
    (tmp_path / "weft-other.trace").write_bytes(b"weft")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    with open_store(tmp_path) as store:
        said = "\n".join(store.notes())
        assert "weft-other.trace is left out: not a trace" in said
        assert "is left out: it is a copy of" in said
        assert "1 processes dropped 9 records" in said
        assert "(process 100 of node0): " in said
        assert "the last block is cut off" in said


def test_store__a_trace_without_end_is_said(tmp_path: Path) -> None:
    for rank, (ended, text) in enumerate([(True, ""), (False, ""), (False, "record 1 text 16\n")]):
        process = rank_of(tmp_path, rank, 3, per_node=3)
        process.ended = ended
        process.write(text=text)
    with open_store(tmp_path) as store:
        sql = "SELECT ended FROM processes ORDER BY process"
        # None: an older weft wrote no end records.
        assert store.rows(sql) == [(True,), (False,), (None,)]
        (note,) = store.notes()
        assert note.startswith(
            "no end: rank 1 (process 101 of node0): each was killed, still runs, or its"
        )
        store.to_parquet(tmp_path / "tables")
        files = tmp_path / "tables" / "processes.parquet", tmp_path / "old.parquet"
        store.rows(f"COPY (SELECT * EXCLUDE ended FROM '{files[0]}') TO '{files[1]}'")
    files[1].replace(files[0])  # an older weft wrote no column `ended`
    with open_store(tmp_path / "tables") as store:
        assert store.rows(sql) == [(None,)] * 3
        assert store.notes() == []


def test_store__records_after_an_end_are_no_end(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    path = process.write()
    process.ended = False
    process.new("event", 1, what="loss")
    path.write_bytes(path.read_bytes() + block(process.records, number=3))
    assert not read_segment(path).ended


def test_store__another_version_is_said(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    communicator(process, 5, 0, 1)
    process.write(version=2)
    with open_store(tmp_path) as store:
        assert "version 2, read as version 1" in "".join(store.notes())
        assert one(store, "SELECT comm_id FROM comms") == 5


def test_store__folders_without_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no trace files of weft"):
        open_store(tmp_path)
    with pytest.raises(TraceError, match="is not a folder"):
        open_store(tmp_path / "none")
    (tmp_path / "a.trace").write_bytes(b"")
    with pytest.raises(
        TraceError, match=r"no trace files of weft \(a.trace is left out: it is emp"
    ):
        open_store(tmp_path)


def linked(folder: Path, ahead_ns: int, both_ways: bool) -> None:
    """Two hosts; node1's clock is `ahead_ns` ahead of node0's. A message takes 1,000 ns or more."""
    draw = random.Random(3)
    first, second = rank_of(folder, 0, 2), rank_of(folder, 1, 2)
    second.ahead_ns += ahead_ns
    ends = [one.new("connection", 0, pair=88) for one in (first, second)]
    for at in range(200):
        now = at * 1_000_000
        for turn, (sender, receiver) in enumerate(((0, 1), (1, 0))):
            if turn and not both_ways:
                continue
            took, back = draw.randint(1_000, 90_000), draw.randint(1_000, 90_000)
            processes = first, second
            posted = now + turn * 500_000
            arrived = posted + took
            message(processes[sender], ends[sender], at, 8, posted, arrived + back, 1)
            message(processes[receiver], ends[receiver], at, 8, posted, arrived, 0)
    first.write()
    second.write()


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("ahead_ns", [0, 12_345, -3 * 3600 * 10**9, 10**18])
def test_clocks__messages_align_them(tmp_path: Path, ahead_ns: int, both_ways: bool) -> None:
    linked(tmp_path, ahead_ns, both_ways)
    with open_store(tmp_path) as store:
        sql = "SELECT clock_offset_ns, clock_error_ns FROM processes ORDER BY process"
        (_, (offset_ns, error_ns)) = store.rows(sql)
        assert 0 < error_ns < 10_000
        assert abs(offset_ns + ahead_ns) <= error_ns
        far = [note for note in store.notes() if "the clock of node1" in note]
        assert len(far) == (abs(ahead_ns) > 10**9)
        sql = """SELECT min(r.end_ns - s.posted_ns) FROM messages s JOIN messages r
            USING (message) WHERE s.sends AND NOT r.sends AND s.process = 0 AND r.process = 1"""
        assert abs(one(store, sql) - 1_000) < 20_000


def test_clocks__without_messages_the_error_is_unknown(tmp_path: Path) -> None:
    for rank in (0, 1):
        rank_of(tmp_path, rank, 2).write()
    with open_store(tmp_path) as store:
        sql = "SELECT clock_offset_ns, clock_error_ns FROM processes ORDER BY process"
        assert store.rows(sql) == [(0, 0), (0, None)]
        assert "no messages tell" in store.notes()[0]


def test_clocks__processes_of_a_host_share_one(tmp_path: Path) -> None:
    for rank in range(4):
        process = rank_of(tmp_path, rank, 4, per_node=4)
        process.ahead_ns += rank * 1_000 + (rank == 3) * 10**10
        process.new("event", 50, what="loss")
        process.write()
    with open_store(tmp_path) as store:
        sql = "SELECT clock FROM processes ORDER BY process"
        assert store.rows(sql) == [(0,), (0,), (0,), (1,)]
        assert one(store, "SELECT count(DISTINCT time_ns) FROM events") == 2


def test_store__parquet_holds_the_same_tables(tmp_path: Path) -> None:
    traces, written = tmp_path / "traces", tmp_path / "parquet"
    traces.mkdir()
    linked(traces, 5, True)
    with open_store(traces) as store:
        store.to_parquet(written)
        wanted = {table: store.rows(f"FROM {table} ORDER BY ALL") for table in TABLES}
        with pytest.raises(TraceError, match="is not empty"):
            store.to_parquet(written)
        store.to_csv(tmp_path / "csv")
    with open_store(written) as store:
        assert {t: store.rows(f"FROM {t} ORDER BY ALL") for t in TABLES} == wanted
        assert store.rows("DESCRIBE messages")[0][:2] == ("process", "INTEGER")
    (written / "messages.parquet").unlink()
    with open_store(written) as store:
        assert one(store, "SELECT count(*) FROM messages") == 0
        assert store.notes()[0] == (
            f"{written} has no files of these tables, which count as empty: messages; "
            "numbers that were measured may be missing or derived"
        )
    with pytest.raises(TraceError, match="no traces of the job 'x'"):
        open_store(written, job="x")
    csv = (tmp_path / "csv" / "processes.csv").read_text().splitlines()
    assert csv[0].split(",")[:3] == ["process", "trace", "host"]
    assert len(csv) == 3


def test_store__traces_beside_tables_are_said(tmp_path: Path) -> None:
    (below := tmp_path / "more").mkdir()
    rank_of(below, 0, 1).write()
    with open_store(tmp_path) as store:
        store.to_parquet(tmp_path / "tables")
    below.rename(tmp_path / "tables" / "more")
    with open_store(tmp_path / "tables") as store:
        (note,) = store.notes()
        assert "1 trace files in it are not" in note


def test_store__a_database_file_keeps_the_tables(tmp_path: Path) -> None:
    rank_of(tmp_path, 0, 1).write()
    file = tmp_path / "kept.duckdb"
    open_store(tmp_path, file=file).close()
    with pytest.raises(TraceError, match="exists already"):
        open_store(tmp_path, file=file)


def test_store__without_duckdb_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *more: Any) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(TraceExtraError, match=r"pip install 'weft\[trace\]'"):
        open_store(tmp_path)


def test_store__operations_that_had_not_ended_are_said(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    comm = communicator(process, 5, 0, 2)
    made = operation(process, comm, "AllReduce", 100, 250)
    process.new("channel", 110, operation=made, communicator=comm, peer=1, sends=1)
    process.write()
    with open_store(tmp_path) as store:
        (note,) = [one for one in store.notes() if "had not ended" in one]
    assert note.startswith("1 operations had not ended when the trace ended")
