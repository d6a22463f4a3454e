"""Tests that a host's summary with numbers out of their range costs that host alone."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lib.diagnosis_hosts import Shape, host_file
from transport.diagnose.finding import Finding
from transport.diagnose.live import collector, columns, share
from transport.diagnose.live.collector import Collector, usable
from transport.diagnose.live.layout import RANGES, TABLES, TIME_NS_MAX
from transport.diagnose.live.merge import Job, merged
from transport.diagnose.live.refine import refined
from transport.diagnose.live.share import HostFile, Share, file_of, parse, write

SHAPE = Shape(32, iterations=10, sent_rows=256)
INT64 = np.iinfo(np.int64)


def hosts(interval: int = 1) -> list[HostFile]:
    return [host_file(SHAPE, host, interval) for host in range(SHAPE.hosts)]


def packed(said: HostFile, folder: Path) -> tuple[dict[str, Any], dict[str, columns.Table]]:
    write(folder, said)
    return columns.unpack(file_of(folder, said.host).read_bytes(), 1 << 30)


def test_ranges__every_number_has_one() -> None:
    for table, columns_ in TABLES.items():
        for name, kind in columns_.items():
            assert ((table, name) in RANGES) == (kind in ("i8", "f8"))
    assert len([one for one in RANGES if RANGES[one] == (INT64.min, INT64.max)]) == 1


@pytest.mark.parametrize("column", sorted(RANGES), ids=".".join)
def test_ranges__are_checked_when_a_summary_is_read(
    tmp_path: Path, column: tuple[str, str]
) -> None:
    table, name = column
    meta, tables = packed(host_file(SHAPE, 0, 1), tmp_path)
    rows = {
        one: np.resize(values, 3) if len(values) else np.zeros(3, values.dtype)
        for one, values in tables[table].items()
    }
    if "process" in rows:
        rows["process"] = np.zeros(3, np.int64)
    for kind in TABLES[table]:
        if rows[kind].dtype.kind == "O":
            rows[kind] = np.array(["", "", ""], object)
    least, most = RANGES[column]
    is_real = TABLES[table][name] == "f8"
    wrong: list[float] = [np.nan, np.inf, -np.inf, 1e300] if is_real else []
    wrong += (
        [float(most) * 4]
        if is_real
        else [
            one
            for one in (INT64.max, INT64.min, most + 1, least - 1)
            if INT64.min <= one <= INT64.max and not least <= one <= most
        ]
    )
    assert wrong or column == ("quick", "message")
    for value in wrong:
        values = rows[name].copy()
        values[1] = value
        data = columns.pack(meta, {**tables, table: {**rows, name: values}})
        with pytest.raises(columns.ColumnsError, match=rf"column {table}\.{name} has a number"):
            parse(data)
    parse(columns.pack(meta, {**tables, table: rows}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"read_ns": TIME_NS_MAX + 1}, "head is damaged"),
        ({"notes": ["x"] * 2_000}, "1024 notes"),
        ({"evidence": [{}] * 20_000}, "16384 observations"),
        ({"evidence": [{"kind": "x", "text": "y", "ns": 1 << 63}]}, "head is damaged"),
        ({"evidence": [{"kind": "x", "text": "y", "share": "nan"}]}, ""),
        ({"text": "x" * (17 << 20)}, "the file's head has more than 16 MiB"),
    ],
)
def test_head__is_bounded(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    meta, tables = packed(host_file(SHAPE, 0, 1), tmp_path)
    data = columns.pack({**meta, **changes}, tables)
    if not said:
        parse(data)
        return
    with pytest.raises(columns.ColumnsError, match=said):
        parse(data)


def test_head__two_processes_with_one_number_are_refused(tmp_path: Path) -> None:
    meta, tables = packed(host_file(SHAPE, 0, 1), tmp_path)
    twice = [*meta["processes"], meta["processes"][0]]
    with pytest.raises(columns.ColumnsError, match="two processes with one number"):
        parse(columns.pack({**meta, "processes": twice}, tables))


def test_tables__that_weft_does_not_know_cost_nothing(tmp_path: Path) -> None:
    meta, tables = packed(host_file(SHAPE, 0, 1), tmp_path)
    more = {"more": {"x": np.zeros(100_000, np.int8)}, "calls": {**tables["calls"]}}
    said = parse(columns.pack(meta, {**tables, **more}))
    assert set(said.tables) == set(TABLES)


@pytest.mark.parametrize(
    "kind",
    ["08", "i4,08", "1,", "(9999999,)i8", "<f16", "O", "S8", "", "<i8,<i8", ["<i8"], 7, None],
)
def test_columns__of_strange_types_are_refused(kind: object) -> None:
    """Some of these made NumPy raise a SyntaxError."""
    text = json.dumps({"texts": {}, "columns": [["calls.id", kind, 0]]}).encode()
    head = columns.HEAD.pack(columns.MAGIC, len(text), len(text), zlib.crc32(text))
    with pytest.raises(columns.ColumnsError):
        parse(head + text)


def breaking(monkeypatch: pytest.MonkeyPatch, *names: str, why: str = "too big") -> list[int]:
    """Makes the merge fail if one of these hosts takes part; returns the sizes of all merges."""
    sizes: list[int] = []

    def fails(said: Sequence[HostFile], job: str | None) -> Job | None:
        sizes.append(len(said))
        if any(one.host in names for one in said):
            raise OverflowError(why)
        return merged(said, job)

    monkeypatch.setattr(collector, "merged", fails)
    return sizes


@pytest.mark.parametrize("names", [("node0",), ("node3",), ("node1", "node2")])
def test_merge__is_done_without_the_hosts_that_break_it(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    breaking(monkeypatch, *names)
    made = Collector()
    for interval in (1, 2, 3):
        made.step(hosts(interval))
        assert made.judged == interval
        assert made.latest is not None
        assert made.latest.ranks == SHAPE.ranks - 8 * len(names)
        told = [one for one in made.notes if "is left out" in one]
        want = [
            f"{name} is left out: its summary breaks the diagnosis (OverflowError: too big)"
            for name in names
        ]
        assert told == (want if interval == 1 else [])
    breaking(monkeypatch, *names, why="another reason")
    made.step(hosts(4))
    assert [one for one in made.notes if "another reason" in one]
    breaking(monkeypatch)
    made.step(hosts(5))
    assert made.latest is not None
    assert [one for one in made.notes if "judged again" in one] == [
        f"{name} is judged again" for name in names
    ]
    assert made.latest.ranks == SHAPE.ranks


def test_merge__also_what_follows_it_costs_the_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose evidence breaks what is said of findings."""

    def fails(job: Job, findings: Sequence[Finding]) -> list[Finding]:
        if any(one["host"] == "node2" for one in job.processes):
            raise IndexError("out of bounds")
        return refined(job, findings)

    monkeypatch.setattr(collector, "refined", fails)
    made = Collector()
    made.step(hosts(1))
    assert made.judged == 1
    assert any(one.startswith("node2 is left out: ") for one in made.notes)


def test_merge__costs_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """One bad host of many is found by halves, and in later intervals at once."""
    many = [dataclasses.replace(hosts()[0], host=f"h{at}", processes=[]) for at in range(500)]
    sizes = breaking(monkeypatch, "h250")
    good, broken = usable(many, None)
    assert (len(good), list(broken)) == (499, ["h250"])
    assert len(sizes) <= 20
    sizes.clear()
    good, broken = usable(many, None, broken)
    assert (len(good), len(sizes)) == (499, 2)
    sizes.clear()
    good, broken = usable(many, None)
    breaking(monkeypatch, *(one.host for one in many))
    good, broken = usable(many, None)
    assert (good, len(broken)) == ([], 500)


def test_share__all_summaries_together_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in range(3):
        write(tmp_path, host_file(SHAPE, host, 1))
    large = host_file(dataclasses.replace(SHAPE, iterations=30), 3, 1)
    write(tmp_path, large)
    sizes = [file_of(tmp_path, f"node{host}").stat().st_size for host in range(4)]
    monkeypatch.setattr(share, "TOTAL_BYTES_MAX", sum(sizes) - 1)
    read = Share(tmp_path, 60.0)
    found, lines = read.read()
    assert [one.host for one in found] == ["node0", "node1", "node2"]
    assert len(lines) == 1
    assert lines[0].startswith("weft-host-node3.summary is left out: all summaries have more than")
    assert read.read()[1] == []
    monkeypatch.setattr(share, "TOTAL_BYTES_MAX", sum(sizes))
    found, lines = read.read()
    assert (len(found), lines) == (4, ["weft-host-node3.summary is up to date again"])


def test_hosts__that_contradict_each_other_are_judged_and_named() -> None:
    said = hosts()
    for at, one in enumerate(said[3].processes):
        one["rank"], one["world_size"] = at, 64  # those of node0
    made = Collector()
    made.step(said)
    assert made.judged == 1
    text = " ".join(made.notes)
    assert "rank 0 runs on node0 and node3 at once, and 7 other ranks on several hosts" in text
    assert "WORLD_SIZE differs between processes of the job: 32, 64" in text
