"""Tests `weft trace import chakra`: files of weft's own export, and some made from Chakra's schema.

The public sample of mlcommons/chakra (tests/data) has the nodes of `of_pytorch`.
"""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.fuzz.mutator import mutated
from transport.cli import weft
from transport.trace import matrix_of, open_store, profile_of
from transport.trace.chakra import write_chakra
from transport.trace.chakra_import import ChakraTraces
from transport.trace.imported import Import
from transport.trace.layout import TraceError
from transport.trace.matrix import UNKNOWN
from transport.trace.protobuf import WireError, data, fields, number, signed, text, varint

from .writer import channel, communicator, operation, rank_of

START_US = 1_700_000_000_000_000
RING = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def message(body: bytes) -> bytes:
    return varint(len(body)) + body


def node(kind: int, name: str, took_us: int = 0, start_us: int = 0, **attributes: Any) -> bytes:
    """A node with attributes: texts as string_val, others as int64_val."""
    body = number(1, 7) + text(2, name) + number(3, kind) + data(5, varint(3) + varint(200))
    if start_us:
        body += number(6, start_us)
    if took_us:
        body += number(7, took_us)
    for key, value in attributes.items():
        one = text(29, value) if isinstance(value, str) else number(9, value)
        body += data(10, text(1, key) + one)
    return body


def trace(*nodes: bytes) -> bytes:
    return message(text(1, "1.0.0")) + b"".join(map(message, nodes))


def of_pytorch(rank: int) -> bytes:
    return trace(
        node(4, "aten::ones", 5),
        node(7, "c10d::allreduce_", 85, is_cpu_op=1),
        node(7, RING, 40, START_US, comm_type=0, comm_size=4096, pg_name="0"),
        node(7, "x", 10, START_US + 100, comm_type=7, comm_size=800, pg_name="0"),
        node(5 + rank, "x", 10, START_US + 200, comm_src=0, comm_dst=1, comm_size=64, comm_tag=9),
    )


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


def saved(folder: Path, *files: bytes) -> list[Path]:
    found = []
    for rank, content in enumerate(files):
        found.append(folder / f"chakra.{rank}.et")
        found[-1].write_bytes(content)
    return found


def read(*files: Path, assume_complete: bool = False) -> Import:
    traces = ChakraTraces(assume_complete)
    for file in files:
        traces.read(file)
    return traces.finish()


def test_chakra__of_the_own_export_has_its_operations(tmp_path: Path) -> None:
    """ReduceScatter and AllGather of 5 floats for each of 2 ranks, and a Send of 9 floats."""
    (tmp_path / "traces").mkdir()
    for rank in (0, 1):
        process = rank_of(tmp_path / "traces", rank, 2)
        comm = communicator(process, 0xAB, rank, 2, name="world")
        op = operation(process, comm, "ReduceScatter", 1000, 2000, count=5)
        channel(process, comm, op, 1 - rank, 20, 3000, 10_600)
        operation(process, comm, "AllGather", 20_000, 21_000, count=5)
        way = ("Send", "Recv")[rank]
        operation(process, comm, way, 30_000, 31_000, count=9, kind=1, root=1 - rank, tag=4)
        process.write()
    with open_store(tmp_path / "traces") as store:
        write_chakra(store, tmp_path / "et")
    files = sorted((tmp_path / "et").iterdir())
    out = tmp_path / "tables"
    done = run("trace", "import", "chakra", *files, "--assume-complete", "-o", out)
    assert done.exit_code == 0, done.output
    sql = "SELECT p.rank, o.function, o.kind, o.bytes, o.root, o.tag, m.name, m.ranks FROM "
    sql += "operations o JOIN processes p USING (process) "
    sql += "JOIN comms m ON m.process = o.process AND m.id = o.comm ORDER BY p.rank, o.begin_ns"
    with open_store(tmp_path / "tables") as store:
        both = [("ReduceScatter", "collective", 20), ("AllGather", "collective", 20)]
        assert store.rows(sql) == [
            *[(0, *one, None, 0, "world", 2) for one in both],
            (0, "Send", "p2p", 36, 1, 4, "", None),
            *[(1, *one, None, 0, "world", 2) for one in both],
            (1, "Recv", "p2p", 36, 0, 4, "", None),
        ]


def test_chakra__nodes_of_pytorch_become_operations(tmp_path: Path) -> None:
    files = saved(tmp_path, of_pytorch(0), of_pytorch(1))
    found = read(*files, assume_complete=True)
    assert found.notes == []
    assert found.read == {"nodes": 10, "operators": 2, "operations": 6, "communicators": 2}
    found.write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT function, bytes, count, datatype, algorithm, root, sequence, begin_ns, "
        sql += "end_ns FROM operations WHERE process = 0 ORDER BY id"
        begin_ns = START_US * 1000
        assert store.rows(sql) == [
            ("AllReduce", 4096, 1024, "ncclFloat32", "RING", None, 0, begin_ns, begin_ns + 40_000),
            # One of the two parts of 800 bytes.
            (
                *("ReduceScatter", 400, None, None, "", None, 1),
                *(begin_ns + 100_000, begin_ns + 110_000),
            ),
            ("Send", 64, None, None, "", 1, None, begin_ns + 200_000, begin_ns + 210_000),
        ]
        assert store.rows("SELECT sum(gpu_stop_ns - gpu_start_ns) FROM kernels") == [(120_000,)]
        matrix = matrix_of(store)
        # The ring of the AllReduce: 2 * 1/2 of 4,096 bytes each way, and the Send.
        assert matrix.dense_values().tolist() == [[0, 4160], [4096, 0]]


def test_chakra__ranks_of_groups_are_unknown_unless_assumed(tmp_path: Path) -> None:
    files = saved(tmp_path, of_pytorch(0), of_pytorch(1))
    found = read(*files)
    assert "import with --assume-complete" in found.notes[0]
    found.write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        matrix = matrix_of(store)
        assert matrix.dense_values().tolist() == [[0, 64], [0, 0]]
        assert int(matrix.dense_states()[1, 0]) == UNKNOWN
        scattered = [one for one in profile_of(store).operations if one.function != "AllReduce"]
        assert {one.function: one.bytes for one in scattered}["ReduceScatter"] is None
    for words in (["info"], ["profile"], ["matrix"], ["query", "SELECT 1"]):
        done = run("trace", words[0], tmp_path / "tables", *words[1:])
        assert done.exit_code == 0, done.output
    judged = run("diagnose", tmp_path / "tables")
    assert (judged.exit_code, judged.output[:10]) == (4, "not judged")


def test_chakra__without_times_durations_are_known(tmp_path: Path) -> None:
    nodes = [node(7, RING, 40, comm_type=0, comm_size=8, comm_group=3)]
    read(*saved(tmp_path, trace(*nodes))).write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT begin_ns, end_ns FROM operations") == [(None, None)]
        assert store.rows("SELECT name FROM comms") == [("3",)]
        assert profile_of(store).operations[0].time_ns == 40_000


def test_chakra__json_has_the_same_nodes(tmp_path: Path) -> None:
    """The form of Chakra's jsonizer, which is MessageToJson of protobuf."""
    attributes = [
        {"name": "is_cpu_op", "boolVal": False},
        {"name": "comm_type", "int64Val": "0"},
        {"name": "comm_size", "int64Val": "4096"},
        {"name": "pg_name", "stringVal": "0"},
    ]
    one: Any = {"id": "3", "name": RING, "type": "COMM_COLL_NODE", "startTimeMicros": str(START_US)}
    one |= {"durationMicros": "40", "attr": attributes}
    other = {"id": "4", "name": "aten::ones", "type": "COMP_NODE"}
    file = tmp_path / "chakra.0.json.gz"
    written = "".join(json.dumps(value, indent=2) for value in ({"version": "1"}, other, one))
    file.write_bytes(gzip.compress(written.encode()))
    read(file).write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        sql = "SELECT function, bytes, datatype, begin_ns FROM operations"
        assert store.rows(sql) == [("AllReduce", 4096, "ncclFloat32", START_US * 1000)]


def test_chakra__a_workload_graph_is_read(tmp_path: Path) -> None:
    """The form of Chakra's feeder; the public sample has no comm_type, but names of kernels."""
    nodes = [
        {"Id": 1, "Name": "c10d::broadcast_", "NodeType": 7, "is_cpu_op": True, "runtime": 85},
        {"Id": 2, "Name": "ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)", "NodeType": 7},
        {"Id": 3, "Name": "x", "NodeType": 7, "comm_type": 2, "comm_size": 16, "runtime": 3},
    ]
    file = tmp_path / "graph.5.json"
    file.write_text(json.dumps({"workload_graph": nodes, "ngpus": 8}))
    found = read(file)
    assert found.read["operators"] == 1
    found.write(tmp_path / "tables")
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT rank FROM processes") == [(5,)]
        sql = "SELECT function, bytes FROM operations ORDER BY id"
        assert store.rows(sql) == [("Broadcast", None), ("AllGather", 16)]


def test_chakra__names_of_files_tell_the_rank(tmp_path: Path) -> None:
    (file,) = saved(tmp_path, of_pytorch(0))
    unnamed = file.rename(tmp_path / "trace.et")
    with pytest.raises(TraceError, match=r"does not tell its rank: name it NAME\.RANK\.et"):
        read(unnamed)
    one, two = (tmp_path / name for name in ("a.0.et", "b.0.et"))
    one.write_bytes(of_pytorch(0))
    two.write_bytes(of_pytorch(0))
    with pytest.raises(TraceError, match="is another file of rank 0"):
        read(one, two)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\xff" * 20, "the size of a node does not end"),
        (trace(of_pytorch(0))[:-9], "the last node is not complete"),
        (varint(1 << 30), "is too large"),
        (message(number(1, 5)), "its first message is no GlobalMetadata"),
        (b"{}", "its first object is no GlobalMetadata"),
        (b'{"version": 1} [', "no execution trace"),
        (b'{"schema": "1.1.0-chakra.0.0.4", "pid": 1, "nodes": []}', "execution trace of PyTorch"),
        (b"\x1f\x8b\0\0", "cannot be decompressed"),
    ],
)
def test_chakra__other_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (file,) = saved(tmp_path, content)
    done = run("trace", "import", "chakra", file, "-o", tmp_path / "tables")
    assert done.exit_code == 2
    assert said in done.output
    assert isinstance(done.exception, SystemExit)


def test_chakra__metadata_of_123_bytes_is_not_taken_for_json(tmp_path: Path) -> None:
    head = text(1, "1") + data(2, text(1, "x" * 116))
    assert message(head)[:1] == b"{"
    (file,) = saved(tmp_path, message(head) + message(node(7, RING, comm_type=0)))
    assert read(file).read["operations"] == 1


@given(st.binary(max_size=60))
def test_wire__any_bytes_are_fields_or_an_error(content: bytes) -> None:
    try:
        found = [*fields(content)]
    except WireError:
        return
    assert len(found) <= len(content)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.binary(max_size=300))
def test_wire__fields_are_those_that_were_written(value: int, content: bytes) -> None:
    written = number(3, value) + data(4, content)
    (first, whole), second = fields(written)
    assert isinstance(whole, int)
    assert (first, signed(whole), second) == (3, value, (4, content))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 400), st.binary(max_size=30))
def test_chakra__survives_damage(tmp_path: Path, seed: int, cut: int, noise: bytes) -> None:
    good = of_pytorch(0)
    (file,) = saved(tmp_path, b"")
    for content in (mutated(good, random.Random(seed)), good[:cut] + noise, noise):
        file.write_bytes(content)
        try:
            read(file, assume_complete=True)
        except TraceError:
            continue


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values, values, values)
def test_chakra__survives_any_json(tmp_path: Path, a: Any, b: Any, c: Any) -> None:
    one = {"name": a, "type": "COMM_COLL_NODE", "startTimeMicros": b, "durationMicros": c}
    one |= {"attr": [{"name": "comm_type", "int64Val": b}, {"name": a, "xVal": c}, a]}
    graph = {"Name": a, "NodeType": 7, "comm_type": b, "comm_size": c, "runtime": a}
    file = tmp_path / "x.0.json"
    for document in (f'{{"version": 1}}{json.dumps(one)}', json.dumps({"workload_graph": [graph]})):
        file.write_text(document)
        try:
            read(file, assume_complete=True)
        except TraceError:
            continue
