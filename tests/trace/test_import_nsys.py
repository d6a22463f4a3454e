"""Tests `weft trace import nsys`.

Nsight Systems did not run here: the databases are made from the schema in its documentation (SQLite
Export Schema Reference), and the payloads as other public tools read them (nsys-ai).
"""

import json
import random
import sqlite3
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.fuzz.mutator import mutated
from transport.cli import weft
from transport.trace import matrix_of, open_store, profile_of
from transport.trace.layout import TraceError
from transport.trace.nsys import NsysReports

BASE_NS = 1_790_000_000_000_000_000
COMM = 0xF00DF00DF00DF00D
PID = 4242
GLOBAL_PID = 1 << 56 | PID << 24  # hardware 1, as the documentation serializes it
THREAD = GLOBAL_PID | 77
ALL_REDUCE = (
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
)
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)"
DOMAIN, INIT, REDUCE, P2P = 3, 1 << 24, (1 << 24) + 5, (1 << 24) + 9
ENTRIES = {
    INIT: [
        *(("NCCL communicator ID", 0), ("No. of ranks", 8), ("Rank", 12), ("CUDA device", 16)),
    ],
    REDUCE: [("NCCL communicator ID", 0), ("Message size [bytes]", 8), ("Reduction operation", 16)],
    P2P: [("NCCL communicator ID", 0), ("Message size [bytes]", 8), ("Peer rank", 16)],
}
TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER, streamId INTEGER, correlationId INTEGER,
  globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
  eventClass INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
  returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
  rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
  endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, jsonText TEXT, binaryData TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, value TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER,
  flags INTEGER, numEntries INTEGER, payloadSize INTEGER, alignTo INTEGER);
CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER,
  flags INTEGER, type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER,
  offset INTEGER);
"""


class Report:
    """Builds an export."""

    def __init__(self, file: Path, blobs: bool = True, schema: str = TABLES) -> None:
        self.file = file
        self.blobs = blobs
        self.database = sqlite3.connect(file)
        self.database.executescript(schema)
        self.names: dict[str, int] = {}
        self.launches = 0

    def add(self, table: str, **values: Any) -> None:
        names, marks = ", ".join(f'"{one}"' for one in values), ", ".join("?" * len(values))
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*values.values()])

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names[text] = len(self.names) + 1
            self.add("StringIds", id=self.names[text], value=text)
        return self.names[text]

    def about(self) -> None:
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="gpu-1")
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=BASE_NS)
        for schema, entries in ENTRIES.items():
            self.add("NVTX_PAYLOAD_SCHEMAS", domainId=DOMAIN, schemaId=schema, payloadSize=24)
            for name, offset in entries:
                self.add(
                    "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                    domainId=DOMAIN,
                    schemaId=schema,
                    name=name,
                    offset=offset,
                )

    def range(
        self, name: str, start: int, end: int, payload: tuple[int, bytes] | None = None
    ) -> None:
        blob = None
        if payload is not None and self.blobs:
            schema, data = payload
            blob = struct.pack("<QQQQ", DOMAIN, schema, len(data), 32) + data
        self.add(
            "NVTX_EVENTS",
            start=start,
            end=end,
            eventType=59,
            globalTid=THREAD,
            textId=self.name(name),
            domainId=DOMAIN,
            binaryData=blob,
        )

    def kernel(self, name: str, launched: int, start: int, end: int, stream: int = 20) -> None:
        self.launches += 1
        link = {"correlationId": self.launches}
        of = {"deviceId": 0, "streamId": stream, "globalPid": GLOBAL_PID}
        names = {"demangledName": self.name(name), "shortName": self.name(name.split("(")[0])}
        self.add("CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, **of, **link, **names)
        call = {"globalTid": THREAD, "nameId": self.name("cudaLaunchKernelExC_v11060")}
        times = {"start": launched, "end": launched + 5, "returnValue": 0}
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", **times, **call, **link)

    def done(self) -> Path:
        self.database.commit()
        self.database.close()
        return self.file


def init(rank: int, ranks: int = 2) -> tuple[int, bytes]:
    return INIT, struct.pack("<QiiiI", COMM, ranks, rank, 0, 0)


def sized(schema: int, size: int, last: int = 0) -> tuple[int, bytes]:
    return schema, struct.pack("<QQiI", COMM, size, last, 0)


def typical(folder: Path, rank: int, *, blobs: bool = True, name: str = "") -> Path:
    """Two AllReduces of 4,096 and 1,024 bytes, and a group of a Send and a Recv of 512 bytes."""
    report = Report(folder / (name or f"report.{rank}.sqlite"), blobs)
    report.about()
    report.range("ncclCommInitRankConfig", 10, 90, init(rank))
    report.range("ncclAllReduce", 100, 150, sized(REDUCE, 4096))
    report.kernel(ALL_REDUCE, 120, 200, 300)
    report.range("ncclGroupStart", 400, 405)
    report.range("ncclAllReduce", 410, 415, sized(REDUCE, 1024))
    report.range("ncclGroupEnd", 420, 460)
    report.kernel(ALL_REDUCE, 440, 500, 540)
    report.range("ncclGroupStart", 600, 605)
    report.range("ncclSend", 610, 615, sized(P2P, 512, 1 - rank))
    report.range("ncclRecv", 620, 625, sized(P2P, 512, 1 - rank))
    report.range("ncclGroupEnd", 630, 660)
    report.kernel(SEND_RECV, 640, 700, 750)
    report.kernel("void gemm(float*)", 800, 810, 900)
    return report.done()


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


def imported(folder: Path, files: Iterable[Path], *words: str) -> Path:
    done = run("trace", "import", "nsys", *files, *words, "-o", folder / "tables")
    assert done.exit_code == 0, done.output
    return folder / "tables"


def test_nsys__ranges_tell_size_and_communicator_and_kernels_the_rest(tmp_path: Path) -> None:
    tables = imported(tmp_path, [typical(tmp_path, rank) for rank in (0, 1)])
    with open_store(tables) as store:
        sql = "SELECT host, pid, rank, world_size FROM processes ORDER BY rank"
        assert store.rows(sql) == [("gpu-1", PID, 0, 2), ("gpu-1", PID, 1, 2)]
        sql = "SELECT DISTINCT comm_id, ranks FROM comms"
        assert store.rows(sql) == [(COMM, 2)]
        sql = "SELECT function, count, datatype, bytes, algorithm, protocol, root, "
        sql += f"begin_ns - {BASE_NS}, end_ns - {BASE_NS} FROM operations WHERE process = 0 "
        assert store.rows(sql + "ORDER BY begin_ns") == [
            ("AllReduce", 2048, "ncclBfloat16", 4096, "RING", "", None, 100, 150),
            ("AllReduce", 512, "ncclBfloat16", 1024, "RING", "", None, 410, 415),
            ("Send", None, None, 512, "", "", 1, 610, 615),
            ("Recv", None, None, 512, "", "", 1, 620, 625),
        ]
        sql = "SELECT o.function, k.gpu_stop_ns - k.gpu_start_ns FROM kernels k JOIN operations o "
        sql += "ON o.process = k.process AND o.id = k.operation WHERE k.process = 0 ORDER BY 2"
        assert store.rows(sql) == [("AllReduce", 40), ("Send", 50), ("AllReduce", 100)]
        matrix = matrix_of(store)
        # A ring of two ranks sends 2 * 1/2 of 5,120 bytes, and each rank sends 512.
        assert matrix.dense_values().tolist() == [[0, 5632], [5632, 0]]
        assert profile_of(store).operations[0].timed_by == ("kernel",)


def test_nsys__without_payloads_sizes_and_ranks_are_unknown(tmp_path: Path) -> None:
    files = [typical(tmp_path, rank, blobs=False) for rank in (0, 1)]
    done = run("trace", "import", "nsys", *files, "-o", tmp_path / "tables")
    assert "the sizes of 8 operations are not known (?)" in done.output
    assert "--include-blobs=true" in done.output
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT rank FROM processes ORDER BY 1") == [(0,), (1,)]
        sql = "SELECT DISTINCT bytes, datatype FROM operations WHERE function = 'AllReduce'"
        assert store.rows(sql) == [(None, "ncclBfloat16")]
        matrix = matrix_of(store)
        assert (matrix.values.size, matrix.unknown) == (0, ((0, 1),))
    for words in (["info"], ["profile"], ["query", "SELECT 1"], ["matrix"]):
        found = run("trace", words[0], tmp_path / "tables", *words[1:])
        assert found.exit_code == 0, found.output
    judged = run("diagnose", tmp_path / "tables")
    assert (judged.exit_code, judged.output[:10]) == (4, "not judged")


def test_nsys__kernels_alone_tell_the_function(tmp_path: Path) -> None:
    """Ranges were not traced; the second kernel is of a captured graph, without a launch."""
    report = Report(tmp_path / "r.rank5.sqlite")
    report.kernel(ALL_REDUCE, 120, 200, 300)
    report.kernel(ALL_REDUCE, 320, 400, 450, stream=21)
    report.kernel(SEND_RECV, 640, 700, 750)
    report.database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId = 2")
    report.database.execute("DROP TABLE NVTX_EVENTS")
    reports = NsysReports()
    reports.read(report.done())
    found = reports.finish()
    assert found.read["kernels of no known operation"] == 1
    assert any("do not tell when they began" in one for one in found.notes)
    found.write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT rank FROM processes") == [(5,)]
        sql = "SELECT function, algorithm, datatype, bytes, begin_ns FROM operations ORDER BY id"
        known = ("AllReduce", "RING", "ncclBfloat16", None)
        assert store.rows(sql) == [(*known, 120), (*known, 400)]
        sql = "SELECT name, ranks FROM comms ORDER BY id"
        assert store.rows(sql) == [("stream 20", None), ("stream 21", None)]


def test_nsys__the_rank_is_told_by_option_name_range_or_number(tmp_path: Path) -> None:
    def rank(name: str, of_init: int | None, *given: int) -> int | None:
        file = typical(tmp_path, of_init or 0, blobs=of_init is not None, name=name)
        reports = NsysReports(given)
        reports.read(file)
        (found,) = reports.finish().sources.values()
        file.unlink()
        value: int | None = found.facts["rank"]
        return value

    assert rank("a.rank1.sqlite", 0, 7) == 7
    assert rank("a.rank1.sqlite", 0) == 1
    assert rank("a.5.sqlite", 1) == 1
    assert rank("a.5.sqlite", None) == 5
    assert rank("report5.sqlite", None) is None


def test_nsys__a_report_may_have_several_processes(tmp_path: Path) -> None:
    """The second process is a copy of the first one with other ids and the other rank."""
    file = typical(tmp_path, 0, name="all.sqlite")
    offset = 1 << 24
    with sqlite3.connect(file) as database:
        for table, column in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "globalPid"),
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
            ("NVTX_EVENTS", "globalTid"),
        ):
            database.execute(f"CREATE TEMP TABLE t AS SELECT * FROM {table}")
            database.execute(f"UPDATE t SET {column} = {column} + {offset}")
            database.execute(f"INSERT INTO {table} SELECT * FROM t")
            database.execute("DROP TABLE t")
        blob = struct.pack("<QQQQ", DOMAIN, INIT, 24, 32) + init(1)[1]
        sql = "UPDATE NVTX_EVENTS SET binaryData = ? WHERE globalTid = ? AND start = 10"
        database.execute(sql, (blob, THREAD + offset))
    database.close()
    with open_store(imported(tmp_path, [file])) as store:
        assert store.rows("SELECT pid, rank FROM processes ORDER BY 1") == [(PID, 0), (PID + 1, 1)]
        assert store.rows("SELECT DISTINCT ranks FROM comms") == [(2,)]
    done = run("trace", "import", "nsys", file, "--rank", "0", "-o", tmp_path / "other")
    assert "has 2 processes with NCCL: leave --rank out" in done.output


def test_nsys__two_files_of_a_rank_are_refused(tmp_path: Path) -> None:
    files = [typical(tmp_path, 0, name=name) for name in ("a.sqlite", "b.sqlite")]
    done = run("trace", "import", "nsys", *files, "-o", tmp_path / "tables")
    assert done.exit_code == 2
    assert "several files are of rank 0" in done.output
    done = run("trace", "import", "nsys", *files, "--rank", "1", "-o", tmp_path / "tables")
    assert "--rank is given 1 times for 2 files" in done.output
    imported(tmp_path, files, "--rank", "0", "--rank", "1")


def test_nsys__a_rank_whose_gpu_comes_late_is_found(tmp_path: Path) -> None:
    """100 iterations of 10 ms; in every second one the GPU of rank 1 comes 3 ms late."""
    ms = 1_000_000
    files = []
    for rank in (0, 1, 2):
        report = Report(tmp_path / f"r.{rank}.sqlite")
        report.about()
        report.range("ncclCommInitRank", 10, 90, init(rank, 3))
        for number in range(100):
            at = 1000 + number * 10 * ms
            late = 3 * ms if number % 2 else 0
            report.range("ncclAllReduce", at, at + 5000, sized(REDUCE, 1 << 20))
            report.kernel(ALL_REDUCE, at + 100, at + late * (rank == 1), at + late + 2 * ms)
        files.append(report.done())
    judged = run("diagnose", imported(tmp_path, files), "--json", "-")
    first = json.loads(judged.output)["findings"][0]
    assert (first["class"], first["place"]["name"]) == ("non_communication_slow", "rank 1")


def test_nsys__the_file_is_not_changed(tmp_path: Path) -> None:
    file = typical(tmp_path, 0)
    before = file.read_bytes()
    imported(tmp_path, [file])
    assert file.read_bytes() == before
    assert [one.name for one in tmp_path.glob("report*")] == ["report.0.sqlite"]


def test_nsys__a_view_in_the_place_of_a_table_is_not_read(tmp_path: Path) -> None:
    report = Report(tmp_path / "r.sqlite")
    report.database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    report.database.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE x(start) AS (SELECT 1 UNION ALL "
        'SELECT start + 1 FROM x) SELECT start, start AS "end", 1 AS correlationId, '
        "1 AS globalPid, 1 AS demangledName FROM x"
    )
    with pytest.raises(TraceError, match="has no kernels and no NVTX ranges of NCCL"):
        NsysReports().read(report.done())


@pytest.mark.parametrize("data", [b"", b"x" * 99, b"SQLite format 3\0", b"SQLite format 3\0" * 99])
def test_nsys__other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.sqlite"
    file.write_bytes(data)
    done = run("trace", "import", "nsys", file, "-o", tmp_path / "tables")
    assert done.exit_code == 2
    assert "x.sqlite is" in done.output
    assert isinstance(done.exception, SystemExit)


def test_nsys__another_database_is_refused(tmp_path: Path) -> None:
    report = Report(tmp_path / "x.sqlite", schema="CREATE TABLE a (b)")
    with pytest.raises(TraceError, match="it has no table StringIds"):
        NsysReports().read(report.done())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 1 << 16))
def test_nsys__survives_damage(tmp_path: Path, seed: int, cut: int) -> None:
    good = tmp_path / "good.sqlite"
    data = (good if good.exists() else typical(tmp_path, 0, name="good.sqlite")).read_bytes()
    file = tmp_path / "x.sqlite"
    bad = mutated(data, random.Random(seed))
    file.write_bytes(bad[:cut] if seed % 3 == 0 else bad)
    reports = NsysReports()
    try:
        reports.read(file)
    except TraceError:
        return
    reports.finish()


cells = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | st.binary(max_size=80)
COLUMNS = [
    *(("NVTX_EVENTS", one) for one in ("start", "globalTid", "textId", "domainId", "binaryData")),
    *(
        ("CUPTI_ACTIVITY_KIND_KERNEL", one)
        for one in ("start", "streamId", "globalPid", "deviceId")
    ),
    *(("CUPTI_ACTIVITY_KIND_RUNTIME", one) for one in ("start", "globalTid", "correlationId")),
    *(("NVTX_PAYLOAD_SCHEMA_ENTRIES", one) for one in ("offset", "schemaId", "name")),
    *(("NVTX_PAYLOAD_SCHEMAS", "payloadSize"), ("StringIds", "value")),
    ("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"),
]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from(COLUMNS), cells)
def test_nsys__survives_any_values(tmp_path: Path, place: tuple[str, str], value: Any) -> None:
    file = tmp_path / "x.sqlite"
    file.unlink(missing_ok=True)
    typical(tmp_path, 0, name="x.sqlite")
    table, column = place
    with sqlite3.connect(file) as database:
        try:
            database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % 2", (value,))
        except sqlite3.IntegrityError:
            return
    database.close()
    reports = NsysReports()
    try:
        reports.read(file)
    except TraceError:
        return
    reports.finish()
