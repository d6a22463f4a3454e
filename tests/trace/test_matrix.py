"""Tests matrices. The expected cells are computed from the values written to the trace files."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from transport.trace.matrix import (
    DERIVED,
    MEASURED,
    UNKNOWN,
    Filters,
    Matrix,
    matrix_of,
    total_text,
)
from transport.trace.places import ChoiceError
from transport.trace.store import open_store

from .writer import Process, channel, communicator, message, operation, rank_of

Cells = dict[tuple[str, str], tuple[float, int]]


def cells(found: Matrix) -> Cells:
    """(label of the row, of the column) -> value and state."""
    return {
        (found.labels[a], found.labels[b]): (value, state)
        for a, b, value, state in zip(
            found.sources.tolist(),
            found.targets.tolist(),
            found.values.tolist(),
            found.states.tolist(),
            strict=True,
        )
    }


def made(folder: Path, measure: str = "bytes", by_host: bool = False, **filters: Any) -> Matrix:
    with open_store(folder) as store:
        chosen = Filters(**filters)
        return matrix_of(store, measure, by_host=by_host, filters=chosen)


def ring(folder: Path, function: str, *, count: int = 100, root: int = -1, ranks: int = 4) -> None:
    """Writes traces of an operation, two ranks a node; only channels between nodes are recorded."""
    for rank in range(ranks):
        process = rank_of(folder, rank, ranks, per_node=2)
        comm = communicator(process, 5, rank, ranks)
        op = operation(process, comm, function, 10, 20, count=count, root=root)
        if rank % 2:
            channel(process, comm, op, (rank + 1) % ranks, 1000 + rank, 11, 19)
        else:
            channel(process, comm, op, (rank - 1) % ranks, 1000, 11, 19, sends=0)
        process.write()


def test_matrix__measures_the_network_and_derives_the_rest_of_a_ring(tmp_path: Path) -> None:
    ring(tmp_path, "AllReduce")
    found = made(tmp_path)
    assert (found.what, found.labels, found.unit) == ("rank", ("0", "1", "2", "3"), "bytes")
    sent = 2 * 3 / 4 * 400
    assert cells(found) == {
        ("0", "1"): (sent, DERIVED),
        ("1", "2"): (1001, MEASURED),
        ("2", "3"): (sent, DERIVED),
        ("3", "0"): (1003, MEASURED),
    }
    assert (found.unknown, found.notes) == ((), ())
    dense = found.dense_values()
    assert dense.shape == (4, 4)
    assert dense[3, 0] == 1003
    assert found.dense_states().sum() == 2 * MEASURED + 2 * DERIVED


@pytest.mark.parametrize(
    ("function", "root", "wanted"),
    [
        ("AllGather", -1, {("0", "1"): 1200.0, ("2", "3"): 1200.0}),
        ("ReduceScatter", -1, {("0", "1"): 1200.0, ("2", "3"): 1200.0}),
        ("Broadcast", 1, {("2", "3"): 400.0}),
        ("Broadcast", 2, {("0", "1"): 400.0, ("2", "3"): 400.0}),
        ("Reduce", 2, {("0", "1"): 400.0}),
        ("Reduce", 1, {("0", "1"): 400.0, ("2", "3"): 400.0}),
    ],
)
def test_matrix__derives_each_collective(
    tmp_path: Path, function: str, root: int, wanted: dict[tuple[str, str], float]
) -> None:
    ring(tmp_path, function, root=root)
    found = {at: value for at, (value, state) in cells(made(tmp_path)).items() if state == DERIVED}
    assert found == wanted


def test_matrix__a_channel_that_was_not_recorded_has_its_share(tmp_path: Path) -> None:
    for rank in range(2):
        process = rank_of(tmp_path, rank, 2)
        comm = communicator(process, 5, rank, 2)
        op = operation(process, comm, "AllReduce", 10, 20, count=100, channels=4)
        channel(process, comm, op, 1 - rank, 70, 11, 19, number=0)
        process.write()
    assert cells(made(tmp_path))["0", "1"] == (70 + 0.75 * 400, MEASURED | DERIVED)


@pytest.mark.parametrize("case", ["TREE", "NVLS", "other order", "another process's work"])
def test_matrix__what_cannot_be_divided_is_unknown(tmp_path: Path, case: str) -> None:
    algorithm = case if case.isupper() else "RING"
    for rank in range(4):
        process = rank_of(tmp_path, rank, 4)
        comm = communicator(process, 5, rank, 4)
        op = operation(process, comm, "AllReduce", 10, 20, count=100, algorithm=algorithm)
        if case == "other order" and rank == 2:
            channel(process, comm, op, 1, 50, 11, 19)
        if case.startswith("another") and rank == 0:
            channel(process, comm, 0, 1, 50, 11, 19)
        process.write()
    found = made(tmp_path)
    assert found.unknown == ((0, 1, 2, 3),)
    states = found.dense_states()
    assert (states[~np.eye(4, dtype=bool)] & UNKNOWN).all()
    assert not states.diagonal().any()
    assert all(state == MEASURED for _, state in cells(found).values())
    assert "who sent what is unknown" in found.notes[0]


@pytest.mark.parametrize("function", ["AllReduce", "Send"])
def test_matrix__an_operation_of_unknown_size_is_not_zero(tmp_path: Path, function: str) -> None:
    """Three ranks; rank 0 sends to rank 1 if it sends. The type of the elements is not known."""
    for rank in range(3 if function == "AllReduce" else 1):
        process = rank_of(tmp_path, rank, 3)
        comm = communicator(process, 5, rank, 3)
        more = {"kind": 1, "root": 1} if function == "Send" else {}
        operation(process, comm, function, 0, 5, count=8, datatype="new", **more)
        process.write()
    with open_store(tmp_path) as store:
        found = matrix_of(store)
    members = (0, 1, 2) if function == "AllReduce" else (0, 1)
    assert (found.values.size, found.unknown) == (0, (members,))
    count = 3 if function == "AllReduce" else 1
    assert f"the trace does not tell the size of {count} operations (?)" in found.notes
    assert total_text(found) == "?"


def test_matrix__messages_of_a_trace_without_channels_are_unknown(tmp_path: Path) -> None:
    for rank in range(2):
        process = rank_of(tmp_path, rank, 2)
        operation(process, communicator(process, 5, rank, 2), "AllReduce", 0, 5, count=8)
        process.write()
    with open_store(tmp_path) as store:
        found = matrix_of(store, "messages")
    assert (found.values.size, found.unknown) == (0, ((0, 1),))
    assert "no channels and no messages" in found.notes[0]


def test_matrix__sends_are_as_called(tmp_path: Path) -> None:
    """Rank 2 has no trace, so what it sent is computed from the receives of ranks 0 and 1."""
    for rank in range(2):
        process = rank_of(tmp_path, rank, 3)
        comm = communicator(process, 5, rank, 3)
        for peer in range(3):
            kind: dict[str, Any] = {
                "kind": 1,
                "root": peer,
                "channels": 0,
                "algorithm": "",
                "count": 10 + peer,
            }
            operation(process, comm, "Send", 10, 20, **kind)
            operation(process, comm, "Recv", 10, 20, **kind)
        process.write()
    assert cells(made(tmp_path)) == {
        ("0", "0"): (40, DERIVED),
        ("0", "1"): (44, DERIVED),
        ("0", "2"): (48, DERIVED),
        ("1", "0"): (40, DERIVED),
        ("1", "1"): (44, DERIVED),
        ("1", "2"): (48, DERIVED),
        ("2", "0"): (48, DERIVED),
        ("2", "1"): (48, DERIVED),
    }


def test_matrix__receives_stand_for_a_sender_without_trace(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 2)
    comm = communicator(process, 5, 0, 2)
    op = operation(process, comm, "AllReduce", 10, 20, channels=1)
    channel(process, comm, op, 1, 30, 11, 19)
    channel(process, comm, op, 1, 40, 11, 19, sends=0)
    process.write()
    wanted = {("0", "1"): (30, MEASURED), ("1", "0"): (40, MEASURED)}
    assert cells(made(tmp_path)) == wanted


def test_matrix__ranks_of_subgroups_become_ranks_of_the_job(tmp_path: Path) -> None:
    """One group has ranks 0 and 2, another has ranks 1 and 3; rank 3 has no trace."""
    for rank in range(3):
        process = rank_of(tmp_path, rank, 4)
        comm = communicator(process, 50 + rank % 2, rank // 2, 2)
        op = operation(process, comm, "AllReduce", 10, 20)
        channel(process, comm, op, 1 - rank // 2, 100 + rank, 11, 19)
        process.write()
    found = made(tmp_path)
    assert cells(found) == {("0", "2"): (100, MEASURED), ("2", "0"): (102, MEASURED)}
    assert found.notes == ("101 bytes are not shown: their peers have no trace and no row",)


def test_matrix__without_ranks_of_a_launcher_the_largest_communicator_counts(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        process = Process(tmp_path, "n", 9 - rank)
        comm = communicator(process, 5, rank, 3)
        small = communicator(process, 6, 1 - rank, 2)
        for of, peer in ((comm, 1 - rank), (small, rank), (comm, 2)):
            op = operation(process, of, "AllReduce", 10, 20)
            channel(process, of, op, peer, 100 + rank, 11, 19)
        process.write()
    found = made(tmp_path)
    assert (found.what, found.labels) == ("rank in communicator", ("0", "1", "2"))
    assert cells(found) == {
        ("0", "1"): (200, MEASURED),
        ("1", "0"): (202, MEASURED),
        ("0", "2"): (100, MEASURED),
        ("1", "2"): (101, MEASURED),
    }


def mixed(folder: Path) -> None:
    for rank in range(2):
        process = rank_of(folder, rank, 2, per_node=1)
        comm = communicator(process, 5, rank, 2, name="tensor")
        other = communicator(process, 6, rank, 2, name="data")
        op = operation(process, comm, "AllReduce", 1000, 2000)
        channel(process, comm, op, 1 - rank, 1, 1500, 1900)
        op = operation(process, other, "AllGather", 5000, 6000, datatype="ncclInt8")
        channel(process, other, op, 1 - rank, 10, 5500, 5900)
        op = operation(process, comm, "Send", 7000, 7500, kind=1, algorithm="", root=1 - rank)
        channel(process, comm, op, 1 - rank, 100, 7100, 7400)
        process.write()


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, 111),
        ({"comm": "tensor"}, 101),
        ({"comm": "0x6"}, 10),
        ({"function": "allreduce"}, 1),
        ({"kind": "p2p"}, 100),
        ({"kind": "collective"}, 11),
        ({"kind": "collective", "comm": "5"}, 1),
        ({"from_ns": 5500}, 110),
        ({"from_ns": 1500, "to_ns": 5500}, 1),
        ({"to_ns": 1500}, 0),
    ],
)
def test_matrix__filters(tmp_path: Path, filters: dict[str, Any], wanted: int) -> None:
    mixed(tmp_path)
    found = made(tmp_path, **filters)
    value = cells(found).get(("0", "1"), (0, 0))[0]
    assert value == wanted


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"comm": "pipe"}, "no communicator pipe; it has data"),
        ({"function": "Reduce"}, "no operations of the function Reduce, only: AllGather, AllRed"),
        ({"kind": "copies"}, "no operations of the kind copies"),
    ],
)
def test_matrix__says_what_there_is(tmp_path: Path, filters: dict[str, Any], said: str) -> None:
    mixed(tmp_path)
    with pytest.raises(ChoiceError, match=said):
        made(tmp_path, **filters)


def test_matrix__by_host(tmp_path: Path) -> None:
    ring(tmp_path, "AllReduce")
    found = made(tmp_path, by_host=True)
    assert (found.what, found.labels) == ("host", ("node0", "node1"))
    assert cells(found) == {
        ("node0", "node0"): (600, DERIVED),
        ("node0", "node1"): (1001, MEASURED),
        ("node1", "node1"): (600, DERIVED),
        ("node1", "node0"): (1003, MEASURED),
    }


def pair(folder: Path, with_channels: bool) -> None:
    """Writes traces of 100 messages of 5 segments; one segment of each message was resent."""
    for rank in range(2):
        process = Process(folder, f"h{rank}", 10 + rank)
        end = process.new("connection", 0, pair=99)
        over = 0
        if with_channels:
            comm = communicator(process, 5, rank, 2)
            op = operation(process, comm, "AllReduce", 10, 20, channels=1)
            over = channel(process, comm, op, 1 - rank, 1, 10, 20)
        for at in range(100):
            sends = 1 - rank
            message(process, end, at, 50, 1000, 1000 + at, sends, over)
            values = {"message": at, "bytes": 50, "segments": 5, "resent": 1, "sends": sends}
            process.new("stripe", 1000 + at, connection=end, **values)
        process.write()


def test_matrix__latency_is_of_messages_that_arrived(tmp_path: Path) -> None:
    """After a process is killed, messages end with an error, much later."""
    for rank in (0, 1):
        process = Process(tmp_path, f"h{rank}", 10 + rank)
        end = process.new("connection", 0, pair=99)
        message(process, end, 0, 50, 1000, 1100, 1 - rank)
        message(process, end, 1, 50, 1000, 9_000_000, 1 - rank, status=5)
        process.write()
    for measure in ("latency_mean", "latency_p99"):
        ((_, (value, _)),) = cells(made(tmp_path, measure)).items()
        assert value == 100


@pytest.mark.parametrize("with_channels", [False, True])
@pytest.mark.parametrize(
    ("measure", "wanted"),
    [("resent_bytes", 1000.0), ("latency_mean", 49.5), ("latency_p99", 98.01)],
)
def test_matrix__messages(tmp_path: Path, measure: str, wanted: float, with_channels: bool) -> None:
    pair(tmp_path, with_channels)
    found = made(tmp_path, measure)
    names = ("0", "1") if with_channels else ("h0:10", "h1:11")
    ((at, (value, state)),) = cells(found).items()
    assert at == names
    assert value == pytest.approx(wanted)
    assert state == MEASURED


@pytest.mark.parametrize(("measure", "wanted"), [("bytes", 5000), ("messages", 100)])
def test_matrix__without_communicators_processes_are_the_rows(
    tmp_path: Path, measure: str, wanted: int
) -> None:
    pair(tmp_path, False)
    found = made(tmp_path, measure)
    assert found.what == "process"
    assert cells(found) == {("h0:10", "h1:11"): (wanted, MEASURED)}
    assert not made(tmp_path, measure, to_ns=1).values.size


@given(
    st.integers(2, 6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 1 << 40)), max_size=30),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_matrix__sums_are_those_of_the_channels(
    tmp_path_factory: pytest.TempPathFactory, ranks: int, sent: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("sums")
    wanted: dict[tuple[str, str], float] = defaultdict(float)
    processes = [rank_of(folder, rank, ranks) for rank in range(ranks)]
    comms = [communicator(one, 5, rank, ranks) for rank, one in enumerate(processes)]
    for source, target, size in sent:
        if source < ranks and target < ranks:
            kind: dict[str, Any] = {"kind": 1, "algorithm": "", "root": target}
            op = operation(processes[source], comms[source], "Send", 1, 2, **kind)
            channel(processes[source], comms[source], op, target, size, 1, 2)
            wanted[str(source), str(target)] += size
    for process in processes:
        process.write()
    found = cells(made(folder))
    assert {at: value for at, (value, _) in found.items()} == wanted
