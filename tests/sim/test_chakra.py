"""Chakra execution traces: files of ranks, written here with the fields of et_def.proto."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from transport.sim import ScenarioError, chakra, parse, run
from transport.sim.chakra import (
    COLLECTIVE,
    COMPUTATION,
    KINDS,
    RECEIVE,
    SEND,
    ChakraError,
    load,
    messages,
    read,
)

from .support import needs_fabric

pytest.importorskip("google.protobuf")

NETWORK = "[network]\nhosts = 8\nhosts_per_leaf = 8\nspines = 1\n"
WORKLOAD = '[[workload]]\npattern = "chakra"\nfile = "trace.{rank}.et"\n'

Row = dict[str, Any]


def framed(message: Any) -> bytes:
    image: bytes = message.SerializeToString()
    size, head = len(image), b""
    while size >= 0x80:
        head += bytes([size & 0x7F | 0x80])
        size >>= 7
    return head + bytes([size]) + image


def image_of(rows: list[Row]) -> bytes:
    """A file of nodes. A row has the fields of Node; other keys are attributes of kind int64."""
    head, node_class = messages()
    image = framed(head(version="0.0.4"))
    for row in rows:
        own = {name: row[name] for name in ("id", "name", "type", "duration_micros") if name in row}
        node = node_class(**own, data_deps=row.get("after", ()))
        for name, value in row.items():
            if name in own or name == "after":
                continue
            kind = "string_val" if isinstance(value, str) else "int64_val"
            node.attr.add(name=name, **{kind: value})
        image += framed(node)
    return image


def written(folder: Path, ranks: list[list[Row]]) -> Path:
    for rank, rows in enumerate(ranks):
        (folder / f"trace.{rank}.et").write_bytes(image_of(rows))
    return folder


def collective(number: int, kind: str, size: int, **more: Any) -> Row:
    row: Row = {"id": number, "type": COLLECTIVE, "comm_type": KINDS.index(kind)}
    return row | {"comm_size": size} | more


def ends(folder: Path) -> Any:
    _, job = load(folder, "trace.{rank}.et")
    return job.transfers


def test_chakra__messages_match_by_pair_and_tag_and_wait_for_computations(tmp_path: Path) -> None:
    compute = {"id": 1, "type": COMPUTATION, "duration_micros": 7, "name": "forward"}
    send = {"id": 2, "type": SEND, "after": [1], "comm_dst": 1, "comm_size": 5_000, "comm_tag": 3}
    receive = {"id": 9, "type": RECEIVE, "comm_src": 0, "comm_size": 5_000, "comm_tag": 3}
    made = ends(written(tmp_path, [[compute, send], [receive]]))
    assert made[["from", "to", "bytes", "start_ns"]].tolist() == [(0, 1, 5_000, 7_000)]


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_chakra__collectives_move_the_bytes_that_they_must(
    tmp_path: Path, kind: str, count: int
) -> None:
    size = 840_000
    made = ends(written(tmp_path, [[collective(4, kind, size)] for _ in range(count)]))
    sent = Counter[int]()
    for one in made[["from", "bytes"]].tolist():
        sent[one[0]] += one[1]
    part = size * (count - 1) // count
    each = {"all_reduce": 2 * part, "all_gather": part, "reduce_scatter": part, "all_to_all": part}
    if kind in each:
        assert dict(sent) == dict.fromkeys(range(count), each[kind])
    elif kind in ("broadcast", "scatter"):
        whole = size * (count - 1) if kind == "broadcast" else part
        assert dict(sent) == {0: whole}
    elif kind in ("reduce", "gather"):
        each_one = size if kind == "reduce" else size // count
        assert dict(sent) == dict.fromkeys(range(1, count), each_one)
    else:  # a barrier: one byte around the ring, twice
        assert sum(sent.values()) == 2 * (count - 1)
        assert len(made) == 2 * (count - 1) * count


def test_chakra__groups_are_the_ranks_that_name_them(tmp_path: Path) -> None:
    ranks = [[collective(1, "all_reduce", 4_000, pg_name=str(rank % 2))] for rank in range(4)]
    made = ends(written(tmp_path, ranks))
    pairs = set(map(tuple, made[["from", "to"]].tolist()))
    assert pairs == {(0, 2), (2, 0), (1, 3), (3, 1)}


@needs_fabric
def test_chakra__a_step_takes_its_computation_and_its_all_reduce(tmp_path: Path) -> None:
    """Two all-reduces with a computation between them, as fast as the scenario's own rings."""
    size = 8_000_000
    rows = [
        collective(0, "all_reduce", size),
        {"id": 1, "type": COMPUTATION, "duration_micros": 500, "after": [0]},
        collective(2, "all_reduce", size, after=[1]),
    ]
    file = str(written(tmp_path, [rows] * 8) / "scenario.toml")
    took = run(parse(NETWORK + WORKLOAD, file=file, folder=tmp_path)).summary()["completion_ns"]
    ring = f'[[workload]]\npattern = "all_reduce_ring"\nsize_bytes = {size}\n'
    alone = run(parse(NETWORK + ring, file=file)).summary()["completion_ns"]
    assert took == pytest.approx(2 * alone + 500_000, rel=0.02)


@needs_fabric
def test_chakra__a_generated_trace_needs_a_speed(tmp_path: Path) -> None:
    rows = [
        collective(0, "barrier", 1),
        {"id": 1, "type": COMPUTATION, "num_ops": 4_000_000, "name": "gemm", "after": [0]},
        collective(2, "all_gather", 1_000, after=[1]),
    ]
    file = str(written(tmp_path, [rows] * 2) / "scenario.toml")
    with pytest.raises(ScenarioError, match="num_ops and no duration: give ops_per_s"):
        parse(NETWORK + WORKLOAD, file=file, folder=tmp_path).check()
    made = parse(NETWORK + WORKLOAD + "ops_per_s = 1e9\n", file=file, folder=tmp_path)
    assert run(made).summary()["completion_ns"] > 4_000_000
    assert set(made.file_hashes()) == {"trace.0.et", "trace.1.et"}


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ([[collective(1, "all_reduce", 8)]], "no such file: a trace has at least two ranks"),
        ([[collective(1, "all_reduce", 8, after=[7])]] * 2, "depends on node 7, which"),
        ([[collective(1, "all_reduce", -8)]] * 2, "comm_size: -8: give from 0 to 1,099"),
        ([[collective(1, "all_reduce", 1 << 62)]] * 2, "comm_size: .*: give from 0 to"),
        ([[collective(1, "broadcast", 8, root_rank="zero")]] * 2, "root_rank: 'zero': give"),
        ([[{"id": 1, "type": COMPUTATION, "num_ops": "many"}]] * 2, "num_ops: 'many': give"),
        (
            [
                [
                    {"id": 1, "type": COMPUTATION, "duration_micros": 1 << 62},
                    collective(2, "all_reduce", 8, after=[1]),
                ]
            ]
            * 2,
            "node 2: the operations before it take more than",
        ),
        ([[{"id": 1, "type": COLLECTIVE, "comm_type": 0}]] * 2, "comm_size: missing"),
        ([[{"id": 1, "type": COLLECTIVE, "comm_type": 77}]] * 2, "comm_type is unknown"),
        ([[collective(1, "all_reduce", 8)] * 2] * 2, "two nodes have the number 1"),
        ([[{"id": 1, "type": SEND, "comm_dst": 0, "comm_size": 1}]] * 2, "give another rank"),
        (
            [[{"id": 5, "type": SEND, "comm_dst": 1, "comm_size": 1}], [{"id": 1, "type": 4}]],
            "send without a recv",
        ),
        (
            [[{"id": 1, "type": 4}], [{"id": 5, "type": RECEIVE, "comm_src": 0, "comm_size": 1}]],
            "node 5: recv without a send",
        ),
        (
            [[collective(1, "all_reduce", 8)], [collective(1, "all_gather", 8)]],
            "are of different kinds",
        ),
        (
            [[collective(1, "all_reduce", 8)], [{"id": 1, "type": 4}]],
            "rank 1 has no collective in it",
        ),
        (
            [[collective(1, "broadcast", 8, root_rank=4)]] * 2,
            "root_rank 4 is not in its group",
        ),
        ([[{"id": 1, "type": 4, "after": [1]}]] * 2, "require each other in a cycle"),
    ],
)
def test_chakra__what_is_wrong_is_named(tmp_path: Path, ranks: list[list[Row]], why: str) -> None:
    with pytest.raises(ChakraError, match=why):
        load(written(tmp_path, ranks), "trace.{rank}.et")


def test_chakra__more_messages_than_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chakra, "OPERATIONS_MAX", 100)
    with pytest.raises(ChakraError, match="more than 100 messages and computations: use fewer"):
        load(written(tmp_path, [[collective(1, "all_reduce", 8)]] * 8), "trace.{rank}.et")


def test_chakra__a_pattern_without_a_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChakraError, match=r"write \{rank\} where"):
        load(tmp_path, "trace.et")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_chakra__no_bytes_do_more_than_raise(image: bytes) -> None:
    try:
        nodes = read(image)
    except ChakraError:
        return
    assert all(math.isfinite(node.duration_ns) for node in nodes)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_chakra__a_file_that_is_cut_or_damaged_is_refused_or_read(data: st.DataObject) -> None:
    whole = image_of([collective(number, "all_reduce", 999) for number in range(4)])
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = whole[:at]
    damaged = bytearray(whole)
    damaged[at] ^= data.draw(st.integers(1, 255))
    for image in (cut, bytes(damaged)):
        with suppress(ChakraError):
            assert len(read(image)) <= 5
    assert len(read(whole)) == 4
