"""Tests the overlap of computation and communication against sums by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from tests.trace import writer
from transport.cli import weft
from transport.estimate.overlap import length, overlap_of, shared, union
from transport.estimate.traced import gains_of, steps_of
from transport.trace.imported import Import
from transport.trace.layout import TraceError
from transport.trace.store import open_store


def kernel(name: str, begin_us: float, took_us: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": name, "ts": begin_us, "dur": took_us, **more}


STEP = [
    kernel("gemm", 0, 100),
    kernel("gemm", 100, 50),
    kernel(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 80, 100, args={"Collective name": "allreduce"}
    ),
    kernel("ncclDevKernel_AllGather_RING_LL", 190, 10),
    kernel("gemm", 195, 15),
    {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 205, "dur": 15},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 999},
    {"ph": "i", "name": "marker", "ts": 5},
    kernel("bad", float("nan"), 3),
]


def written(folder: Path, events: list[dict[str, Any]], zipped: bool = False) -> Path:
    text = json.dumps({"traceEvents": events, "baseTimeNanoseconds": 5}).replace("NaN", '"x"')
    file = folder / ("t.json.gz" if zipped else "t.json")
    file.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    return file


@pytest.mark.parametrize("zipped", [False, True])
def test_overlap__of_a_step(tmp_path: Path, zipped: bool) -> None:
    found = overlap_of(written(tmp_path, STEP, zipped))
    us = 1_000
    assert (found.span_ns, found.compute_ns) == (220 * us, 165 * us)
    assert (found.communication_ns, found.both_ns) == (110 * us, 75 * us)
    assert (found.exposed_ns, found.memory_ns, found.idle_ns) == (35 * us, 10 * us, 10 * us)
    assert found.overlap == pytest.approx(75 / 110)
    assert [(one.name, one.kernels, one.ns, one.exposed_ns) for one in found.parts] == [
        ("allreduce", 1, 100 * us, 30 * us),
        ("AllGather", 1, 10 * us, 5 * us),
    ]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=12)


@given(SPANS, SPANS)
def test_union__lengths_are_those_of_sets(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    sets = [
        {at for begin, took in spans for at in range(begin, begin + took)} for spans in (one, other)
    ]
    unions = [union([(begin, begin + took) for begin, took in spans]) for spans in (one, other)]
    assert [length(each) for each in unions] == [len(each) for each in sets]
    assert shared(*unions) == len(sets[0] & sets[1])


def test_overlap__a_file_that_ends_early_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    file = written(tmp_path, STEP)
    whole = file.read_text()
    file.write_text(whole[: whole.index("AllGather")])
    found = overlap_of(file)
    assert found.notes == ("the file ends early: what is missing counts as idle",)
    assert found.compute_ns == 150_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is no trace of PyTorch's profiler"),
        ("{}", "it has no traceEvents"),
        ('{"traceEvents": [{"ph": "i"}]}', "has no GPU kernels: record with ProfilerActivity.CUDA"),
        ('{"traceEvents": 3}', "the file's traceEvents is not a list"),
    ],
)
def test_overlap__other_files_are_one_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        overlap_of(file)
    assert said in str(caught.value)


def test_command__prints_what_is_exposed(tmp_path: Path) -> None:
    written(tmp_path, STEP)
    done = CliRunner().invoke(weft, ["estimate", "overlap", str(tmp_path)])
    assert done.exit_code == 0
    assert "computation hides 68.2 % of the communication" in done.output
    done = CliRunner().invoke(weft, ["estimate", "overlap", str(tmp_path), "--json", "-"])
    assert json.loads(done.output)[0]["exposed_ns"] == 35_000
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(weft, ["estimate", "overlap", str(tmp_path / "empty")])
    assert (done.exit_code, "has no .json" in done.output) == (2, True)


def ddp(
    buckets: list[int], backward_us: int, byte_us: float, steps: int = 3
) -> list[dict[str, Any]]:
    """Steps of DDP whose gradients become ready at an even rate; buckets: elements of 4 bytes."""
    events, begin, whole = [], 0.0, sum(buckets)
    for _ in range(steps):
        rate, end, ready = whole / backward_us, 0.0, 0
        for count in buckets:
            ready += count
            at = max(begin + ready / rate, end)
            end = at + 20 + count * 4 * byte_us
            args = {"Collective name": "allreduce", "In msg nelems": count, "dtype": "Float"}
            events.append(kernel("ncclDevKernel_AllReduce", at, end - at, args=args))
        events.append(kernel("gemm", begin, backward_us))
        begin = end + 100
    return events


def test_buckets__that_would_hide_more(tmp_path: Path) -> None:
    # One large bucket at the end is sent when nothing computes any more.
    events = ddp([1 << 18, 100 << 18], 100_000, 0.5e-3)
    found = overlap_of(written(tmp_path, events)).buckets
    assert found is not None
    assert (found.steps, found.buckets, found.step_bytes) == (3, 2, 101 << 20)
    assert found.latency_ns == pytest.approx(20_000, rel=0.01)
    assert found.bytes_per_s == pytest.approx(2e9, rel=0.01)
    assert found.exposed_ns == pytest.approx((20 + (100 << 20) * 0.5e-3) * 1e3, rel=0.02)
    size, exposed_ns = found.best
    assert size <= 4 << 20
    assert exposed_ns < 0.1 * found.exposed_ns
    said = CliRunner().invoke(weft, ["estimate", "overlap", str(tmp_path)]).output
    assert f"DistributedDataParallel(bucket_cap_mb={size >> 20})" in said


def test_buckets__latency_asks_for_larger_ones(tmp_path: Path) -> None:
    found = overlap_of(written(tmp_path, ddp([1 << 16] + [1 << 18] * 63, 1_000, 0.01e-3))).buckets
    assert found is not None
    assert found.best[0] > 1 << 20


@pytest.mark.parametrize(
    "events",
    [
        ddp([1 << 18], 1_000, 1e-3),  # one bucket a step
        ddp([1 << 18, 2 << 18], 1_000, 1e-3, steps=1),
        [
            kernel("ncclDevKernel_AllReduce", at, 5, args={"In msg nelems": at, "dtype": "Float"})
            for at in range(1, 9)
        ],
        [*ddp([1 << 18, 2 << 18], 1_000, 1e-3)[:2], kernel("gemm", 0, 1)],
    ],
)
def test_buckets__without_steps_nothing_is_said(tmp_path: Path, events: list[Any]) -> None:
    assert overlap_of(written(tmp_path, events)).buckets is None


def traced(folder: Path, steps: int) -> None:
    """Two ranks: a warm-up, then steps of 10 ms with an AllReduce of 3 ms and an AllGather that
    overlaps the last of these for 1 ms, and takes 2 ms."""
    ms = 1_000_000
    for rank in range(2):
        process = writer.rank_of(folder, rank, 2)
        comm = writer.communicator(process, 7, rank, 2)
        kinds = [("Broadcast", 1 << 10, 0, 5 * ms)]
        for step in range(steps):
            begin = (20 + 10 * step) * ms
            kinds.append(("AllReduce", 1 << 20, begin, begin + 3 * ms))
            kinds.append(("AllGather", 1 << 18, begin + 2 * ms, begin + 4 * ms))
        for function, size, begin, end in kinds:
            op = writer.operation(process, comm, function, begin, begin + 1, count=size // 4)
            writer.channel(process, comm, op, 1 - rank, size, begin, end)
        process.write()


def test_overlap__of_a_trace_of_weft(tmp_path: Path) -> None:
    traced(tmp_path, 8)
    with open_store(tmp_path) as store:
        plain, notes = steps_of(store, None)
        split, _ = steps_of(store, 7_000_000)
        with pytest.raises(TraceError, match="takes 10 ms, less than the 11 ms"):
            steps_of(store, 11_000_000)
    assert notes == []
    assert [(one.rank, one.steps, one.operations) for one in plain] == [(0, 8, 2), (1, 8, 2)]
    assert (plain[0].step_ns, plain[0].communication_ns) == (10e6, 4e6)
    assert plain[0].parts == {"AllReduce": 3e6, "AllGather": 2e6}
    assert plain[0].exposed_ns is None
    assert (split[0].exposed_ns, split[0].hidden_ns, split[0].idle_ns) == (3e6, 1e6, 0.0)


def test_gains__are_between_what_is_exposed_and_what_communication_saves(tmp_path: Path) -> None:
    """4 ms of a step of 10 ms are communication; if it computes for 7 ms, 3 ms are exposed."""
    traced(tmp_path, 8)
    with open_store(tmp_path) as store:
        plain, _ = steps_of(store, None)
        split, _ = steps_of(store, 7_000_000)
    found = [(one.times, one.least_ns, one.most_ns) for one in gains_of(split)]
    assert found == [(2, 1.5e6, 2e6), (4, 2.25e6, 3e6), (None, 3e6, 3e6)]
    assert [one.most_share for one in gains_of(split)] == pytest.approx([0.2, 0.3, 0.3])
    unknown = [(one.least_ns, one.most_ns) for one in gains_of(plain)]
    assert unknown == [(0.0, 2e6), (0.0, 3e6), (0.0, 4e6)]
    assert gains_of([]) == []


def test_overlap__of_a_trace_of_weft_by_the_command(tmp_path: Path) -> None:
    traced(tmp_path, 8)
    run = CliRunner().invoke
    shown = run(weft, ["estimate", "overlap", str(tmp_path), "--alone", "5 ms"])
    assert shown.exit_code == 0, shown.output
    assert "40.0 %" in shown.output
    assert "AllReduce 3 ms" in shown.output
    assert "infinitely fast" in shown.output
    rows = json.loads(run(weft, ["estimate", "overlap", str(tmp_path), "--json", "-"]).output)
    assert rows["steps"][1]["communication_ns"] == 4e6
    assert [one["times"] for one in rows["faster"]] == [2, 4, None]
    assert any("--alone" in note for note in rows["notes"])
    file = written(tmp_path, STEP)
    refused = run(weft, ["estimate", "overlap", str(file), "--alone", "5 ms"])
    assert refused.exit_code == 2
    assert "--alone applies only to a trace of weft" in refused.output
    both = run(weft, ["estimate", "overlap", str(file), str(tmp_path)])
    assert both.exit_code == 0, both.output  # the folder's .json is meant


def test_overlap__a_trace_of_weft_without_steps(tmp_path: Path) -> None:
    traced(tmp_path, 1)
    with open_store(tmp_path) as store, pytest.raises(TraceError, match="3 steps or more"):
        steps_of(store, None)


def test_overlap__imported_tables_are_told_what_to_give(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1}
    file.write_text(json.dumps({"traceEvents": [event], "distributedInfo": {"rank": 0}}))
    out = tmp_path / "tables"
    run = CliRunner().invoke
    assert run(weft, ["trace", "import", "kineto", str(file), "-o", str(out)]).exit_code == 0
    done = run(weft, ["estimate", "overlap", str(out), "--alone", "5ms"])
    assert done.exit_code == 2
    assert "give the files of PyTorch's profiler instead" in done.output


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("nccl-log", "do not tell when the GPU computes: give a trace of weft instead"),
        ("flight", "give the files of PyTorch's profiler, or a trace of weft, instead"),
        ("chakra", "give the files of PyTorch's profiler, or a trace of weft, instead"),
        ("inspector", "do not tell when operations ran: give logs that were written with"),
        ("nsys", "give exports with CUDA kernels"),
    ],
)
def test_overlap__tables_without_times_are_told_what_to_give(
    tmp_path: Path, kind: str, said: str
) -> None:
    made = Import(kind)
    source = made.source(0, Path(__file__), rank=0)
    made.add("operations", source, id=1, function="AllReduce", kind="collective")
    made.write(tmp_path)
    done = CliRunner().invoke(weft, ["estimate", "overlap", str(tmp_path)])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def calls(folder: Path, begins_ms: list[float], took_ms: float) -> None:
    """One rank whose AllReduces, all of one size, begin at these times."""
    process = writer.rank_of(folder, 0, 2)
    comm = writer.communicator(process, 7, 0, 2)
    for begin_ms in begins_ms:
        begin, end = int(begin_ms * 1e6), int((begin_ms + took_ms) * 1e6)
        op = writer.operation(process, comm, "AllReduce", begin, begin + 1, count=256)
        writer.channel(process, comm, op, 1, 1024, begin, end)
    process.write()


def test_overlap__equal_buckets_of_a_step_are_one_step(tmp_path: Path) -> None:
    calls(tmp_path, [10.0 * step + at for step in range(8) for at in (0.0, 1.0, 2.0)], 0.5)
    with open_store(tmp_path) as store:
        (found,), notes = steps_of(store, 9_000_000)
        (told,), _ = steps_of(store, None, 6)
        with pytest.raises(TraceError, match="3 steps or more"):
            steps_of(store, None, 24)
    assert (found.operations, found.step_ns, found.communication_ns) == (3, 10e6, 1.5e6)
    assert (found.exposed_ns, notes) == (1e6, [])
    assert (told.steps, told.step_ns) == (4, 20e6)


def test_overlap__uneven_steps_are_marked(tmp_path: Path) -> None:
    calls(tmp_path, [0, 1, 3, 9, 10, 17, 30, 31, 33, 50, 58, 59, 61, 80, 81], 0.5)
    with open_store(tmp_path) as store:
        _, notes = steps_of(store, None)
    assert any("uneven times" in note for note in notes)


def test_overlap__operations_that_overlap_themselves_are_no_steps(tmp_path: Path) -> None:
    calls(tmp_path, [0.1 * at for at in range(8)], 50.0)
    with open_store(tmp_path) as store, pytest.raises(TraceError, match="3 steps or more"):
        steps_of(store, None)


def test_overlap__a_time_needs_a_unit(tmp_path: Path) -> None:
    traced(tmp_path, 8)
    refused = CliRunner().invoke(weft, ["estimate", "overlap", str(tmp_path), "--alone", "4"])
    assert refused.exit_code == 2
    assert "write 4ms" in refused.output
