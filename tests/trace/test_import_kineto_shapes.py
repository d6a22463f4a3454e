"""Tests of PyTorch's traces before 2.2, whose sizes are the shapes of tensors.

All are made up, in the form of the public sample traces of DLRM in facebookresearch/param
(et_replay/tests/inputs): kernels have their correlation as External id, and nothing names a group.
"""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.fuzz.mutator import mutated
from transport.cli import weft
from transport.diagnose import diagnose
from transport.trace import matrix_of, open_store, profile_of
from transport.trace.file_names import NamedError, host_of, rank_of
from transport.trace.kernel_names import KernelName, kernel_name
from transport.trace.kineto import KinetoTraces
from transport.trace.kineto_calls import tensors
from transport.trace.layout import TraceError
from transport.trace.matrix import DERIVED, UNKNOWN
from transport.trace.torch_names import nccl_type, peers_of

ALL_REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
BEGIN_US = 1_694_128_201_000_000
# Elements of three AllReduces of floats: 621,313 floats are 2,485,252 bytes.
REDUCED = (394_241, 112, 226_960)


def event(cat: str, name: str, at: float, dur: float, **args: Any) -> dict[str, Any]:
    found = {"ph": "X", "cat": cat, "name": name, "pid": 50, "tid": 51}
    return found | {"ts": BEGIN_US + at, "dur": dur, "args": args}


def call(
    at: float,
    operator: str,
    name: str,
    shapes: list[Any],
    *,
    types: list[str],
    own: list[Any] | None = None,
    launch: int = 0,
    kernel: str = ALL_REDUCE,
    stream: int = 84,
    link: int = 10,
) -> Iterator[dict[str, Any]]:
    """The events of a call. shapes, types: of the operator. own: shapes of the named range."""
    of_operator: Any = {"External id": link, "Input Dims": shapes, "Input type": types}
    yield event("cpu_op", f"c10d::{operator}", at, 90, **of_operator)
    dims: Any = {"Input Dims": [[], [], []], "Input type": ["TensorList", "Scalar", ""]}
    yield event("cpu_op", "record_param_comms", at + 5, 80, **{"External id": link + 1}, **dims)
    given = {} if own is None else {"Input Dims": own, "Input type": ["float"] * len(own)}
    yield event("user_annotation", name, at + 20, 60, **{"External id": link + 2}, **given)
    if launch:
        ids = {"External id": launch, "correlation": launch}
        yield event("cuda_runtime", "cudaLaunchKernel", at + 40, 9, **ids)
        yield event("kernel", kernel, at + 300, 25, **ids, stream=stream) | {"pid": 0, "tid": 84}


def dlrm() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for number, count in enumerate(REDUCED):
        events += call(
            1000 * number,
            *("allreduce_", "nccl:all_reduce", [[], []]),
            types=["TensorList", "Scalar"],
            own=[[count]],
            launch=40_000 + number,
        )
    events += call(
        5000,
        *("alltoall_base_", "nccl:all_to_all", [[6144], [6144], []]),
        types=["float", "float", "Scalar"],
        own=[[6144]],
        launch=50_000,
        kernel=SEND_RECV,
    )
    return events


def saved(folder: Path, events: list[dict[str, Any]], rank: int = 0, world: int = 8) -> Path:
    info = {"backend": "nccl", "rank": rank, "world_size": world}
    file = folder / f"worker{rank}_step_12.16941282015{rank}.pt.trace.json"
    file.write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    return file


def imported(folder: Path, *files: Path, assume_world: bool = False) -> Path:
    found = KinetoTraces(assume_world)
    for file in files:
        found.read(file)
    found.finish().write(folder / "tables")
    return folder / "tables"


def rows(folder: Path, columns: str) -> list[tuple[Any, ...]]:
    with open_store(folder) as store:
        return store.rows(f"SELECT {columns} FROM operations ORDER BY id")


def test_shapes__give_sizes_and_what_is_not_told_is_unknown(tmp_path: Path) -> None:
    folder = imported(tmp_path, saved(tmp_path, dlrm()))
    assert rows(folder, "function, count, datatype, bytes, algorithm") == [
        ("AllReduce", 394_241, "ncclFloat32", 1_576_964, "RING"),
        ("AllReduce", 112, "ncclFloat32", 448, "RING"),
        ("AllReduce", 226_960, "ncclFloat32", 907_840, "RING"),
        # A rank's part of 6,144 floats cannot be told without the number of ranks.
        ("AlltoAll", None, "ncclFloat32", None, ""),
    ]
    with open_store(folder) as store:
        assert store.rows("SELECT host, pid, rank, world_size FROM processes") == [
            ("worker0", 50, 0, 8)
        ]
        assert store.rows("SELECT count(*) FROM kernels WHERE operation IS NULL") == [(0,)]
        reduced, exchanged = sorted(profile_of(store).operations, key=lambda one: one.function)
        assert (reduced.bytes, reduced.unsized, reduced.bus_bytes_per_s) == (2_485_252, 0, None)
        assert (exchanged.bytes, exchanged.unsized) == (None, 1)
        matrix = matrix_of(store)
        assert matrix.values.size == 0
        states = matrix.dense_states()
        assert [states[a, b] for a in range(8) for b in range(8) if a != b] == [UNKNOWN] * 56


def test_shapes__commands_show_unknown_and_not_zero(tmp_path: Path) -> None:
    folder = imported(tmp_path, saved(tmp_path, dlrm()))

    def output(*words: str) -> str:
        done = CliRunner().invoke(weft, ["trace", words[0], str(folder), *words[1:]])
        assert done.exit_code == 0, done.output
        return done.output

    text = output("matrix")
    assert text.splitlines()[0] == "bytes by rank: 8 x 8, ?"
    assert text.splitlines()[2].split() == ["0", ".", *"???????"]
    cells = json.loads(output("matrix", "--json", "-"))["cells"]
    assert len(cells) == 56
    assert {(one["value"], one["state"]) for one in cells} == {(None, "unknown")}
    page = tmp_path / "m.html"
    output("matrix", "--html", str(page))
    assert "<td>total</td><td>?</td>" in page.read_text()
    assert output("matrix", "--comm", "stream 0").splitlines()[0] == "bytes by rank: 8 x 8, ?"
    (exchanged,) = (one for one in output("profile").splitlines() if one.startswith("AlltoAll"))
    assert exchanged.split()[2:7] == ["1", "?", "?", "?", "?"]
    assert "2.485 MB + ?" in output("profile")
    info = output("info")
    assert "no trace of ranks 1-7 (of 8)" in info
    (unknown,) = (one for one in info.splitlines() if one.startswith("unknown size (?)"))
    assert unknown.split()[3:] == ["1", "operations"]


def test_shapes__a_comparison_shows_unknown_and_not_zero(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    unknown = imported(tmp_path, saved(tmp_path, dlrm()))
    known = imported(tmp_path / "other", *ended_ranks(tmp_path), assume_world=True)
    words = ["trace", "diff", str(unknown), str(known)]
    lines = CliRunner().invoke(weft, words).output.splitlines()
    (cell,) = (one.split() for one in lines if one.split()[:2] == ["0", "1"])
    assert cell[2] == "?"
    assert cell[5] == "?"  # the ratio, after a value and its unit
    found = json.loads(CliRunner().invoke(weft, [*words, "--json", "-"]).output)
    assert {(one["before"], one["ratio"]) for one in found["bytes"]} == {(None, None)}


def ended_ranks(folder: Path) -> list[Path]:
    return [ended(folder, rank, [1000]) for rank in range(3)]


def test_shapes__all_ranks_can_be_assumed(tmp_path: Path) -> None:
    files = [saved(tmp_path, dlrm(), rank) for rank in range(8)]
    folder = imported(tmp_path, *files, assume_world=True)
    assert rows(folder, "DISTINCT function, bytes, id")[3] == ("AlltoAll", 3072, 8)
    with open_store(folder) as store:
        assert store.rows("SELECT count(DISTINCT comm_id), max(ranks) FROM comms") == [(1, 8)]
        matrix = matrix_of(store)
        # A ring of 8 ranks sends 7/4 of 2,485,252 bytes to the next rank: 4,349,191.
        assert matrix.values.tolist() == [4_349_191.0] * 8
        assert [*zip(matrix.sources.tolist(), matrix.targets.tolist(), strict=True)] == [
            (rank, (rank + 1) % 8) for rank in range(8)
        ]
        # The AlltoAll is no ring, so each cell may be larger.
        assert set(matrix.dense_states()[range(8), [*range(1, 8), 0]]) == {DERIVED | UNKNOWN}


def ended(folder: Path, rank: int, counts: list[int]) -> Path:
    events: list[dict[str, Any]] = []
    for at, count in enumerate(counts):
        words: Any = {"types": ["TensorList"], "own": [[count]], "launch": 1000 + at}
        events += call(1000 * at, "allreduce_", "nccl:all_reduce", [[]], **words)
    return saved(folder, events, rank, 3)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_shapes__a_file_that_begins_later_is_no_other_call(tmp_path: Path, shift: int) -> None:
    """Nothing numbers the calls, so those of a profiler that was started later are compared so."""
    counts = [10, 20, 30] * 6
    files = [ended(tmp_path, rank, counts[shift if rank == 2 else 0 :]) for rank in range(3)]
    folder = imported(tmp_path, *files, assume_world=True)
    with open_store(folder) as store:
        assert [one for one in diagnose(store).findings if one.kind == "mismatch"] == []


def test_shapes__a_rank_that_called_another_size_is_found(tmp_path: Path) -> None:
    counts = [10, 20, 30] * 6
    wrong = [*counts[:7], 99, *counts[8:]]
    files = [ended(tmp_path, rank, wrong if rank == 2 else counts) for rank in range(3)]
    folder = imported(tmp_path, *files, assume_world=True)
    with open_store(folder) as store:
        (found,) = (one for one in diagnose(store).findings if one.kind == "mismatch")
        assert found.place.name == "rank 2"


def test_shapes__without_shapes_only_the_kernel_is_known(tmp_path: Path) -> None:
    events = [*call(0, "allreduce_", "nccl:all_reduce", [], types=[], launch=7)]
    for one in events:
        one["args"] = {
            key: value for key, value in one["args"].items() if not key.startswith("Input")
        }
    folder = imported(tmp_path, saved(tmp_path, events), assume_world=True)
    assert rows(folder, "count, datatype, bytes, algorithm") == [
        (None, "ncclFloat32", None, "RING")
    ]
    with open_store(folder) as store:
        matrix = matrix_of(store)
        assert "the trace does not tell the size of 1 operations (?)" in matrix.notes
        assert matrix.unknown == (tuple(range(8)),)


def test_shapes__an_external_id_that_is_a_correlation_names_no_call(tmp_path: Path) -> None:
    """The kernel of the second call has the External id of the first."""
    first = call(0, "allreduce_", "nccl:all_reduce", [[]], types=["TensorList"], own=[[1]], link=30)
    second = call(
        *(500, "allreduce_", "nccl:all_reduce", [[]]),
        types=["TensorList"],
        own=[[2]],
        launch=32,
        link=90,
    )
    folder = imported(tmp_path, saved(tmp_path, [*first, *second]))
    with open_store(folder) as store:
        sql = "SELECT o.count FROM kernels k JOIN operations o ON o.id = k.operation"
        assert store.rows(sql) == [(2,)]


def test_shapes__gathers_tell_how_many_ranks_share_a_stream(tmp_path: Path) -> None:
    """64 of 128 ranks: the output of an AllGather is 64 times its input."""
    words: Any = {"types": ["float", "float", ""], "kernel": SEND_RECV, "stream": 9}
    events = [
        *call(
            *(0, "_allgather_base_", "nccl:_all_gather_base", [[640, 10], [100], []]),
            own=[[100]],
            launch=1001,
            **words,
        ),
        *call(
            *(500, "_reduce_scatter_base_", "nccl:_reduce_scatter_base", [[8], [64, 8], []]),
            own=[[64, 8]],
            launch=1002,
            **words,
        ),
        *call(
            *(900, "alltoall_base_", "nccl:all_to_all", [[6400], [6400], []]),
            own=[[6400]],
            launch=1003,
            **words,
        ),
    ]
    folder = imported(tmp_path, saved(tmp_path, events, world=128), assume_world=True)
    assert rows(folder, "function, count, bytes") == [
        ("AllGather", 100, 400),
        ("ReduceScatter", 8, 32),
        ("AlltoAll", 100, 400),
    ]
    with open_store(folder) as store:
        assert store.rows("SELECT ranks, rank FROM comms") == [(64, None)]


def test_shapes__of_the_operator_serve_if_the_range_has_none(tmp_path: Path) -> None:
    shapes, types = [[12], [16], []], ["c10::Half", "c10::Half", "Scalar"]
    events = [*call(0, "alltoall_base_", "nccl:all_to_all", shapes, types=types, launch=5)]
    for one in events:
        if one["name"] == "record_param_comms":
            one["args"] = {}
    folder = imported(tmp_path, saved(tmp_path, events), assume_world=True)
    assert rows(folder, "count, datatype, bytes") == [(2, "ncclFloat16", 4)]


def test_tensors__are_counted_by_shape_and_type() -> None:
    def read(dims: Any, types: Any) -> list[tuple[int, str]]:
        return tensors({"Input Dims": dims, "Input type": types})

    assert read([[2, 3], [], [4]], ["float", "Scalar", "long int"]) == [
        (6, "float"),
        (4, "long int"),
    ]
    assert read([[]], ["float"]) == [(1, "float")]
    assert read([[[2, 3], [4]], []], ["TensorList", ""]) == [(10, "")]
    assert read([[0]], ["int"]) == [(0, "int")]
    assert read([[-1]], ["int"]) == []
    assert read([[1 << 40, 1 << 40]], ["int"]) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=12,
)


spots = st.tuples(
    st.integers(0, 99),
    st.sampled_from(
        [
            *("ts", "dur", "tid", "name", "args", "External id", "correlation", "Input Dims"),
            *("Input type", "stream", "In msg nelems", "Group size"),
        ]
    ),
)


@given(values, values)
def test_tensors__of_any_values_give_nothing_or_counts(dims: Any, types: Any) -> None:
    assert all(count >= 0 for count, _ in tensors({"Input Dims": dims, "Input type": types}))


@pytest.mark.parametrize(
    ("name", "host", "pid", "rank"),
    [
        ("worker0_step_12.1694128201545.pt.trace.json", "worker0", None, None),
        ("worker0_step_12.1.json", "worker0", None, None),
        ("node_7_step_3.json.gz", "node_7", None, None),
        ("gpu-3_771.1690000000.pt.trace.json.gz", "gpu-3", 771, None),
        ("a.b.example.org_771.1690000000.pt.trace.json", "a.b.example.org", 771, None),
        ("rank0.json.gz", "", None, 0),
        ("trace_rank_3.json", "", None, 3),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", "", None, 34),
        ("run.v2.RANK=7.json", "", None, 7),
        ("rank3_of_rank3.json", "", None, 3),
        ("frank5.json", "", None, None),
        ("t.json", "", None, None),
    ],
)
def test_names__tell_host_process_and_rank(
    name: str, host: str, pid: int | None, rank: int | None
) -> None:
    assert (host_of(name), rank_of(name)) == ((host, pid), rank)


def test_names__the_last_number_can_be_the_rank() -> None:
    assert rank_of("report.3.sqlite", last_number=True) == 3
    assert rank_of("weft.12.et.gz", last_number=True) == 12
    assert rank_of("rank2_node5.json", last_number=True) == 2


def test_names__of_two_ranks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NamedError, match=r"the ranks 1 and 8: name it with one rank"):
        rank_of("rank1_of_rank8.json")
    file = tmp_path / "rank1_rank8.json.gz"
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": dlrm()}).encode()))
    with pytest.raises(TraceError, match=r"rank1_rank8\.json\.gz: its name has the ranks"):
        KinetoTraces().read(file)


def test_names__the_trace_tells_the_rank_before_its_name(tmp_path: Path) -> None:
    traces = KinetoTraces()
    for name in ("rank7.json", "rank1_rank8.json"):
        file = saved(tmp_path, dlrm(), rank=3).rename(tmp_path / name)
        traces.read(file)
    found = traces.finish()
    assert [one.facts["rank"] for one in found.sources.values()] == [3, 3]
    assert found.notes[0] == "rank7.json is of rank 3, by its distributedInfo"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 8000), st.lists(st.tuples(spots, values)))
def test_shapes__survive_damage(
    tmp_path: Path, seed: int, cut: int, changes: list[tuple[tuple[int, str], Any]]
) -> None:
    """Damaged bytes, a part of the file, or any values in its events."""
    events = dlrm()
    for (at, name), value in changes:
        place = events[at % len(events)]
        args = place["args"]
        (args if isinstance(args, dict) and name in args else place)[name] = value
    texts = [json.dumps({"traceEvents": events}).encode()]
    good = json.dumps({"traceEvents": dlrm()}).encode()
    texts += [mutated(good, random.Random(seed)), good[:cut]]
    file = tmp_path / "rank0.json"
    for text in texts:
        file.write_bytes(text)
        traces = KinetoTraces(assume_world=bool(seed % 2))
        try:
            traces.read(file)
        except TraceError:
            continue
        traces.finish()


@pytest.mark.parametrize(
    ("name", "function", "algorithm", "datatype"),
    [
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            *("AllReduce", "RING", "ncclFloat32"),
        ),
        (
            "ncclDevKernel_ReduceScatter_Sum_bf16_TREE_LL",
            *("ReduceScatter", "TREE", "ncclBfloat16"),
        ),
        (
            "ncclDevKernel_AllReduce_Sum_u8_NVLS_TREE_SIMPLE",
            *("AllReduce", "NVLS_TREE", "ncclUint8"),
        ),
        ("ncclDevKernel_AllGather_RING_LL(x)", "AllGather", "RING", None),
        (ALL_REDUCE, "AllReduce", "RING", "ncclFloat32"),
        (
            "ncclKernel_AllReduce_TREE_LL_Sum___nv_bfloat16(x)",
            *("AllReduce", "TREE", "ncclBfloat16"),
        ),
        ("ncclKernel_AllReduce_RING_LL_Sum_uint8_t(x)", "AllReduce", "RING", "ncclUint8"),
        (SEND_RECV, None, "", None),
        ("ncclDevKernel_Generic_4(x)", None, "", None),
    ],
)
def test_kernels__names_tell_function_algorithm_and_type(
    name: str, function: str | None, algorithm: str, datatype: str | None
) -> None:
    assert kernel_name(name) == KernelName(function, algorithm, datatype)
    assert kernel_name("void gemm(float*)") is None


def test_names__of_types_in_cpp_are_known() -> None:
    names = ("float", "long int", "long", "unsigned char", "signed char", "c10::BFloat16", "bool")
    assert [nccl_type(one) for one in names] == [
        *("ncclFloat32", "ncclInt64", "ncclInt64", "ncclUint8", "ncclInt8", "ncclBfloat16"),
        "ncclUint8",
    ]


def test_names__of_sends_tell_the_peer() -> None:
    assert peers_of("nccl:send 0->3") == {"Dst Rank": 3}
    assert peers_of("nccl:recv 3<-1") == {"Src Rank": 1}
    assert peers_of("nccl:all_reduce") == {}
