"""Tests of execution traces of Chakra: nodes, attributes, times, and that its schema fits."""

from pathlib import Path
from typing import Any

import pytest

from transport.trace import open_store
from transport.trace.chakra import write_chakra

from .chakra_schema import classes
from .test_commands import trace
from .wire import fields, varint
from .writer import AHEAD_NS, Process, channel, communicator, operation, rank_of

START = AHEAD_NS // 1000


def messages(file: Path) -> list[bytes]:
    data, at, found = file.read_bytes(), 0, []
    while at < len(data):
        size, at = varint(data, at)
        found.append(data[at : at + size])
        at += size
    assert at == len(data)
    return found


def nodes(file: Path) -> list[dict[str, Any]]:
    """The nodes, with their attributes under their names."""
    head, *rest = messages(file)
    assert fields(head) == {1: [b"1.0.0"]}
    found = []
    for node in map(fields, rest):
        one: dict[str, Any] = {
            "id": node[1][0],
            "name": node[2][0].decode(),
            "type": node[3][0],
            "after": [varint(packed, 0)[0] for packed in node[5]],
            "start": node[6][0],
            "took": node[7][0],
        }
        for attr in map(fields, node[10]):
            (name,) = attr.pop(1)
            ((number, (value,)),) = ((key, value) for key, value in attr.items() if value)
            one[name.decode()] = (number, value)
        found.append(one)
    return found


def job(folder: Path) -> None:
    for rank in (0, 1):
        process = rank_of(folder, rank, 2)
        comm = communicator(process, 0xAB, rank, 2, name="world")
        op = operation(process, comm, "ReduceScatter", 1000, 2000, count=5)
        channel(process, comm, op, 1 - rank, 20, 3000, 10_600)
        operation(process, comm, "AllGather", 20_000, 21_000, count=5)
        way = ("Send", "Recv")[rank]
        operation(process, comm, way, 30_000, 31_000, count=9, kind=1, root=1 - rank, tag=4)
        operation(process, comm, "AllReduceNew", 40_000, 41_000, count=5)
        process.write()


def test_chakra__has_a_node_for_each_operation(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    job(tmp_path / "traces")
    with open_store(tmp_path / "traces") as store:
        found = write_chakra(store, tmp_path / "out")
    assert (found.files, found.nodes, dict(found.left_out)) == (2, 6, {"AllReduceNew": 2})
    first, second, send = nodes(tmp_path / "out" / "weft.0.et")
    assert first == {
        "id": 1,
        "name": "ReduceScatter",
        "type": 7,
        "after": [],
        "start": START + 3,
        "took": 8,
        "is_cpu_op": (27, 0),
        "comm_type": (9, 7),
        "comm_size": (9, 40),
        "pg_name": (29, b"world"),
    }
    assert (second["comm_type"], second["comm_size"]) == ((9, 2), (9, 20))
    assert (second["after"], second["start"], second["took"]) == ([1], START + 20, 1)
    assert (send["type"], send["comm_src"], send["comm_dst"]) == (5, (7, 0), (7, 1))
    assert (send["comm_size"], send["comm_tag"]) == ((9, 36), (7, 4))
    recv = nodes(tmp_path / "out" / "weft.1.et")[2]
    assert (recv["type"], recv["comm_src"], recv["comm_dst"]) == (6, (7, 0), (7, 1))


def test_chakra__the_schema_reads_all_fields(tmp_path: Path) -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    made = classes()
    (tmp_path / "traces").mkdir()
    job(tmp_path / "traces")
    with open_store(tmp_path / "traces") as store:
        write_chakra(store, tmp_path / "out")
    head, *rest = messages(tmp_path / "out" / "weft.0.et")
    metadata = made["GlobalMetadata"]()
    metadata.ParseFromString(head)
    assert metadata.version == "1.0.0"
    for data in rest:
        node = made["Node"]()
        node.ParseFromString(data)
        assert node.SerializeToString(deterministic=True) == data
        attrs = {attr.name: attr for attr in node.attr}
        assert attrs["is_cpu_op"].bool_val is False
        assert attrs["pg_name"].string_val == "world"
        assert attrs["comm_size"].int64_val > 0
    assert (node.name, [*node.data_deps], attrs["comm_dst"].int32_val) == ("Send", [2], 1)


def test_chakra__a_peer_without_a_rank_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    process = Process(tmp_path / "traces")
    comm = communicator(process, 5, 0, 2)
    operation(process, comm, "Send", 1, 2, count=9, kind=1, root=7)
    process.write()
    with open_store(tmp_path / "traces") as store:
        found = write_chakra(store, tmp_path / "out")
    assert found.left_out == {"Send whose peer has no rank": 1}
    assert nodes(tmp_path / "out" / "weft.0.et") == []


def test_command__says_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    job(tmp_path / "traces")
    out = tmp_path / "out"
    done = trace("export", tmp_path / "traces", "--format", "chakra", "-o", out)
    assert done.stderr == f"wrote {out}: 6 nodes of 2 ranks; left out: 2 AllReduceNew\n"
    again = trace("export", tmp_path / "traces", "--format", "chakra", "-o", out)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
