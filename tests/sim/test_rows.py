"""Tests results as data: rows of runs and sweeps, their origin, and the JSON of a run."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.sim.support import needs_fabric, scenario
from tests.sim.test_result import result
from transport.cli import invoke, rows_file
from transport.cli.output import write_json
from transport.ground import build_info
from transport.ground.machine import machine
from transport.sim import by_size, run, sweep, tables
from transport.sim.result import digest_of

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "examples" / "my_policy.py"
TEXT = """[network]
hosts = 8
hosts_per_leaf = 4
spines = 4

[[workload]]
size_bytes = 20_000
repeats = 8

[samples]
every_ns = 1_000
links = "leaf0>spine*"
"""

Weft = Callable[..., int]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.toml"
    file.write_text(TEXT)
    return file


def rows_of(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


def by_duckdb(file: Path, sql: str) -> list[tuple[Any, ...]]:
    duckdb = pytest.importorskip("duckdb", reason="needs duckdb: weft[trace]")
    with duckdb.connect() as database:
        found: list[tuple[Any, ...]] = database.execute(sql, [str(file)]).fetchall()
        return found


@needs_fabric
def test_rows__of_a_sweep_say_what_made_them(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    out = tmp_path / "a.csv"
    policies = f"policies.window=swift,{POLICY}"
    given = ["sim", str(small), "--seeds", "1-2", "--set", policies, "--csv", str(out)]
    assert invoke(given) == 0
    rows = rows_of(out)
    assert [row["seed"] for row in rows] == ["1", "2"] * 2
    for row in rows:
        assert (row["scenario"], row["scenario_file"]) == ("small", "small.toml")
        assert row["scenario_sha256"] == digest(TEXT)
        assert (row["weft"], row["commit"]) == (build_info.version(), build_info.commit() or "")
        assert row["path_policy"] == "power_of_two"
        assert len(row["path_sha256"]) == 64
        assert sweep.SIZES not in row
    assert [row["window_policy"] for row in rows[1:3]] == ["swift", str(POLICY)]
    assert rows[2]["window_sha256"] == digest(POLICY.read_text())
    assert len({row["fingerprint"] for row in rows}) == 4


@needs_fabric
@pytest.mark.parametrize(("kind", "count"), [("runs", 2), ("sizes", 2), ("transfers", 128)])
def test_rows__of_each_kind_name_the_run(
    kind: str, count: int, small: Path, tmp_path: Path
) -> None:
    swept, alone = tmp_path / "a.csv", tmp_path / "b.csv"
    assert invoke(["sim", str(small), "--seeds", "1-2", "--rows", kind, "--csv", str(swept)]) == 0
    assert invoke(["sim", str(small), "--seed", "2", "--rows", kind, "--csv", str(alone)]) == 0
    rows = rows_of(swept)
    assert len(rows) == count
    assert {row["seed"] for row in rows} == {"1", "2"}
    assert {row["window_policy"] for row in rows} == {"swift"}
    mine = [row for row in rows if row["seed"] == "2"]
    for row, other in zip(mine, rows_of(alone), strict=True):
        assert row == {name: other[name] for name in row}
        assert other["fingerprint"] == run(small, seed=2).fingerprint


@needs_fabric
def test_rows__as_parquet_are_those_of_the_csv(small: Path, tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="needs duckdb: weft[trace]")
    files = [tmp_path / "a.csv", tmp_path / "a.parquet"]
    for file in files:
        given = ["--seeds", "1-2", "--rows", "transfers", "--limit", "8us", "--csv", str(file)]
        assert invoke(["sim", str(small), *given]) == 1  # not all are done within the limit
    rows = rows_of(files[0])
    assert any(row["slowdown"] == "" for row in rows)
    found = by_duckdb(files[1], "DESCRIBE SELECT * FROM read_parquet(?)")
    types = {name: kind for name, kind, *_ in found}
    assert list(types) == list(rows[0])
    assert (types["bytes"], types["slowdown"], types["from"]) == ("BIGINT", "DOUBLE", "VARCHAR")
    sql = 'SELECT "from", received_ns, slowdown, seed FROM read_parquet(?)'
    names = ("from", "received_ns", "slowdown", "seed")
    found = by_duckdb(files[1], sql)
    shown = [tuple("" if one is None else str(one) for one in row) for row in found]
    assert shown == [tuple(row[name] for name in names) for row in rows]


@needs_fabric
def test_rows__parquet_needs_an_extra_and_rows_a_file(
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(["sim", str(small), "--rows", "sizes"]) == 2
    assert "--rows says what --csv writes" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert invoke(["sim", str(small), "--csv", str(tmp_path / "a.parquet")]) == 1
    assert "pip install 'weft[trace]'" in capsys.readouterr().err
    assert not (tmp_path / "a.parquet").exists()


def test_parquet__columns_have_one_type(tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="needs duckdb: weft[trace]")
    out = tmp_path / "a.parquet"
    columns: dict[str, Any] = {
        "count": [1, None, 3],
        "share": [1, 0.5, None],
        "good": [True, None, False],
        "text": ["a", None, "ä'b"],
        "mixed": [1, "100 Gb/s", [1, 2]],
        "large": [1 << 70, 1, 2],
        "none": [None, None, None],
        "array": np.arange(3, dtype=np.uint64),
    }
    rows_file.write_columns(out, columns)
    assert by_duckdb(out, "SELECT * FROM read_parquet(?)") == [
        (1, 1.0, True, "a", "1", str(1 << 70), None, 0),
        (None, 0.5, None, None, "100 Gb/s", "1", None, 1),
        (3, None, False, "ä'b", "1 2", "2", None, 2),
    ]
    rows_file.write_columns(out, {})
    assert by_duckdb(out, "SELECT count(*) FROM read_parquet(?)") == [(0,)]


def test_rows__of_several_tables_are_joined_by_name() -> None:
    made = rows_file.joined(
        [({"a": [1, 2]}, {"s": "x"}), ({"b": np.array([3])}, {"s": "y", "a": 0})]
    )
    assert made == {"a": [1, 2, 0], "s": ["x", "x", "y"], "b": [None, None, 3]}
    assert rows_file.joined([({}, {"s": 1})]) == {"s": []}


@needs_fabric
def test_json__a_run_has_samples_machine_and_hashes(small: Path, tmp_path: Path) -> None:
    ends = "rank 0 {\nl1: send 9000b to 1 tag 0\n}\nrank 1 {\nl1: recv 9000b from 0 tag 0\n}\n"
    schedule = f"num_ranks 2\n{ends}"
    (tmp_path / "two.goal").write_text(schedule)
    text = f'{TEXT}\n[[workload]]\npattern = "goal"\nfile = "two.goal"\n'
    small.write_text(text)
    out = tmp_path / "a.json"
    assert invoke(["sim", str(small), "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["hashes"]["scenario"] == digest(text)
    assert found["hashes"]["files"] == {"two.goal": digest(schedule)}
    assert set(found["hashes"]["policies"]) == {"window", "path", "loss"}
    assert found["machine"] == machine()
    assert set(found["machine"]) == {"cpu", "cores", "python", "numpy"}
    if len(platform.node()) > 3:
        assert platform.node() not in json.dumps(found["machine"])
    samples, times = found["samples"], len(found["samples"]["at_ns"])
    assert samples["ports"] == [f"leaf0>spine{one}" for one in range(4)]
    assert np.shape(samples["queue_bytes"]) == (times, 4)
    assert np.shape(samples["window_bytes"]) == (times, len(samples["connections"]))
    mine = run(small).samples["window_bytes"]
    assert samples["window_bytes"] == mine.tolist()
    assert max(map(len, out.read_text().splitlines())) > 40, "a sample takes a line"


def test_json__lists_of_numbers_take_a_line(tmp_path: Path) -> None:
    value = {"a": [[1, -2.5e-9], [3, 4]], "b": ["[\n1,\n2]", "x"], "c": [], "d": [None, 1]}
    out = tmp_path / "a.json"
    write_json(value, str(out), short=True)
    text = out.read_text()
    assert json.loads(text) == value
    assert "    [1, -2.5e-09],\n    [3, 4]\n" in text


def test_hashes__a_policy_within_weft_has_none() -> None:
    assert digest_of("ab" * 32 + ":x=1") == "ab" * 32
    assert digest_of("fixed:") is None
    assert digest_of("none") is None
    own = scenario("hosts = 4")
    assert own.provenance()["scenario_sha256"] == digest(own.text)


@pytest.mark.parametrize(("done", "shown"), [(5, "-"), (6, "10 ns")])
def test_tables__a_quantile_of_few_transfers_is_not_judged(done: int, shown: str) -> None:
    own = scenario("hosts = 8")
    received = np.where(np.arange(8) < done, 10, -1)
    found = result(own, ready_ns=0, received_ns=received, totals={"finished": False})
    headings, (cells,) = tables.jobs({"": found})
    row = dict(zip(headings, cells, strict=True))
    assert row["FCT p50"] == shown
    assert "p95" not in row
    assert row["max"] == "10 ns"
    assert found.jobs[0]["fct_ns_p99"] == 10, "the rows have every value"


def test_tables__a_sweep_is_judged_by_its_smallest_run() -> None:
    own = scenario("hosts = 4")
    cases = sweep.cases_of(own, [1, 2], {"network.hosts": [4, 8]}, {})
    values = {"good": True, "fct_ns_p50": 5.0, "fct_ns_p99": 7.0, "queue_bytes_p99": 9}
    rows = {
        number: {**case.settings, "seed": case.seed, **values, "done": done}
        for number, (case, done) in enumerate(zip(cases, [300, 299, 300, 300], strict=True))
    }
    headings, cells = tables.sweep(sweep.summarised(cases, rows))
    assert [row[headings.index("FCT p99")] for row in cells] == ["-", "7 ns"]
    assert [row[headings.index("FCT p50")] for row in cells] == ["5 ns", "5 ns"]
    assert {row[headings.index("queue p99")] for row in cells} == {"9 B"}
    headings, cells = tables.sweep_runs(list(rows.values()))
    assert [row[headings.index("FCT p99")] for row in cells] == ["7 ns", "-", "7 ns", "7 ns"]
    assert by_size.is_judged("queue_bytes_p99", 0)
    assert not by_size.is_judged("slowdown_p999_worst", 2_999)


def test_sweep__slowdowns_by_size_over_the_seeds() -> None:
    own = scenario("hosts = 4")
    cases = sweep.cases_of(own, [1, 2, 3], {"network.hosts": [4, 8]}, {})
    many, few = np.linspace(1, 2, 60), np.linspace(1, 3, 6)
    sizes = [by_size.rows(np.ones(len(one)), one, 4_096) for one in (many, many * 2, few)]
    rows = {
        number: {sweep.SIZES: [{"job": "a", **row} for row in mine]}
        for number, mine in enumerate([*sizes, sizes[0]])
    }
    first, second = sweep.sizes_summarised(cases, rows)
    assert (first["network.hosts"], first["runs"], first["transfers"]) == (4, 3, 6)
    assert (first["slowdown_p50"], first["slowdown_p50_worst"]) == pytest.approx((2, 3))
    assert (first["slowdown_p95"], first["slowdown_p95_worst"]) == (None, None)
    assert (first["slowdown_max"], first["slowdown_max_worst"]) == pytest.approx((3, 4))
    assert second["slowdown_p95"] == pytest.approx(1.95)
    headings, cells = tables.sweep_sizes([first, second])
    assert headings[:4] == ["hosts", "job", "message size", "fewest transfers"]
    assert [row[headings.index("p95")] for row in cells] == ["-", "1.95"]
    assert "p99" not in headings


@needs_fabric
def test_cli__a_sweep_shows_slowdowns_by_size(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.json"
    page = tmp_path / "a.html"
    given = ["sim", str(small), "--seeds", "1-2", "--json", str(out), "--html", str(page)]
    assert invoke(given) == 0
    assert "message size" in capsys.readouterr().out
    assert "<h2>Slowdown by message size</h2>" in page.read_text()
    found = json.loads(out.read_text())
    (row,) = found[sweep.SIZES]
    assert (row["runs"], row["transfers"]) == (2, 64)
    assert found["rows"][0][sweep.SIZES][0]["slowdown_p95"] is not None
    assert found["scenario_sha256"] == digest(TEXT)
    assert found["machine"] == machine()
