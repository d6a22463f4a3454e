"""Tests `weft trace import flight`: dumps of PyTorch's Flight Recorder, and what they tell.

The dumps here have the fields that PyTorch 2.11 writes (tests/device/flight_recorder.py made some).
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

from transport.cli import weft
from transport.trace.flight import FlightDumps
from transport.trace.layout import TraceError

SECOND = 10**9
BEGIN_NS = 1_790_000_000 * SECOND
USER = {"name": "train", "filename": "/job/train.py", "line": 88}
TORCH = {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/c10d.py", "line": 1}


def entry(
    number: int, name: str = "all_reduce", *, done: bool = True, **more: Any
) -> dict[str, Any]:
    created_ns = BEGIN_NS + number * SECOND
    made = {
        "frames": [TORCH, USER],
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": created_ns,
        "input_sizes": [[1024, 4]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[1024, 4]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created_ns + SECOND // 10 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return made | more


def dump(entries: list[dict[str, Any]], ranks: int = 4) -> dict[str, Any]:
    config = {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}
    return {"version": "2.10", "pg_config": {"0": config}, "entries": entries}


def written(folder: Path, dumps: dict[int, dict[str, Any]], how: str = "pickle") -> list[Path]:
    files = []
    for rank, one in dumps.items():
        file = folder / f"nccl_trace_rank_{rank}"
        if how == "pickle":
            file.write_bytes(pickle.dumps(one))
        elif how == "json":
            file = file.with_suffix(".json")
            file.write_text(json.dumps(one))
        else:
            file = file.with_suffix(".json.gz")
            file.write_bytes(gzip.compress(json.dumps(one).encode()))
        files.append(file)
    return files


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(weft, [str(word) for word in words])


def diagnosed(folder: Path, files: list[Path]) -> dict[str, Any]:
    out = folder / "tables"
    done = run("trace", "import", "flight", *files, "-o", out)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(run("diagnose", out, "--json", "-").output)
    return found


@pytest.mark.parametrize("how", ["pickle", "json", "gzip"])
def test_flight__a_rank_that_did_not_call_is_named_with_its_stack(tmp_path: Path, how: str) -> None:
    waits = [*(entry(n) for n in range(1, 5)), entry(5, done=False)]
    absent = [entry(n) for n in range(1, 5)]
    dumps = {rank: dump(absent if rank == 2 else waits) for rank in range(4)}
    found = diagnosed(tmp_path, written(tmp_path, dumps, how))
    first = found["findings"][0]
    assert (first["class"], first["place"]["name"]) == ("non_communication_hang", "rank 2")
    assert first["certain"]
    assert (
        "3 of 4 ranks wait in AllReduce number 5, and rank 2 did not call it" in first["evidence"]
    )
    assert "Its last call came from /job/train.py:88 in train." in first["evidence"]
    assert first["more"]["stacks"][-1] == "/job/train.py:88 in train"


def test_flight__another_operation_is_a_mismatch_though_buffers_wrapped(tmp_path: Path) -> None:
    """The buffer of each rank begins with another call."""
    sizes = [[1024 * (number % 3 + 1)] for number in range(12)]
    dumps = {
        rank: dump([entry(n, input_sizes=[sizes[n]]) for n in range(1 + rank, 11)])
        for rank in range(4)
    }
    found = diagnosed(tmp_path, written(tmp_path, dumps))
    assert not [one for one in found["findings"] if one["class"] == "mismatch"]
    dumps[3]["entries"][-1] = entry(10, "broadcast", done=False)
    (tmp_path / "wrong").mkdir()
    found = diagnosed(tmp_path / "wrong", written(tmp_path, dumps))
    first = found["findings"][0]
    assert (first["class"], first["place"]["name"]) == ("mismatch", "rank 3")


def test_flight__a_missing_dump_is_a_missing_rank(tmp_path: Path) -> None:
    dumps = {rank: dump([entry(1), entry(2, done=False)]) for rank in (0, 1, 3)}
    found = diagnosed(tmp_path, written(tmp_path, dumps))
    assert found["missing"] == 1
    assert found["answer"] != "healthy"


def test_flight__sends_and_sizes_are_read(tmp_path: Path) -> None:
    sent = entry(1, "send 0->1", p2p_seq_id=1, is_p2p=True)
    gathered = entry(2, "_all_gather_base", input_sizes=[[8], [4]])
    scattered = entry(3, "_reduce_scatter_base", output_sizes=[[16]])
    files = written(tmp_path, {0: dump([sent, gathered, scattered, entry(4, "nonsense")])})
    out = tmp_path / "tables"
    assert run("trace", "import", "flight", *files, "-o", out).exit_code == 0
    sql = "SELECT function, kind, count, bytes, datatype, root FROM operations ORDER BY id"
    rows = run("trace", "query", out, sql, "--json", "-")
    values = [list(row.values()) for row in json.loads(rows.output)]
    assert values == [
        ["Send", "p2p", 4096, 8192, "ncclBfloat16", 1],
        ["AllGather", "collective", 12, 24, "ncclBfloat16", None],
        ["ReduceScatter", "collective", 16, 32, "ncclBfloat16", None],
    ]


class Evil:
    """Pickled, it would make a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.file),)


def test_flight__a_pickle_runs_no_code(tmp_path: Path) -> None:
    file = tmp_path / "nccl_trace_rank_0"
    file.write_bytes(pickle.dumps({"entries": [Evil(tmp_path / "made")]}))
    done = run("trace", "import", "flight", file, "-o", tmp_path / "tables")
    assert done.exit_code == 2
    assert "is no dump of the Flight Recorder: it names" in done.output
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("rank_0", b"", "is no dump of the Flight Recorder"),
        ("rank_0", b"\x80\x04", "is no dump of the Flight Recorder"),
        ("rank_0", b"[1, 2]", "it is no dictionary"),
        ("rank_0", b'{"entries": 3}', "it has no entries"),
        ("rank_0", b"[" * 100_000, "is no dump of the Flight Recorder"),
        ("rank_0", b"\x1f\x8b broken", "cannot read"),
        ("dump", b'{"entries": []}', "does not tell its rank"),
    ],
)
def test_flight__what_is_no_dump_is_one_line(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    done = run("trace", "import", "flight", file, "-o", tmp_path / "tables")
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_flight__two_dumps_of_a_rank_are_refused(tmp_path: Path) -> None:
    (one,) = written(tmp_path, {0: dump([entry(1)])})
    (tmp_path / "more").mkdir()
    (other,) = written(tmp_path / "more", {0: dump([entry(1)])})
    done = run("trace", "import", "flight", one, other, "-o", tmp_path / "tables")
    assert "is another dump of rank 0" in done.output


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from([*entry(1), "pg_config"])


@given(st.lists(st.tuples(FIELDS, VALUES), max_size=6), st.booleans(), VALUES)
def test_flight__odd_fields_break_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    fields: list[tuple[str, Any]],
    as_json: bool,
    config: Any,
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    found = dump([entry(1) | dict(fields), entry(2)]) | {"pg_config": config}
    file = folder / "rank_0"
    file.write_bytes(json.dumps(found).encode() if as_json else pickle.dumps(found))
    dumps = FlightDumps()
    dumps.read(file)
    made = dumps.finish()
    made.write(folder / "tables")
    assert made.read["operations"] >= 1  # the second entry is as PyTorch writes it


@given(st.binary(max_size=200))
def test_flight__random_bytes_are_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    file = tmp_path_factory.mktemp("bytes") / "rank_0"
    for head in (b"", b"\x80\x04"):
        file.write_bytes(head + data)
        with pytest.raises(TraceError):
            FlightDumps().read(file)
