"""Tests of traces of PyTorch's profiler. All are made up, in the form of PyTorch 2.11's."""

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.mutator import mutated
from transport.trace import json_stream, matrix_of, open_store, profile_of
from transport.trace.imported import Import, summary
from transport.trace.json_stream import JsonError, read_object
from transport.trace.kineto import KinetoTraces
from transport.trace.layout import TraceError
from transport.trace.matrix import DERIVED
from transport.trace.torch_names import COLLECTIVES, DATATYPES, function_of, nccl_type, ranks_text

from .test_commands import trace

BASE_NS = 1_700_000_000_000_000_000
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

DAMAGED = int(os.environ.get("WEFT_FUZZ_TRACES", "500"))  # damaged files; make fuzz: 10,000


def record(link: int, name: str, into: int, out: int, ts: float, **more: Any) -> dict[str, Any]:
    args = {
        "External id": link,
        "Collective name": name,
        "In msg nelems": into,
        "Out msg nelems": out,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "In split size": "[]",
        **more,
    }
    event = {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 50, "tid": 50}
    return event | {"ts": ts, "dur": 10.5, "args": args}


def kernel(link: int | None, ts: float, dur: float, name: str = RING) -> dict[str, Any]:
    args = {"stream": 7, "correlation": 9} | ({} if link is None else {"External id": link})
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7}
    return event | {"ts": ts, "dur": dur, "args": args}


def document(rank: int, *events: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}]
    info = {"backend": "nccl", "rank": rank, "world_size": 2, "pg_config": groups}
    other = {"ph": "X", "cat": "cpu_op", "name": "aten::ones", "ts": 1.0, "dur": 1.0, "args": {}}
    return {
        "schemaVersion": 1,
        "distributedInfo": info,
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": [other, *events],
        "traceName": "x.json",
        **more,
    }


def typical(rank: int) -> dict[str, Any]:
    ends = {"Dst Rank": 1} if rank == 0 else {"Src Rank": 0}
    return document(
        rank,
        kernel(8, 130.25, 50.5),  # a kernel can come before its operation
        record(8, "allreduce", 256, 256, 100.125),
        {"ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "ts": 101, "args": {}},
        record(9, "_allgather_base", 100, 200, 200, dtype="BFloat16"),
        kernel(9, 220, 5, "ncclDevKernel_AllGather_RING_LL(x)"),
        record(10, "_reduce_scatter_base", 200, 100, 300),
        kernel(10, 320, 5, "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)"),
        record(11, "wait", 0, 0, 350, dtype="Byte"),
        record(12, ("send", "recv")[rank], 50, 50, 400, **ends),
        kernel(12, 420, 5, "ncclDevKernel_SendRecv(x)"),
        record(13, "a_new_one", 50, 50, 500),
        kernel(None, 600, 5, "ncclDevKernel_SendRecv(x)"),
        kernel(14, 700, 5, "void gemm(float*)"),
    )


def saved(folder: Path, *documents: dict[str, Any]) -> list[Path]:
    files = []
    for at, one in enumerate(documents):
        files.append(folder / f"rank{at}.json")
        files[-1].write_text(json.dumps(one))
    return files


def read(*files: Path) -> Import:
    found = KinetoTraces()
    for file in files:
        found.read(file)
    return found.finish()


def test_import__makes_operations_kernels_and_communicators(tmp_path: Path) -> None:
    found = read(*saved(tmp_path, typical(0), typical(1)))
    assert found.notes == []
    assert summary(found) == (
        "28 events, 2 communicators, 8 operations, 10 kernels, 2 waits, "
        "2 kernels of no known operation, 2 unknown (a_new_one)"
    )
    found.write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT rank, pid, world_size, damage FROM processes ORDER BY 1"
        assert store.rows(sql) == [(0, 50, 2, ""), (1, 50, 2, "")]
        sql = "SELECT count(DISTINCT comm_id), any_value(name), list_sort(list(rank)) FROM comms"
        assert store.rows(sql) == [(1, "default_pg", [0, 1])]
        sql = "SELECT function, kind, count, datatype, bytes, algorithm, root, sequence, "
        sql += f"begin_ns - {BASE_NS}, end_ns - {BASE_NS} FROM operations WHERE process = 0 "
        assert store.rows(sql + "ORDER BY id") == [
            ("AllReduce", "collective", 256, "ncclFloat32", 1024, "RING", None, 0, 100125, 110625),
            ("AllGather", "collective", 100, "ncclBfloat16", 200, "RING", None, 1, 200000, 210500),
            (
                "ReduceScatter",
                "collective",
                100,
                "ncclFloat32",
                400,
                "RING",
                None,
                2,
                300000,
                310500,
            ),
            ("Send", "p2p", 50, "ncclFloat32", 200, "", 1, None, 400000, 410500),
        ]
        sql = f"SELECT gpu_start_ns - {BASE_NS}, gpu_stop_ns - gpu_start_ns FROM kernels k "
        sql += "JOIN operations o ON o.process = k.process AND o.id = k.operation "
        assert store.rows(sql + "WHERE function = 'AllReduce'") == [(130250, 50500)] * 2
        matrix = matrix_of(store)
        assert (matrix.what, set(matrix.states)) == ("rank", {DERIVED})
        ring = 1024 + 200 + 400
        assert matrix.dense_values().tolist() == [[0, ring + 200], [ring, 0]]
        assert profile_of(store).operations[0].timed_by == ("kernel",)
        assert "derived, not measured" in store.notes()[0]


def test_import__a_tree_is_told_by_the_kernel(tmp_path: Path) -> None:
    events = record(8, "allreduce", 9, 9, 1), kernel(8, 2, 3, RING.replace("RING", "TREE"))
    read(*saved(tmp_path, document(0, *events))).write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT algorithm FROM operations") == [("TREE",)]


def test_import__what_is_no_ring_is_not_taken_for_one(tmp_path: Path) -> None:
    names = ("NVLS", "NVLS_TREE", "COLLNET_DIRECT", "PAT")
    events = []
    for at, word in enumerate(names):
        events += [record(at, "allreduce", 9, 9, at), kernel(at, at, 3, RING.replace("RING", word))]
    read(*saved(tmp_path, document(0, *events))).write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        found = store.rows("SELECT algorithm FROM operations ORDER BY id")
        assert [one for (one,) in found] == [*names]
        assert matrix_of(store).values.size == 0


def test_import__notes_say_what_the_traces_do_not_tell(tmp_path: Path) -> None:
    events = [
        record(8, "allreduce", 9, 9, 1),
        kernel(8, 2, 3),
        record(9, "broadcast", 9, 9, 5),
        kernel(9, 6, 3, RING.replace("AllReduce", "Broadcast")),
    ]
    read(*saved(tmp_path, document(0, *events))).write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        rings, roots = store.notes()[1:3]
        assert rings.startswith("1 collectives count as rings")
        assert roots.startswith("who sent what is unknown for 1 calls of Broadcast and Reduce")


def test_import__without_events_of_the_cpu_kernels_tell_the_operation(tmp_path: Path) -> None:
    known = kernel(8, 2, 3)
    known["args"] |= record(8, "allreduce", 64, 64, 1)["args"]
    found = read(*saved(tmp_path, document(0, known, kernel(9, 6, 3))))
    assert found.read["operations"] == 1
    assert found.read["kernels of no known operation"] == 1


def test_import__a_kernel_belongs_to_one_operation(tmp_path: Path) -> None:
    events = [record(8, "allreduce", 64, 64, at) for at in range(3)]
    found = read(*saved(tmp_path, document(0, *events, *[kernel(8, 6, 3)] * 4)))
    assert (found.read["operations"], found.read["kernels"]) == (3, 4)


def test_import__older_traces_tell_only_names(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": 5, "dur": 1, "pid": 3}
        for name in ("nccl:all_reduce", "nccl:send 0->1", "nccl:coalesced")
    ]
    del (old := document(0, *events))["distributedInfo"]
    found = read(*saved(tmp_path, old))
    assert found.read["operations of unknown communicators"] == 2
    found.write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT function, bytes, root FROM operations ORDER BY id"
        assert store.rows(sql) == [("AllReduce", None, None), ("Send", None, 1)]


def test_import__groups_of_a_part_of_the_job(tmp_path: Path) -> None:
    """Long lists of ranks are shortened in events, but not in distributedInfo."""
    ranks = [*range(1, 80, 2)]
    config = [{"pg_name": "7", "pg_desc": "odd", "pg_size": 40, "ranks": ranks}]
    info = {"rank": 5, "world_size": 80, "pg_config": config}
    more = {"Process Group Name": "7", "Group size": 40, "Process Group Ranks": ranks_text(ranks)}
    event = record(1, "allreduce", 9, 9, 1, **more)
    strided = {"Global rank start": 1, "Global rank stride": 2, "Process Group Name": "8"}
    other = record(2, "allreduce", 9, 9, 2, **more | strided)
    read(*saved(tmp_path, document(5, event, other, distributedInfo=info))).write(tmp_path / "t")
    with open_store(tmp_path / "t") as store:
        assert store.rows("SELECT ranks, rank FROM comms ORDER BY id") == [(40, 2), (40, 2)]


def test_import__a_name_of_a_file_tells_host_and_process(tmp_path: Path) -> None:
    file = tmp_path / "gpu-3_771.1690000000.pt.trace.json.gz"
    file.write_bytes(gzip.compress(json.dumps(typical(0)).encode()))
    read(file).write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT host, pid FROM processes") == [("gpu-3", 771)]


def test_import__a_file_that_ends_early_is_read_to_there(tmp_path: Path) -> None:
    whole = json.dumps(typical(0))
    (file,) = saved(tmp_path, {})
    for size in (len(whole) - 10, whole.index("_allgather_base")):
        file.write_text(whole[:size])
        found = read(file)
        assert found.read["operations"] >= 1
        assert [one.facts["damage"] for one in found.sources.values()] == ["the file ends early"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "[1]",
        "{}",
        '{"a": 1}',
        '{"traceEvents": 5}',
        "\0" * 100,
        '{"traceEvents": [1,}',
        '{"traceEvents": [' + "[" * 100_000,
        '{"a": ' + "9" * 10_000,
        "{1: 2}",
        '{"a": {',
    ],
)
def test_import__other_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(TraceError, match=r"x\.json is no trace of PyTorch's profiler"):
        read(file)
    file.write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(TraceError):
        read(file)


def test_import__events_must_be_a_list(tmp_path: Path) -> None:
    (file,) = saved(tmp_path, {"traceEvents": {}})
    with pytest.raises(TraceError, match="profiler: the file's traceEvents is not a list"):
        read(file)


def test_import__survives_any_values(tmp_path: Path) -> None:
    """Each value of an event is replaced by values of all types."""
    values: list[Any] = [None, True, -1, 1 << 70, 1e300, "", "x" * 300, [], [1, 1], {}, "[0, 1]"]
    for at, value in enumerate(values):
        base = record(8, "allreduce", 1, 1, 1)
        events = [base | {name: value} for name in base]
        events += [base | {"args": base["args"] | {name: value}} for name in base["args"]]
        events += [kernel(8, 1, 1) | {name: value} for name in ("ts", "dur", "args", "name")]
        names = ("distributedInfo", "baseTimeNanoseconds")
        found = read(*saved(tmp_path, *(document(0, *events, **{one: value}) for one in names)))
        found.write(tmp_path / f"{at}")
        with open_store(tmp_path / f"{at}") as store:
            matrix_of(store)
            profile_of(store)
            ((processes,),) = store.rows("SELECT count(*) FROM processes")
        assert processes == len(names)  # no file is lost by a strange value


def test_import__survives_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps(typical(0)).encode()
    file = tmp_path / "x.json"
    refused = 0
    for seed in range(DAMAGED):
        monkeypatch.setattr(json_stream, "CHUNK", 1 << 20 if seed % 2 else 1000)
        file.write_bytes(mutated(text, random.Random(seed)))
        traces = KinetoTraces()
        try:
            traces.read(file)
        except TraceError:
            refused += 1
            continue
        if seed % 100 == 0:
            traces.finish().write(tmp_path / f"{seed}")
            with open_store(tmp_path / f"{seed}") as store:
                matrix_of(store)
                profile_of(store)
    assert 0 < refused < DAMAGED  # neither is every damage seen, nor does each one spoil a file


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_json__is_the_same_in_pieces_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    file = tmp_path / "x.json"
    value = {"a": 12345, "list": [1, -2.5e3, "tëxt", {"b": [None]}, []], "c": "x", "d": 7}
    for indent in (None, 2):
        file.write_text(json.dumps(value, indent=indent) + " \n", encoding="utf-8")
        items = [("list", one) for one in value["list"]]  # type: ignore[attr-defined]
        expected = [("a", 12345), *items, ("c", "x"), ("d", 7)]
        assert [*read_object(file, "list")] == expected
    file.write_text('{"list": [], "a": NaN}')
    assert [*read_object(file, "list")] == [("a", None)]


def test_json__a_value_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 100)
    monkeypatch.setattr(json_stream, "VALUE_MAX", 1000)
    file = tmp_path / "x.json"
    file.write_text('{"a": "' + "x" * 5000)
    with pytest.raises(JsonError, match="longer than 1000"):
        list(read_object(file, "list"))


def test_names__of_the_timeline_are_those_that_the_import_knows() -> None:
    for function, (event, name) in COLLECTIVES.items():
        assert function_of(event) == function_of(name) == function.replace("AllToAll", "AlltoAll")
    assert all(nccl_type(name) == nccl for nccl, name in DATATYPES.items())


def test_names__of_a_datatype_become_one() -> None:
    for name in ("Int8", "int8", "Char", "ncclInt8", "ncclChar", "torch.int8"):
        assert nccl_type(name) == "ncclInt8"
    assert (nccl_type("Half"), nccl_type("Float16")) == ("ncclFloat16", "ncclFloat16")
    assert (nccl_type("Bool"), nccl_type("ComplexFloat")) == ("ncclUint8", "ComplexFloat")


def test_command__imports_and_says_what_was_read(tmp_path: Path) -> None:
    files = saved(tmp_path, typical(0), typical(1))
    out = tmp_path / "tables"
    done = trace("import", "kineto", *files, "-o", out, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unknown"] == {"a_new_one": 2}
    assert done.stderr.startswith(f"wrote {out}: 2 processes; read 28 events, ")
    said = trace("timeline", out, "-o", tmp_path / "t.perfetto-trace")
    assert "8 operations, 10 kernels" in said.stderr
    (tmp_path / "bad.json").write_text("no")
    done = trace("import", "kineto", tmp_path / "bad.json", "-o", tmp_path / "new")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "new").exists()
