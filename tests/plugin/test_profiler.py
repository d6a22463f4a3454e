"""Tests the profiler interface, versions 1 to 7, with a host program that profiles as NCCL does."""

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.environment import clean_environment
from tests.waiting import in_order, until
from transport.trace import Record, Segment, TraceError, read_segment

from .conftest import PATIENCE_S, built

VERSIONS = (1, 2, 3, 4, 5, 6, 7)
OPERATES = 5  # profiled AllReduces: one in the main thread, one in each of four threads


@pytest.fixture(scope="session")
def host(build_tree: Path) -> Path:
    return built(build_tree / "weft_profiler_host")


def profile(host: Path, library: Path, version: int, **variables: str) -> int:
    clean = clean_environment()
    return subprocess.run(
        [str(host), str(library), str(version)],
        env=clean | variables,
        timeout=PATIENCE_S,
        check=False,
    ).returncode


def only(folder: Path) -> Segment:
    (path,) = folder.iterdir()
    return read_segment(path)


def of(segment: Segment, kind: str) -> list[Record]:
    return [record for record in segment.records if record.kind == kind]


@pytest.mark.parametrize("version", VERSIONS)
def test_profiler__without_a_trace_asks_for_no_events(
    host: Path, plugin: Path, version: int
) -> None:
    assert profile(host, plugin, version) == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_profiler__records_operations_and_channels(
    host: Path, plugin: Path, version: int, tmp_path: Path
) -> None:
    assert profile(host, plugin, version, WEFT_TRACE=str(tmp_path)) == 0
    segment = only(tmp_path)
    assert (segment.damage, segment.dropped, segment.number) == ("", 0, 0)
    assert {"host", "pid", "start_ticks"} <= segment.identity.keys()

    (communicator,) = of(segment, "communicator")
    assert (communicator.fields["name"], communicator.fields["rank"]) == ("training", 1)
    assert communicator.fields["comm_id"] == 0x123456789ABCDEF0
    if version >= 4:
        assert (communicator.fields["ranks"], communicator.fields["nodes"]) == (4, 2)
    assert [end.id for end in of(segment, "communicator_end")] == [communicator.id]

    operations = of(segment, "operation")
    assert all(each.fields["communicator"] == communicator.id for each in operations)
    names = Counter((each.fields["function"], each.fields["datatype"]) for each in operations)
    assert names == {("AllReduce", "ncclFloat32"): OPERATES + 1, ("Send", "ncclInt8"): OPERATES}
    first = operations[0].fields
    assert (first["algorithm"], first["protocol"]) == ("RING", "SIMPLE")
    assert (first["sequence"], first["count"], first["channels"]) == (1, 1 << 20, 2)
    assert first["tag"] == (77 if version == 7 else 0)
    # From version 5 on, NCCL says when the program called it, and whether the call was captured.
    calls = [each for each in operations if each.fields["called_ns"]]
    assert len(calls) == (OPERATES if version >= 5 else 0)
    assert all(in_order(int(each.fields["called_ns"]), each.time_ns) for each in calls)
    assert sum(int(each.fields["captured"]) for each in operations) == (1 if version >= 5 else 0)
    sends = [each.fields for each in operations if each.fields["function"] == "Send"]
    assert {(each["root"], each["kind"], each["count"]) for each in sends} == {(3, 1, 5000)}


@pytest.mark.parametrize("version", VERSIONS)
def test_profiler__sums_up_the_steps_of_a_channel(
    host: Path, plugin: Path, version: int, tmp_path: Path
) -> None:
    """A channel's record sums its six steps, of which five carry 1,000 bytes each."""
    assert profile(host, plugin, version, WEFT_TRACE=str(tmp_path)) == 0
    segment = only(tmp_path)
    names = {each.id: each.fields["function"] for each in of(segment, "operation")}
    ends = {each.id: each.fields for each in of(segment, "channel_end")}
    used = [each for each in of(segment, "channel") if each.id in ends and ends[each.id]["steps"]]
    shape = Counter(
        (names[int(each.fields["operation"])], each.fields["peer"], each.fields["sends"])
        for each in used
    )
    assert shape == {
        ("AllReduce", 2, 1): 2 * OPERATES,
        ("AllReduce", 0, 0): 2 * OPERATES,
        ("Send", 3, 1): OPERATES,
    }
    assert {ends[each.id]["bytes"] for each in used} == {5000}
    assert {ends[each.id]["steps"] for each in used} == {6}
    if version >= 4:
        assert {ends[each.id]["messages"] for each in used} == {5}
    assert all(int(ends[each.id]["network_wait_ns"]) > 0 for each in used)
    # Channels to peer 2 are those of a proxy for another process, whose operation is unknown: 0.
    foreign = [each for each in of(segment, "channel") if each.fields["peer"] == 2]
    assert 0 in {each.fields["operation"] for each in foreign}


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_profiler__samples_the_times_of_kernels(
    host: Path, plugin: Path, version: int, tmp_path: Path
) -> None:
    """With a sample of one in three, some operations have the times of their kernels."""
    counts = []
    for every in (1, 3):
        folder = tmp_path / str(every)
        variables = {"WEFT_TRACE": str(folder), "WEFT_TRACE_KERNELS": str(every)}
        assert profile(host, plugin, version, **variables) == 0
        counts.append(len(of(only(folder), "kernel")))
    assert counts[0] == 2 * OPERATES
    assert 0 < counts[1] < counts[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_profiler__a_later_communicator_loses_no_events_of_those_that_run(
    host: Path, plugin: Path, version: int, tmp_path: Path
) -> None:
    assert profile(host, plugin, version, WEFT_TRACE=str(tmp_path), HOST_PLAY="joins") == 0


def open_operations(folder: Path) -> list[tuple[object, object]]:
    """The sequence and the peer of each operation with a channel that has not ended."""
    if not any(folder.iterdir()):
        return []
    segment = only(folder)
    ended = {each.id for each in of(segment, "channel_end")}
    opened = [each.fields for each in of(segment, "channel") if each.id not in ended]
    sequences = {each.id: each.fields["sequence"] for each in of(segment, "operation")}
    return [(sequences.get(int(each["operation"])), each["peer"]) for each in opened]


def test_profiler__a_killed_process_leaves_the_open_operation(
    host: Path, plugin: Path, tmp_path: Path
) -> None:
    clean = clean_environment()
    with subprocess.Popen(
        [str(host), str(plugin), "5"], env=clean | {"WEFT_TRACE": str(tmp_path), "HOST_DIES": "1"}
    ) as process:
        try:
            until(lambda: open_operations(tmp_path) == [(2, 0)], "no operation is open")
        finally:
            process.kill()
    assert only(tmp_path).damage == ""
    assert open_operations(tmp_path) == [(2, 0)]


def test_profiler__a_trace_that_cannot_be_written_is_said_and_stops_nothing(
    host: Path, plugin: Path
) -> None:
    clean = clean_environment()
    done = subprocess.run(
        [str(host), str(plugin), "5"],
        env=clean | {"WEFT_TRACE": "/nowhere/deeper"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert "cannot trace into /nowhere/deeper: it cannot be made: " in done.stderr
    assert "there will be no trace" in done.stderr


def test_segment__damaged_files_end_early_or_are_refused(
    host: Path, plugin: Path, tmp_path: Path
) -> None:
    assert profile(host, plugin, 5, WEFT_TRACE=str(tmp_path)) == 0
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    whole = read_segment(path)
    draw = random.Random(3)
    for index in range(3000):
        bad = bytearray(data[: draw.randrange(len(data))] if index % 2 else data)
        for _ in range(draw.choice((0, 1, 8))):
            if bad:
                bad[draw.randrange(len(bad))] = draw.randrange(256)
        path.write_bytes(bad)
        try:
            found = read_segment(path)
        except TraceError:
            continue
        assert found.records == whole.records[: len(found.records)]
        assert found.damage or len(found.records) == len(whole.records) or len(bad) < len(data)
    with pytest.raises(TraceError, match="No such file"):
        read_segment(tmp_path / "none")
