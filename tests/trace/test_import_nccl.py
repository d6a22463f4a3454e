"""Tests of logs of NCCL. All logs here are made up; their lines have the form of NCCL 2.28's."""

import gzip
import os
import random
from pathlib import Path

import pytest

from tests.fuzz.mutator import mutated
from transport.diagnose import Answer, Diagnosis, diagnose
from transport.trace import matrix_of, open_store, profile_of
from transport.trace.imported import Import, summary
from transport.trace.layout import TraceError
from transport.trace.matrix import DERIVED
from transport.trace.nccl_log import LINE_MAX, NcclLogs

from .test_commands import trace

BUFFERS = "sendbuff 0x7f0000000000 recvbuff 0x7f0000400000"

DAMAGED = int(os.environ.get("WEFT_FUZZ_TRACES", "500"))  # damaged files; make fuzz: 10,000


def init(rank: int, ranks: int, comm: str, device: int = 0, comm_id: str = "0xabc") -> str:
    head = f"ncclCommInitRank comm {comm} rank {rank} nranks {ranks} cudaDev {device} "
    return f"{head}nvmlDev {device} busId 1b000 commId {comm_id} - Init COMPLETE"


def call(
    function: str, comm: str, count: int = 256, datatype: int = 7, root: int = 0, ranks: int = 2
) -> str:
    return (
        f"{function}: opCount 0 {BUFFERS} count {count} datatype {datatype} op 0 root {root} "
        f"comm {comm} [nranks={ranks}] stream (nil)"
    )


def line(message: str, rank: int, *, host: str = "", pid: int = 0, device: int = 0) -> str:
    return f"{host or f'node{rank}'}:{pid or 40 + rank}:77 [{device}] NCCL INFO {message}\n"


def two_ranks() -> str:
    """AllReduce and AllGather, whose algorithm only rank 0 logs, and a Send."""
    lines = []
    for rank in (0, 1):
        comm = f"0x5{rank}0"
        made = [
            "NCCL version 2.28.9+cuda13.0",
            f"comm {comm} rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            init(rank, 2, comm),
            call("AllReduce", comm),
            *(["AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"] * (1 - rank)),
            call("AllGather", comm, 100, 9),
            *(["AllGather: 200 Bytes -> Algo Ring proto SIMPLE channel{Lo..Hi}={0..0}"][rank:]),
            call(("Send", "Recv")[rank], comm, 50, 0, 1 - rank),
            f"comm {comm} rank {rank} nranks 2 cudaDev 0 busId 1b000 - Destroy COMPLETE",
        ]
        lines += [line(one, rank) for one in made]
    return "".join(["training starts\n", *lines, "training ends\n"])


def read(*logs: Path, assume_ring: bool = False) -> Import:
    found = NcclLogs(assume_ring)
    for log in logs:
        found.read(log)
    return found.finish()


def written(folder: Path, text: str, assume_ring: bool = False) -> Import:
    log = folder / "job.log"
    log.write_text(text)
    found = read(log, assume_ring=assume_ring)
    found.write(folder / "tables")
    return found


def test_import__makes_operations_and_communicators(tmp_path: Path) -> None:
    found = written(tmp_path, two_ranks())
    assert found.notes == []
    assert summary(found) == (
        "18 lines, 2 lines that are not of NCCL, 2 other lines of NCCL, 2 communicators, "
        "6 operations, 2 algorithms"
    )
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT host, pid, local_rank, trace FROM processes ORDER BY 1") == [
            ("node0", 40, 0, "nccl-log job.log"),
            ("node1", 41, 0, "nccl-log job.log"),
        ]
        sql = "SELECT process, comm_id, ranks, nodes, rank FROM comms ORDER BY 1"
        assert store.rows(sql) == [(0, 0xABC, 2, 2, 0), (1, 0xABC, 2, 2, 1)]
        sql = "SELECT function, kind, count, datatype, bytes, algorithm, protocol, root, sequence "
        sql += "FROM operations WHERE process = ? ORDER BY id"
        ring = [
            ("AllReduce", "collective", 256, "ncclFloat32", 1024, "RING", "LL", None, 0),
            ("AllGather", "collective", 100, "ncclBfloat16", 200, "RING", "SIMPLE", None, 1),
        ]
        assert store.rows(sql, 0) == [*ring, ("Send", "p2p", 50, "ncclInt8", 50, "", "", 1, None)]
        # The algorithm that rank 0 logs holds for all ranks.
        assert store.rows(sql, 1)[:2] == ring
        matrix = matrix_of(store)
        assert matrix.dense_values().tolist() == [[0, 1024 + 200 + 50], [1024 + 200, 0]]
        assert set(matrix.states) == {DERIVED}
        assert "derived, not measured" in store.notes()[0]
        assert profile_of(store).operations[0].count == 2


def test_import__a_rank_beyond_its_communicator_is_left_out(tmp_path: Path) -> None:
    text = line(init(0, 2, "0x50"), 0) + line(init(9, 2, "0x51"), 1)
    found = written(tmp_path, text + line(call("AllReduce", "0x50"), 0))
    assert found.unknown == {"ranks that are not below nranks": 1}
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT rank, ranks FROM comms") == [(0, 2)]


def test_import__without_algorithms_a_ring_is_assumed_only_if_asked(tmp_path: Path) -> None:
    text = "".join(one for one in two_ranks().splitlines(True) if " Bytes -> " not in one)
    found = written(tmp_path, text)
    assert "algorithm of 4 collectives" in found.notes[0]
    with open_store(tmp_path / "tables") as store:
        assert matrix_of(store).dense_values().tolist() == [[0, 50], [0, 0]]
    (tmp_path / "ring").mkdir()
    found = written(tmp_path / "ring", text, assume_ring=True)
    assert found.notes == ["4 collectives count as rings (--assume-ring)"]
    with open_store(tmp_path / "ring" / "tables") as store:
        assert matrix_of(store).dense_values()[1, 0] == 1224


def test_import__one_process_with_two_devices_is_two(tmp_path: Path) -> None:
    lines = []
    for device in (0, 1):
        comm = f"0x6{device}0"
        lines += [init(device, 2, comm, device), call("AllReduce", comm)]
    # Lines of a thread that drives both devices may name the wrong device.
    written(tmp_path, "".join(line(one, 0, device=1) for one in lines), assume_ring=True)
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT count(*), count(DISTINCT pid) FROM processes") == [(2, 1)]
        assert matrix_of(store).dense_values().tolist() == [[0, 1024], [1024, 0]]


def test_import__split_communicators_have_an_id_in_common(tmp_path: Path) -> None:
    lines = []
    for rank in range(4):
        parent, child = f"0x7{rank}0", f"0x7{rank}8"
        split = f"ncclCommSplit comm {child} rank {rank // 2} nranks 2 cudaDev 0 nvmlDev 0 busId 60"
        split += f" parent {parent} splitCount 1 color {rank % 2} key {rank}"
        made = [init(rank, 4, parent), f"{split}- Init START", f"{split} - Init COMPLETE"]
        lines += [line(one, rank) for one in [*made, call("AllReduce", child)]]
    written(tmp_path, "".join(lines))
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT comm_id, list_sort(list(process)) FROM comms WHERE ranks = 2 GROUP BY 1"
        groups = sorted(processes for _, processes in store.rows(sql))
        assert groups == [[0, 2], [1, 3]]


def test_import__an_address_that_is_used_again_is_another_communicator(tmp_path: Path) -> None:
    end = "comm 0x500 rank 0 nranks 1 cudaDev 0 busId 1b000 - Destroy COMPLETE"
    made = [init(0, 1, "0x500"), call("AllReduce", "0x500", ranks=1), end]
    made += [init(0, 1, "0x500", comm_id="0xdef"), call("AllReduce", "0x500", ranks=1)]
    written(tmp_path, "".join(line(one, 0) for one in made))
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT comm_id, count(*) FROM operations o JOIN comms m ON m.id = o.comm GROUP BY 1"
        assert sorted(store.rows(sql)) == [(0xABC, 1), (0xDEF, 1)]


def test_import__times_and_prefixes_of_launchers(tmp_path: Path) -> None:
    stamp = "[2025-03-01 12:00:07] "
    text = "".join(f"[rank0]: {stamp}{line(one, 0)}" for one in (init(0, 1, "0x5"),))
    text += f"(worker pid=3) [2025-03-01 12:00:09.5] {line(call('AllReduce', '0x5'), 0)}"
    text += f"[not a time] {line(call('AllReduce', '0x5'), 0)}"
    text += f"[2025-99-99 99:99:99] {line(call('AllReduce', '0x5'), 0)}"
    written(tmp_path, text)
    noon = 1_740_830_400_000_000_000
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT begin_ns FROM operations ORDER BY id"
        assert store.rows(sql) == [(noon + 9_500_000_000,), (None,), (None,)]
        assert store.rows("SELECT begin_ns FROM comms") == [(noon + 7_000_000_000,)]


def test_import__older_forms_of_lines(tmp_path: Path) -> None:
    made = [
        "comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE",
        call("AllReduce", "0x5") + " task 1 globalrank 0",
        "1024 Bytes -> Algo 0 proto 2 time 12.500000",
        call("ReduceScatter", "0x5"),
        "ReduceScatter: 2048 Bytes -> Algo 1 proto 0 time 12.500000",
        call("AllReduce", "0x9", datatype=99),
        "AllReduce: opCount zz nonsense",
        "AllReduce: 7 Bytes -> Algo 1 proto 0 time 1.0",
    ]
    found = written(tmp_path, "".join(line(one, 0) for one in made))
    assert found.unknown.total() == 2
    assert "ids of 2 communicators" in found.notes[1]
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT algorithm, protocol, datatype FROM operations ORDER BY id"
        assert store.rows(sql) == [
            ("TREE", "SIMPLE", "ncclFloat32"),
            ("RING", "LL", "ncclFloat32"),
            ("", "", "type 99"),
        ]
        # Only the line of a call names the second communicator, so its rank is unknown.
        sql = "SELECT ranks, rank FROM comms ORDER BY id"
        assert store.rows(sql) == [(2, 0), (2, None)]


def test_import__other_files_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    for text, word in (
        ("", "is no log of NCCL"),
        ("{}\n" * 50, "is no log of NCCL"),
        (line("NCCL version 2.28.9", 0), "no operation"),
    ):
        log.write_text(text)
        with pytest.raises(TraceError, match=word):
            read(log)
    log.write_bytes(b"\x1f\x8b damaged")
    with pytest.raises(TraceError, match="damaged"):
        read(log)


def test_import__reads_compressed_logs_and_very_long_lines(tmp_path: Path) -> None:
    log = tmp_path / "x.log.gz"
    text = "x" * (3 * LINE_MAX) + "\n" + two_ranks()
    log.write_bytes(gzip.compress(text.encode()))
    assert read(log).read["operations"] == 6


def test_import__survives_damage(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    text = two_ranks().encode()
    for seed in range(DAMAGED):
        log.write_bytes(mutated(text, random.Random(seed)))
        logs = NcclLogs()
        try:
            logs.read(log)
        except TraceError:
            continue
        if seed % 100 == 0:
            tables = tmp_path / f"{seed}"
            logs.finish().write(tables)
            with open_store(tables) as store:
                matrix_of(store)
                profile_of(store)
                store.notes()


def test_command__imports_and_every_command_opens_the_folder(tmp_path: Path) -> None:
    log, out = tmp_path / "job.log", tmp_path / "tables"
    log.write_text(two_ranks())
    done = trace("import", "nccl-log", log, "-o", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"wrote {out}: 2 processes; read 18 lines, ")
    for words in (["info"], ["matrix"], ["profile"], ["query", "SELECT 1"]):
        assert trace(words[0], out, *words[1:]).returncode == 0
    for name in ("a.perfetto-trace", "b.perfetto-trace.gz"):
        assert trace("timeline", out, "-o", tmp_path / name).returncode == 0
    wrong: list[list[str | Path]] = [["-o", out], ["-o", tmp_path / "new", tmp_path / "none"], []]
    for bad in wrong:
        done = trace("import", "nccl-log", log, *bad)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def imported(folder: Path, text: str) -> Import:
    file = folder / "nccl.log"
    file.write_text(text)
    logs = NcclLogs()
    logs.read(file)
    return logs.finish()


def test_nccl__marks_of_launchers_are_no_part_of_the_host(tmp_path: Path) -> None:
    """torchrun --tee and mpirun --tag-output put their own mark in front of each line."""
    plain = imported(tmp_path, two_ranks())
    for mark in ("[default0]:", "[1,0]<stdout>: ", "0: "):
        marked = "".join(f"{mark}{one}\n" for one in two_ranks().splitlines())
        found = imported(tmp_path, marked)
        hosts = [one.facts["host"] for one in found.sources.values()]
        assert hosts == ["node0", "node1"]
        assert found.read["operations"] == plain.read["operations"]


def test_nccl__communicators_without_an_id_are_joined_by_rank_and_order(tmp_path: Path) -> None:
    text = two_ranks().replace(" commId 0xabc", "")
    found = imported(tmp_path, text)
    assert "joined by size, rank and order" in " ".join(found.notes)
    found.write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        ((count, ranks),) = store.rows("SELECT count(DISTINCT comm_id), count(*) FROM comms")
        assert (count, ranks) == (1, 2)
        assert store.rows("SELECT rank, world_size FROM processes ORDER BY 1") == [(0, 2), (1, 2)]
    # Two processes of the same rank are of two jobs.
    twice = imported(tmp_path, text.replace(" rank 1 ", " rank 0 "))
    assert "joined by size" not in " ".join(twice.notes)


def test_nccl__failed_transfers_and_timeouts_are_evidence(tmp_path: Path) -> None:
    warning = (
        "other:41:90 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer "
        "10.0.0.9<40001> with status=12 opcode=1 len=0 vendor err 129 (Send)\n"
    )
    flushed = warning.replace("status=12", "status=5")
    watchdog = (
        "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
        "Timeout(ms)=600000) ran for 600410 milliseconds before timing out.\n"
    )
    imported(tmp_path, two_ranks() + flushed + warning + watchdog).write(tmp_path / "tables")
    done = trace("info", tmp_path / "tables")
    assert done.returncode == 0
    found = diagnosed(tmp_path / "tables")
    (one,) = (each for each in found.findings if each.certain)
    assert (one.kind, one.place.name) == ("communication_hang", "rank 1 to 10.0.0.9")
    assert "status 12 (retries exhausted" in one.evidence
    assert "AllReduce 7 ran into PyTorch's timeout after 10.01 min" in one.evidence
    (tmp_path / "late").mkdir()
    imported(tmp_path / "late", watchdog).write(tmp_path / "late" / "tables")
    found = diagnosed(tmp_path / "late" / "tables")
    assert found.answer is Answer.NOT_JUDGED
    assert "weft trace import flight" in found.findings[0].advice


def diagnosed(folder: Path) -> Diagnosis:
    with open_store(folder) as store:
        return diagnose(store)
