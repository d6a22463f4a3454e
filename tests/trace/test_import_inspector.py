"""Tests `weft trace import inspector`.

No NCCL Inspector ran here: the records are written from the schema that NCCL's repository documents
(plugins/profiler/inspector, README.md and inspector_json.cc, format v4.0).
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings, strategies as st

from transport.cli import weft
from transport.trace import matrix_of, open_store, profile_of
from transport.trace.inspector import InspectorLogs
from transport.trace.layout import TraceError

COMM = "0x7f8c496ae9f661"
BEGIN_US = 1_752_867_229_000_000
MS = 1000  # microseconds


def record(
    rank: int, number: int, name: str = "AllReduce", *, size: int = 1 << 20, **more: Any
) -> dict[str, Any]:
    """A record in the short form, with the coll_perf of the README."""
    metadata = {
        "inspector_output_format_version": "v4.0",
        "git_rev": "",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": BEGIN_US + 10**7,
        "hostname": f"node{rank // 2}",
        "pid": 100 + rank,
    }
    perf = {
        "coll": name,
        "coll_sn": number,
        "coll_msg_size_bytes": size,
        "coll_exec_time_us": 2 * MS,
        "coll_timing_source": "kernel_gpu",
        "coll_algobw_gbs": 0.52,
        "coll_busbw_gbs": 0.78,
    }
    header = {"id": COMM, "comm_name": "DP", "rank": rank, "n_ranks": 4, "nnodes": 2}
    return {"header": header, "metadata": metadata, "coll_perf": perf | more}


def verbose(rank: int, number: int, **more: Any) -> dict[str, Any]:
    """The same with the event trace: enqueued in 5 us, run from 100 us later on."""
    at = BEGIN_US + number * 10 * MS
    kernels = [
        {"channel_id": channel, "kernel_start_ts": at + 100, "kernel_stop_ts": at + 2100 - channel}
        for channel in (0, 1)
    ]
    times = {"coll_start_ts": at, "coll_stop_ts": at + 5, "kernel_events": kernels}
    return record(rank, number, event_trace_ts=times, **more)


def p2p(rank: int, peer: int, name: str) -> dict[str, Any]:
    found = record(rank, 0)
    del found["coll_perf"]
    perf = {"p2p": name, "p2p_sn": 1, "p2p_peer": peer, "p2p_msg_size_bytes": 8192}
    return found | {"p2p_perf": perf | {"p2p_exec_time_us": 50, "p2p_timing_source": "kernel_gpu"}}


def written(folder: Path, *of_ranks: list[dict[str, Any]]) -> Path:
    (folder / "logs").mkdir()
    for rank, records in enumerate(of_ranks):
        lines = "".join(json.dumps(one) + "\n" for one in records)
        (folder / "logs" / f"node{rank // 2}-pid{100 + rank}.log").write_text(lines)
    return folder / "logs"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


def imported(folder: Path, *files: Path) -> Path:
    done = run("trace", "import", "inspector", *files, "-o", folder / "tables")
    assert done.exit_code == 0, done.output
    return folder / "tables"


def test_inspector__operations_have_communicator_number_size_and_time(tmp_path: Path) -> None:
    logs = written(
        tmp_path,
        *([verbose(rank, 7), verbose(rank, 8, size=1 << 21)] for rank in range(4)),
    )
    with open_store(imported(tmp_path, logs)) as store:
        sql = "SELECT host, pid, rank, world_size FROM processes ORDER BY rank"
        assert store.rows(sql) == [(f"node{r // 2}", 100 + r, r, 4) for r in range(4)]
        sql = "SELECT DISTINCT comm_id, name, ranks, nodes FROM comms"
        assert store.rows(sql) == [(int(COMM, 16), "DP", 4, 2)]
        begin_ns = (BEGIN_US + 70 * MS) * 1000
        sql = "SELECT function, sequence, bytes, count, datatype, algorithm, begin_ns, end_ns "
        assert store.rows(sql + "FROM operations WHERE process = 2 ORDER BY sequence")[0] == (
            *("AllReduce", 7, 1 << 20, None, None, "", begin_ns, begin_ns + 5000),
        )
        # The GPU took 2 ms until the last channel stopped.
        sql = "SELECT gpu_stop_ns - gpu_start_ns, time_ns FROM kernels WHERE process = 2 ORDER BY 2"
        assert store.rows(sql)[0] == (2_000_000, begin_ns + 2_100_000)
        (found,) = profile_of(store).operations
        # 4 ranks x (1 MiB + 2 MiB) in 4 x 2 x 2 ms; a ring of 4 moves 2 * 3/4 of it.
        assert (found.count, found.bytes, found.time_ns) == (8, 12 << 20, 16_000_000)
        assert found.bus_bytes_per_s == pytest.approx((12 << 20) * 1.5 / 16e-3)
        assert matrix_of(store).unknown == ((0, 1, 2, 3),)  # the algorithm is not told


def test_inspector__without_event_traces_only_durations_are_known(tmp_path: Path) -> None:
    logs = written(tmp_path, *([record(rank, n) for n in range(3)] for rank in range(4)))
    done = run("trace", "import", "inspector", logs, "-o", tmp_path / "tables")
    assert "do not tell when 12 operations ran" in done.output
    assert "NCCL_INSPECTOR_DUMP_VERBOSE=1" in done.output
    with open_store(tmp_path / "tables") as store:
        assert store.rows("SELECT count(*) FROM operations WHERE begin_ns IS NOT NULL") == [(0,)]
        assert profile_of(store).operations[0].time_ns == 12 * 2_000_000
    for words in (["info"], ["profile"], ["matrix"], ["query", "SELECT 1"]):
        found = run("trace", words[0], tmp_path / "tables", *words[1:])
        assert found.exit_code == 0, found.output
    judged = run("diagnose", tmp_path / "tables")
    assert judged.output.startswith("not judged")
    assert judged.exit_code == 4


def test_inspector__sends_and_receives_have_peers(tmp_path: Path) -> None:
    logs = written(tmp_path, [p2p(0, 1, "Send")], [p2p(1, 0, "Recv")])
    with open_store(imported(tmp_path, logs)) as store:
        matrix = matrix_of(store)
        assert (matrix.sources.tolist(), matrix.targets.tolist()) == ([0], [1])
        assert matrix.values.tolist() == [8192.0]


def test_inspector__says_what_the_files_leave_out(tmp_path: Path) -> None:
    records = [record(0, 1), record(0, 5), record(0, 2, "ReduceScatter", size=9000)]
    records.append(record(0, 3, "ReduceScatter", coll_timing_source="collective_cpu"))
    records += [record(0, 4, "NewOne"), record(9, 4)]
    logs = InspectorLogs()
    logs.read(written(tmp_path, records))
    found = logs.finish()
    # AllReduce 2, 3 and 4 of its communicator are missing.
    assert found.notes[0].startswith("3 collectives between the first and the last are not in")
    assert "1 operations were timed by the CPU, not by the GPU" in found.notes
    assert dict(found.unknown) == {"NewOne": 1, "records without a communicator": 1}


def test_inspector__a_process_with_several_gpus_is_one_for_each(tmp_path: Path) -> None:
    records = [record(rank, 1) for rank in range(4)]
    for one in records:
        one["metadata"] |= {"pid": 5, "hostname": "h"}
    logs = InspectorLogs()
    logs.read(written(tmp_path, records))
    found = logs.finish()
    assert "processes with several GPUs count as one process for each GPU" in found.notes
    assert [one.facts["rank"] for one in found.sources.values()] == [0, 1, 2, 3]


def test_inspector__the_rank_is_that_of_the_largest_communicator(tmp_path: Path) -> None:
    small = record(0, 1)
    small["header"] = {"id": "0xab", "rank": 1, "n_ranks": 2, "nnodes": 1}
    large = record(3, 1)
    large["metadata"] = small["metadata"]
    with open_store(imported(tmp_path, written(tmp_path, [small, large]))) as store:
        assert store.rows("SELECT rank, world_size FROM processes") == [(3, 4)]
        assert store.rows("SELECT rank, ranks FROM comms ORDER BY ranks") == [(1, 2), (3, 4)]


def test_inspector__files_may_be_compressed_and_have_other_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    text = "starting\n\n" + json.dumps(record(0, 1)) + '\n{"cut off": \n'
    file.write_bytes(gzip.compress(text.encode()))
    logs = InspectorLogs()
    logs.read(file)
    read = logs.finish().read
    assert (read["operations"], read["lines"], read["lines that are no records"]) == (1, 4, 2)


@pytest.mark.parametrize("data", [b"", b"x\n", b"{}\n", b"\0" * 99, b"\x1f\x8b\0", b"[" * 9999])
def test_inspector__other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.log"
    file.write_bytes(data)
    done = run("trace", "import", "inspector", file, "-o", tmp_path / "tables")
    assert done.exit_code == 2
    assert "x.log" in done.output
    assert isinstance(done.exception, SystemExit)
    (tmp_path / "empty").mkdir()
    done = run("trace", "import", "inspector", tmp_path / "empty", "-o", tmp_path / "tables")
    assert "has no files of NCCL's Inspector" in done.output


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
places = st.sampled_from(
    [(part, name) for part, fields in verbose(0, 1).items() for name in fields]
    + [("coll_perf", "event_trace_ts"), ("header", "")]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(places, values), max_size=3), st.binary(max_size=40), st.integers(0, 999))
def test_inspector__survives_any_values(
    tmp_path: Path, changes: list[tuple[tuple[str, str], Any]], noise: bytes, cut: int
) -> None:
    good = json.dumps(verbose(0, 1)).encode()
    bad = verbose(0, 1)
    for (part, name), value in changes:
        if name:
            bad[part][name] = value
        else:
            bad[part] = value
            break
    file = tmp_path / "x.log"
    file.write_bytes(noise + good[:cut] + b"\n" + json.dumps(bad).encode() + b"\n" + noise)
    logs = InspectorLogs()
    try:
        logs.read(file)
    except TraceError:
        return
    logs.finish()


def late(folder: Path, rank: int, trace: bool) -> Path:
    """300 iterations; in every second one the GPU of a rank comes 3 ms late, and others wait."""
    of_ranks = []
    for one in range(4):
        records = [verbose(one, number) for number in range(300)]
        for at in range(0, 300, 2):
            perf = records[at]["coll_perf"]
            perf["coll_exec_time_us"] = (2 if one == rank else 5) * MS
            for kernel in perf["event_trace_ts"]["kernel_events"]:
                kernel["kernel_stop_ts"] += 3 * MS
        if not trace:
            for found in records:
                del found["coll_perf"]["event_trace_ts"]
        of_ranks.append(records)
    return imported(folder, written(folder, *of_ranks))


def test_inspector__a_rank_whose_gpu_comes_late_is_found(tmp_path: Path) -> None:
    found = json.loads(run("diagnose", late(tmp_path, 2, True), "--json", "-").output)
    first = found["findings"][0]
    assert (first["class"], first["place"]["name"]) == ("non_communication_slow", "rank 2")


def of_two_functions(rank: int) -> list[dict[str, Any]]:
    """An AllReduce and a ReduceScatter in turn; NCCL counts each function."""
    names = ("AllReduce", "ReduceScatter")
    return [verbose(rank, at // 2 + 1, name=names[at % 2]) for at in range(20)]


def test_inspector__a_record_that_one_file_lacks_is_no_other_call(tmp_path: Path) -> None:
    of_ranks = [of_two_functions(rank) for rank in range(4)]
    del of_ranks[3][8]
    tables = imported(tmp_path, written(tmp_path, *of_ranks))
    found = json.loads(run("diagnose", tables, "--json", "-").output)
    assert [one["class"] for one in found["findings"] if one["class"] == "mismatch"] == []


def test_inspector__a_rank_that_called_another_function_is_found(tmp_path: Path) -> None:
    of_ranks = [of_two_functions(rank) for rank in range(4)]
    of_ranks[3] = [verbose(3, 1, name="Broadcast"), *of_ranks[3]]
    tables = imported(tmp_path, written(tmp_path, *of_ranks))
    (first,) = json.loads(run("diagnose", tables, "--json", "-").output)["findings"]
    assert (first["class"], first["place"]["name"]) == ("mismatch", "rank 3")
    assert (
        "rank 3 called Broadcast, where 3 other ranks of the communicator called AllReduce."
        in (first["evidence"])
    )


def test_inspector__without_event_traces_no_rank_is_judged(tmp_path: Path) -> None:
    found = run("diagnose", late(tmp_path, 2, False))
    assert found.output.splitlines()[0] == "not judged: 4 ranks, no iteration"
    assert "no call has a kernel or a message" in found.output
    assert found.exit_code == 4
