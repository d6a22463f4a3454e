"""Tests `weft trace profile`. The tests compute the expected rates as nccl-tests defines them."""

from pathlib import Path

import pytest

from transport.cli.trace_profile import communicator_cells, operation_cells
from transport.ground.collectives import bus_factor, whole_bytes
from transport.trace.difference import changes
from transport.trace.parallelism import guess
from transport.trace.profile import Operations, Profile, profile_of
from transport.trace.store import open_store

from .writer import channel, communicator, message, operation, rank_of


def made(folder: Path) -> Profile:
    with open_store(folder) as store:
        return profile_of(store)


def only(folder: Path) -> Operations:
    (found,) = made(folder).operations
    return found


@pytest.mark.parametrize(
    ("function", "whole", "factor"),
    [
        ("AllReduce", 400, 1.5),
        ("AllGather", 1600, 0.75),
        ("ReduceScatter", 1600, 0.75),
        ("AlltoAll", 1600, 0.75),
        ("Broadcast", 400, 1.0),
        ("Reduce", 400, 1.0),
    ],
)
def test_profile__bandwidths_are_those_of_nccl_tests(
    tmp_path: Path, function: str, whole: int, factor: float
) -> None:
    """Four ranks; each call has 400 bytes, and its channels are in use from 10 to 110 ns."""
    for rank in range(4):
        process = rank_of(tmp_path, rank, 4)
        comm = communicator(process, 5, rank, 4)
        op = operation(process, comm, function, 0, 5, count=100)
        channel(process, comm, op, (rank + 1) % 4, 300, 10, 60)
        channel(process, comm, op, (rank - 1) % 4, 300, 40, 110, sends=0)
        process.write()
    found = only(tmp_path)
    assert (found.count, found.bytes, found.time_ns) == (4, 1600, 400)
    assert found.timed_by == ("network",)
    assert found.algorithm_bytes_per_s == pytest.approx(whole / 100e-9)
    assert found.bus_bytes_per_s == pytest.approx(whole * factor / 100e-9)
    assert (whole_bytes(function, 400, 4), bus_factor(function, 4)) == (whole, factor)


def test_profile__calls_of_unknown_size_are_counted(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    comm = communicator(process, 5, 0, 1)
    operation(process, comm, "Broadcast", 30, 30, count=8, datatype="new")
    process.write()
    (found,) = made(tmp_path).operations
    (one,) = made(tmp_path).communicators
    assert (found.bytes, found.bytes_max, found.unsized) == (None, None, 1)
    assert (one.bytes, one.unsized) == (None, 1)
    assert operation_cells(found)[4:9] == ["1", "?", "?", "?", "?"]
    assert communicator_cells(one)[6:8] == ["?", "?"]
    assert (found.time_ns, one.time_ns) == (None, None)  # enqueued in no time, and without a kernel
    assert operation_cells(found)[10:12] == ["?", "?"]


def test_profile__sizes_and_shares(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    comm = communicator(process, 5, 0, 1)
    for at in range(100):
        operation(process, comm, "AllReduce", 0, 30, count=256 if at < 90 else 4096)
    operation(process, comm, "Send", 0, 1000, kind=1, algorithm="", protocol="", count=0)
    process.write()
    first, second = made(tmp_path).operations
    assert (first.function, first.bytes_p50, first.bytes_p95) == ("AllReduce", 1024, 16384)
    assert first.sizes == {10: 90, 14: 10}
    assert first.time_share == pytest.approx(0.75)
    assert (second.function, second.algorithm, second.sizes) == ("Send", "", {0: 1})
    assert (second.timed_by, second.bus_bytes_per_s) == (("enqueue",), None)


def test_profile__by_size_has_a_row_for_each_power_of_two(tmp_path: Path) -> None:
    """Two ranks: five AllReduces of 1 KiB that use their channels for 100 ns, one of 16 KiB for 1
    us, and a Send without a channel whose call takes 999 ns."""
    for rank in range(2):
        process = rank_of(tmp_path, rank, 2)
        comm = communicator(process, 5, rank, 2)
        for at, (count, ns) in enumerate([(256, 100)] * 5 + [(4096, 1000)]):
            op = operation(process, comm, "AllReduce", at, 5, count=count)
            channel(process, comm, op, 1 - rank, 4 * count, 10, 10 + ns)
        operation(process, comm, "Send", 0, 999, kind=1, algorithm="", protocol="", count=0)
        process.write()
    small, large, send = made(tmp_path).by_size
    assert (small.function, small.power, small.count, small.bytes) == ("AllReduce", 10, 10, 10_240)
    assert (small.time_ns, small.time_ns_p50, small.timed_by) == (1000, 100, ("network",))
    assert small.bus_bytes_per_s == pytest.approx(1024 / 100e-9)
    assert (large.power, large.count, large.time_ns_p50) == (14, 2, 1000)
    assert (send.function, send.power, send.count, send.bytes) == ("Send", 0, 2, 0)
    assert (send.time_ns_p50, send.bus_bytes_per_s, send.timed_by) == (999, None, ("enqueue",))


def test_profile__kernels_time_operations_without_channels(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 2)
    comm = communicator(process, 5, 0, 2)
    op = operation(process, comm, "AllReduce", 0, 5, count=100)
    for number in range(2):
        values = {"gpu_start_ns": 1000 + number, "gpu_stop_ns": 1100 + number}
        process.new("kernel", 50, operation=op, channel=number, **values)
    process.write()
    found = only(tmp_path)
    assert (found.time_ns, found.timed_by) == (101, ("kernel",))
    assert found.bus_bytes_per_s == pytest.approx(400 / 101e-9)


def test_profile__each_launch_of_a_captured_graph_counts(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 2)
    comm = communicator(process, 5, 0, 2)
    for begin in (0, 10_000):
        op = operation(process, comm, "AllReduce", begin, begin + 5, captured=1)
        channel(process, comm, op, 1, 300, begin + 10, begin + 60)
    process.write()
    (found,) = made(tmp_path).operations
    assert (found.count, found.time_ns) == (2, 100)


def test_profile__an_operation_without_its_communicator_counts(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 2)
    operation(process, 77, "AllGather", 0, 5, count=9, datatype="ncclNew")
    process.write()
    found = only(tmp_path)
    assert (found.count, found.bytes, found.bytes_max, found.sizes) == (1, None, None, {})


def test_profile__without_operations_says_what_there_is(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    for number in range(3):
        message(process, 7, number, 100, 10, 20, sends=1)
    process.write()
    assert made(tmp_path).notes == (
        "no operations of NCCL are recorded; 3 messages with 300 bytes were sent: see weft trace "
        "matrix",
    )


def test_profile__communicators(tmp_path: Path) -> None:
    for rank in range(4):
        process = rank_of(tmp_path, rank, 4, per_node=2)
        inner = communicator(process, 100 + rank // 2, rank % 2, 2, name="tp")
        outer = communicator(process, 200 + rank % 2, rank // 2, 2, nodes=2)
        operation(process, inner, "AllReduce", 0, 100, count=1000)
        operation(process, outer, "ReduceScatter", 0, 10, count=100)
        operation(process, outer, "AllGather", 0, 10, count=100)
        process.write()
    found = {one.comm_id: one for one in made(tmp_path).communicators}
    inner_0, outer_1 = found[f"{100:016x}"], found[f"{201:016x}"]
    assert (inner_0.name, inner_0.members, inner_0.parallelism) == ("tp", (0, 1), "tensor")
    assert (outer_1.members, outer_1.parallelism) == ((1, 3), "sharded data")
    assert (outer_1.count, outer_1.bytes, outer_1.nodes) == (4, 1600, 2)


@pytest.mark.parametrize(
    ("members", "functions", "peers", "wanted"),
    [
        (range(16), {"AllReduce": 1.0}, 0, "data"),
        (range(16), {"AllGather": 3.0, "AllReduce": 1.0}, 0, "sharded data"),
        (range(4), {"AllReduce": 1.0}, 0, "tensor"),
        (range(0, 16, 4), {"AllReduce": 1.0}, 0, "data"),
        ((0, 4), {"Send": 1.0, "Recv": 1.0}, 1, "pipeline"),
        (range(4), {"Send": 1.0, "Recv": 1.0}, 3, "expert"),
        (range(4), {"AlltoAll": 1.0}, 0, "expert"),
        ((0,), {"AllReduce": 1.0}, 0, ""),
        ((3,), {}, 0, ""),
    ],
)
def test_guess__follows_the_shape(
    members: range | tuple[int, ...], functions: dict[str, float], peers: int, wanted: str
) -> None:
    assert guess(list(members), len(members), 1, 16, functions, peers) == wanted


def test_changes__are_ordered_by_share() -> None:
    found = changes({("a",): 50, ("b",): 50}, {("a",): 90, ("c",): 10})
    assert [one.what for one in found] == [("b",), ("a",), ("c",)]
    assert found[0].share_change == -0.5
    assert [one.ratio for one in found] == [0, 1.8, None]
    assert changes({}, {}) == []
