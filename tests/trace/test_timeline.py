"""Tests of timelines: tracks, names, arrows, counters, limits, and that Perfetto's schema fits."""

import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from transport.trace import open_store
from transport.trace.places import ChoiceError
from transport.trace.store import Store
from transport.trace.timeline import Choice, Written, write_timeline

from .test_commands import trace
from .test_nonsense import nonsense
from .wire import Timeline, timeline
from .writer import AHEAD_NS, Process, channel, communicator, message, operation, rank_of


def written(store: Store, **choice: Any) -> tuple[Timeline, Written]:
    out = io.BytesIO()
    found = write_timeline(store, out, Choice(**choice))
    return timeline(out.getvalue()), found


def pair_of_ranks(folder: Path) -> None:
    """Rank 0 sends messages 0 and 1 of a channel to rank 1 over the paths 3 and 4."""
    for rank in (0, 1):
        process = rank_of(folder, rank, 2)
        comm = communicator(process, 0xAB, rank, 2, name="world")
        op = operation(process, comm, "AllGather", 100, 150, count=10, datatype="ncclBfloat16")
        link = process.new("connection", 90, pair=77, peer="10.0.0.1:7", datapath="udp")
        own = channel(process, comm, op, 1 - rank, 2000, 160, 400, sends=1 - rank)
        for at in (0, 1):
            began = 170 + 20 * at
            message(process, link, at, 1000, began, began + 100, 1 - rank, own)
            if rank == 0:
                shares = {f"path_{at + 3}": 200, "path_0": 55}
                process.new(
                    "stripe",
                    began + 99,
                    connection=link,
                    message=at,
                    sends=1,
                    bytes=1000,
                    engine=1,
                    segments=9,
                    posted_ns=began,
                    first_ns=began + 1,
                    **shares,
                )
        process.new("event", 300, what="path_down", path=3, connection=link)
        process.write()


def test_timeline__has_the_tracks_of_a_job(tmp_path: Path) -> None:
    pair_of_ranks(tmp_path)
    with open_store(tmp_path) as store:
        found, counts = written(store)
    assert counts.by_kind == {
        "operations": 2,
        "events": 2,
        "kernels": 0,
        "channels": 2,
        "samples": 0,
        "messages": 4,
        "stripes": 2,
    }
    assert (counts.events, counts.left_out) == (12, {})
    top = "rank 0 (node0:100)"
    comm = f"{top}/communicator world of 2 ranks"
    (op,) = found.of(f"{comm}/operations")
    assert (op.name, op.at_ns) == ("nccl:_all_gather_base", AHEAD_NS + 100)
    assert op.args == {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 20,
        "Group size": 2,
        "dtype": "BFloat16",
        "Process Group Name": "world",
        "Process Group Ranks": "[0, 1]",
        "communicator": "00000000000000ab",
        "Rank": 0,
        "bytes": 20,
        "algorithm": "RING",
        "protocol": "SIMPLE",
        "channels": 1,
        "sequence": 0,
        "enqueued for ns": 50,
    }
    # The slice of an operation ends when its last channel or kernel has ended.
    (end,) = found.of(f"{comm}/operations", "end")
    assert end.at_ns == AHEAD_NS + 400
    (work,) = found.of(f"{comm}/channel 0 to 1/work")
    assert (work.name, work.args["bytes"]) == ("AllGather", 2000)
    (instant,) = found.of(f"{top}/events", "instant")
    assert (instant.name, instant.args["path"]) == ("path_down", 3)
    for path in (3, 4):
        (stripe,) = found.of(f"{comm}/channel 0 to 1/path {path}")
        assert stripe.args["share of the path"] == pytest.approx(200 / 255)
        assert stripe.args["engine"] == 1


def test_timeline__arrows_lead_from_each_send_to_its_receive(tmp_path: Path) -> None:
    pair_of_ranks(tmp_path)
    with open_store(tmp_path) as store:
        found, _ = written(store)
        alone, _ = written(store, ranks=("1",))
    sent = found.of("rank 0 (node0:100)/communicator world of 2 ranks/channel 0 to 1/messages")
    got = found.of("rank 1 (node1:101)/communicator world of 2 ranks/channel 0 from 0/messages")
    assert [one.args["message"] for one in sent] == [0, 1]
    assert [one.starts for one in sent] == [one.ends for one in got]
    assert len({one.starts[0] for one in sent}) == 2
    assert not any(one.ends for one in sent)
    assert [one for one in alone.tracks if "/" not in one] == ["rank 1 (node1:101)"]


def test_timeline__slices_that_overlap_are_on_tracks_of_the_same_name(tmp_path: Path) -> None:
    pair_of_ranks(tmp_path)
    with open_store(tmp_path) as store:
        found, _ = written(store)
    names = [one for one in found.tracks if one.endswith("channel 0 to 1/messages")]
    assert len(names) == 2  # two tracks, because messages 0 and 1 overlap


def test_timeline__both_directions_of_a_connection_have_arrows_of_their_own(
    tmp_path: Path,
) -> None:
    for rank in (0, 1):
        process = Process(tmp_path, f"node{rank}", 100 + rank)
        link = process.new("connection", 0, pair=5, peer="10.0.0.1:7")
        for sends in (0, 1):
            message(process, link, 0, 10, 20, 30, sends)
        process.write()
    with open_store(tmp_path) as store:
        found, _ = written(store)
    assert "node0:100/connection 1 to 10.0.0.1:7/messages" in found.tracks
    begins = [one for one in found.events if one.type == "begin"]
    starts = {one.starts[0] for one in begins if one.name == "send"}
    assert len(starts) == 2
    assert starts == {one.ends[0] for one in begins if one.name == "receive"}


def test_timeline__counters_have_rates_between_samples(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    for at, total in enumerate((0, 5000, 6000)):
        values = {"engine": 0, "path": 3, "bytes_sent": total, "rtt_ns": 900 + at, "usable": 1}
        process.new("path", 1_000_000 * at, peer="10.0.0.1", **values)
    process.write()
    with open_store(tmp_path) as store:
        found, _ = written(store)
    name = "rank 0 (node0:100)/paths/path 3 to 10.0.0.1"
    assert [one.value for one in found.of(f"{name}: rate", "count")] == [5_000_000, 1_000_000, 0]
    assert [one.value for one in found.of(f"{name}: round trip", "count")] == [900, 901, 902]


def test_timeline__cpu_wait_is_a_share_of_the_time_before(tmp_path: Path) -> None:
    process = rank_of(tmp_path, 0, 1)
    for second, waited_ns in ((2, 250_000_000), (3, 5_000_000_000)):
        values = {"value": waited_ns, "status": 1000}
        process.new("event", second * 1_000_000_000, what="cpu_wait", **values)
    process.write()
    with open_store(tmp_path) as store:
        found, _ = written(store)
    counts = found.of("rank 0 (node0:100)/events/without a CPU core", "count")
    assert [one.value for one in counts] == [25, 100]
    assert counts[1].at_ns - counts[0].at_ns == 1_000_000_000


def test_timeline__a_limit_and_a_span_cut_and_the_limit_is_said(tmp_path: Path) -> None:
    pair_of_ranks(tmp_path)
    with open_store(tmp_path) as store:
        found, counts = written(store, limit=7)
        assert (counts.events, counts.left_out) == (7, {"messages": 3, "stripes": 2})
        assert len([one for one in found.events if one.type != "end"]) == 7
        _, counts = written(store, from_ns=95, to_ns=170)
        assert counts.by_kind["messages"] == 0
        _, counts = written(store, comm="world")
        assert counts.by_kind["messages"] == 4
        for bad in ({"ranks": ("9",)}, {"comm": "none"}):
            with pytest.raises(ChoiceError):
                written(store, **bad)


@pytest.mark.parametrize("seed", range(6))
def test_timeline__survives_any_values(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    for rank in range(2):
        process = rank_of(tmp_path, rank, 2)
        nonsense(process, draw, 200)
        process.write()
    with open_store(tmp_path) as store:
        found, counts = written(store)
    assert len([one for one in found.events if one.type != "end"]) >= counts.events


def test_timeline__the_schema_of_perfetto_reads_it(tmp_path: Path) -> None:
    module = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
    schema = pytest.importorskip(module, reason="perfetto is not installed")
    pair_of_ranks(tmp_path)
    with open_store(tmp_path) as store:
        out = io.BytesIO()
        write_timeline(store, out)
    found = schema.Trace()
    found.ParseFromString(out.getvalue())
    assert {clock.clock_id for clock in found.packet[0].clock_snapshot.clocks} == {1, 6}
    assert found.packet[0].sequence_flags == schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    events = [one.track_event for one in found.packet if one.HasField("track_event")]
    begins = [one for one in events if one.type == schema.TrackEvent.TYPE_SLICE_BEGIN]
    ends = [one for one in events if one.type == schema.TrackEvent.TYPE_SLICE_END]
    assert len(begins) == len(ends) == 10
    tracks = {one.track_descriptor.uuid for one in found.packet if one.HasField("track_descriptor")}
    assert {one.track_uuid for one in events} <= tracks
    assert sum(len(one.flow_ids) for one in begins) == 2
    assert sum(len(one.terminating_flow_ids) for one in begins) == 2
    pids = {one.track_descriptor.process.pid for one in found.packet} - {0}
    assert pids == {100, 101}
    # The parser would drop fields that the schema lacks, and the message would get shorter.
    assert len(found.SerializeToString()) == len(out.getvalue())


def test_command__replaces_a_file_only_by_a_whole_one(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    pair_of_ranks(tmp_path / "traces")
    out = tmp_path / "job.pftrace"
    out.write_text("before")
    words = ("timeline", tmp_path / "traces", "-o", out)
    assert trace(*words, "--rank", "9").returncode == 2
    assert out.read_text() == "before"
    assert trace(*words).returncode == 0
    assert len(out.read_bytes()) > 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.pftrace", "traces"]


def test_command__counts_what_info_counts(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    pair_of_ranks(folder)
    done = trace("timeline", folder, "-o", tmp_path / "t.pftrace", "--json", "-")
    shown = json.loads(done.stdout)["by_kind"]
    found = json.loads(trace("info", folder, "--json", "-").stdout)
    assert shown["messages"] == found["rows"]["messages"] == 4
    assert shown["stripes"] == found["sent"]["stripes"] == 2
    assert f"{shown['stripes']} sent stripes" in done.stderr
    rows = f"{found['rows']['stripes']} stripes (2 sent, "
    assert rows in trace("info", folder).stdout


def test_command__writes_a_file_and_says_what_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    pair_of_ranks(folder)
    out = tmp_path / "t.perfetto-trace.gz"
    done = trace("timeline", folder, "-o", out, "--limit", "7")
    assert done.returncode == 0, done.stderr
    assert "note: left out because of --limit 7: 3 messages, 2 sent stripes" in done.stdout
    assert done.stderr == f"wrote {out}: 2 operations, 2 events, 2 channels, 1 messages\n"
    assert timeline(gzip.decompress(out.read_bytes())).events
    for bad in (["--rank", "7"], ["--comm", "x"], ["--from", "nan"], ["--limit", "0"]):
        done = trace("timeline", folder, "-o", tmp_path / "u.perfetto-trace", *bad)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert not (tmp_path / "u.perfetto-trace").exists()
    assert trace("timeline", folder, "-o", tmp_path / "u.png").returncode == 2
