"""Tests the shared folder: damaged, truncated, stale and foreign files are named once."""

from __future__ import annotations

import json
import os
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.lib.diagnosis_hosts import Shape, host_file
from transport.diagnose.live import columns, share
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.share import Share, file_of, parse, write

SHAPE = Shape(32, iterations=10, sent_rows=256)
STALE_S = 60.0


def written(folder: Path, interval: int = 1, slow_rank: int = -1) -> list[Path]:
    """The files of four hosts with eight ranks each."""
    for host in range(SHAPE.hosts):
        write(folder, host_file(SHAPE, host, interval, slow_rank))
    return [file_of(folder, f"node{host}") for host in range(SHAPE.hosts)]


def test_share__files_are_read_as_they_were_written(tmp_path: Path) -> None:
    before = host_file(SHAPE, 2, 1)
    write(tmp_path, before)
    after = parse(file_of(tmp_path, "node2").read_bytes())
    assert (after.host, after.sequence, after.read_ns) == ("node2", 1, before.read_ns)
    assert after.processes == before.processes
    for table, columns_ in before.tables.items():
        for name, column in columns_.items():
            assert after.tables[table][name].tolist() == column.tolist()
    assert not list(tmp_path.glob(".*"))


def test_share__every_wrong_file_is_named_once_and_the_rest_is_judged(tmp_path: Path) -> None:
    files = written(tmp_path, slow_rank=5)
    data = files[1].read_bytes()
    files[1].write_bytes(data[: len(data) // 2])
    files[2].write_bytes(data[:-5000] + bytes(100) + data[-4900:])
    meta, tables = columns.unpack(files[3].read_bytes(), 1 << 30)
    old = columns.pack({**meta, "weft_summary": 99}, tables)
    (tmp_path / "weft-host-old.summary").write_bytes(old)
    (tmp_path / "weft-host-other.summary").write_text("hello")
    (tmp_path / "weft-host-empty.summary").write_bytes(b"")
    (tmp_path / "unrelated").write_text("x")
    (tmp_path / "weft-host-folder.summary").mkdir()
    read = Share(tmp_path, STALE_S)
    hosts, lines = read.read()
    assert [one.host for one in hosts] == ["node0", "node3"]
    named = sorted(line.split()[0] for line in lines)
    assert named == sorted(
        f"weft-host-{one}.summary" for one in ("node1", "node2", "old", "other", "empty", "folder")
    )
    assert all("\n" not in line and len(line) < 300 for line in lines)
    assert any(f"version is 99, and this weft reads {share.VERSION}" in line for line in lines)
    assert read.read()[1] == []
    collector = Collector()
    collector.step(hosts)
    assert collector.latest is not None
    assert [one.place.name for one in collector.latest.findings] == ["rank 5"]
    write(tmp_path, host_file(SHAPE, 1, 2))
    hosts, lines = read.read()
    assert [one.host for one in hosts] == ["node0", "node1", "node3"]
    assert lines == ["weft-host-node1.summary is up to date again"]


def test_share__a_stale_file_is_named_once(tmp_path: Path) -> None:
    files = written(tmp_path)
    past_s = time.time() - 3600
    os.utime(files[2], (past_s, past_s))
    read = Share(tmp_path, STALE_S)
    hosts, lines = read.read()
    assert [one.host for one in hosts] == ["node0", "node1", "node3"]
    assert len(lines) == 1
    assert lines[0].startswith("weft-host-node2.summary has not changed for 3600 s")
    assert read.read()[1] == []
    write(tmp_path, host_file(SHAPE, 2, 2))
    hosts, lines = read.read()
    assert len(hosts) == 4
    assert lines == ["weft-host-node2.summary is up to date again"]


def test_share__a_folder_that_is_gone_is_said_once(tmp_path: Path) -> None:
    read = Share(tmp_path / "absent", STALE_S)
    hosts, (line,) = read.read()
    assert hosts == []
    assert line.endswith("absent: No such file or directory: nothing is judged")
    assert read.read() == ([], [])


def test_share__changed_bytes_are_refused(tmp_path: Path) -> None:
    data = columns.pack({"weft_summary": 1}, {"calls": {"process": np.arange(3)}})
    write(tmp_path, host_file(SHAPE, 0, 1))
    whole = file_of(tmp_path, "node0").read_bytes()
    chance = np.random.default_rng(3)
    for source in (data, whole):
        for _ in range(300):
            broken = bytearray(source)
            for at in chance.integers(0, len(broken), 3):
                broken[at] = int(chance.integers(0, 256))
            if bytes(broken) == source:
                continue
            with pytest.raises(columns.ColumnsError):  # the file has a checksum
                parse(bytes(broken))


@pytest.mark.parametrize("what", ["processes", "evidence"])
def test_share__strange_heads_are_refused_or_ignored(tmp_path: Path, what: str) -> None:
    (file, *_) = written(tmp_path)
    meta, tables = columns.unpack(file.read_bytes(), 1 << 30)
    values: tuple[Any, ...] = (
        3,
        "text",
        [3],
        [{}],
        [{"process": 99, "text": "x", "kind": "gone"}],
        None,
    )
    for value in values:
        file.write_bytes(columns.pack({**meta, what: value}, tables))
        hosts, lines = Share(tmp_path, STALE_S).read()
        assert len(hosts) == 4 - len(lines)
        Collector().step(hosts)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pid", 10**30),
        ("number", 2**31),
        ("rank", -(10**12)),
        ("first_ns", 2**63),
        ("attempt", 1e300),
        ("world_size", True),
    ],
)
def test_share__a_number_out_of_range_leaves_out_its_host_only(
    tmp_path: Path, name: str, value: float
) -> None:
    (file, *_) = written(tmp_path)
    meta, tables = columns.unpack(file.read_bytes(), 1 << 30)
    processes = [dict(meta["processes"][0], **{name: value}), *meta["processes"][1:]]
    for changes in ({"processes": processes}, {"notes": "text"}):
        file.write_bytes(columns.pack({**meta, **changes}, tables))
        hosts, lines = Share(tmp_path, STALE_S).read()
        assert (len(hosts), len(lines)) == (3, 1)
        assert "the summary's head is damaged" in lines[0]
        made = Collector()
        made.step(hosts)
        assert made.latest is not None


def test_share__agents_with_the_same_host_name_have_a_file_each(tmp_path: Path) -> None:
    """Such as containers have; an agent that is started again replaces its own file."""
    tags = [share.tag_of(tmp_path / one) for one in ("a", "b", "a")]
    assert (tags[0] == tags[2], tags[0] != tags[1]) == (True, True)
    for tag in tags:
        write(tmp_path, host_file(SHAPE, 0, 1), tag)
    assert len(Share(tmp_path, STALE_S).read()[0]) == 2


def test_share__a_file_that_is_huge_is_not_loaded(tmp_path: Path) -> None:
    data = columns.pack({"weft_summary": 1}, {"calls": {"process": np.zeros(100_000)}})
    with pytest.raises(columns.ColumnsError, match="at most 1000 B are read"):
        columns.unpack(data, 1000)
    with (tmp_path / "weft-host-huge.summary").open("wb") as file:
        file.truncate(share.FILE_BYTES_MAX + 1)
    hosts, (line,) = Share(tmp_path, STALE_S).read()
    assert hosts == []
    assert "and at most 32 MiB are read" in line


def test_share__columns_that_lie_are_refused(tmp_path: Path) -> None:
    """The file's checksum is right, but its list of columns is wrong."""
    (file, *_) = written(tmp_path)
    meta, tables = columns.unpack(file.read_bytes(), 1 << 30)
    for listed in ([["calls.process", "<i8", 1 << 40]], [["calls.process", "O", 1]], [3], 7, None):
        data = columns.pack({**meta, "columns": None}, tables)
        size = columns.HEAD.unpack_from(data)[1]
        text = json.loads(data[columns.HEAD.size : columns.HEAD.size + size])
        body = json.dumps(text | {"columns": listed}).encode() + data[columns.HEAD.size + size :]
        lengths = (len(body) - len(data) + columns.HEAD.size + size, len(body), zlib.crc32(body))
        with pytest.raises(columns.ColumnsError):
            parse(columns.HEAD.pack(columns.MAGIC, *lengths) + body)


def _packed(text: bytes) -> bytes:
    """A file with a right checksum and this text where JSON is expected."""
    return columns.HEAD.pack(columns.MAGIC, len(text), len(text), zlib.crc32(text)) + text


def _retold(file: Path, **changes: Any) -> bytes:
    meta, tables = columns.unpack(file.read_bytes(), 1 << 30)
    return columns.pack({**meta, **changes}, tables)


def _strange(file: Path, what: str) -> None:
    """Replaces a summary by what somebody who can write into the share may put there."""
    meta, _ = columns.unpack(file.read_bytes(), 1 << 30)
    one = meta["processes"][0]
    file_before = file.with_name("before")
    file.rename(file_before)
    match what:
        case "nested":
            file.write_bytes(_packed(b"[" * 100_000))
        case "many rows":
            file.write_bytes(_packed(b'{"columns":[["calls.process","<i8",%d]]}' % 2**70))
        case "real indexes":
            text = b'{"texts":{"calls.kind":["p2p"]},"columns":[["calls.kind","<f8",0]]}'
            file.write_bytes(_packed(text))
        case "no text":
            text = b'{"texts":{"calls.kind":[7]},"columns":[["calls.kind","<i4",0]]}'
            file.write_bytes(_packed(text))
        case "surrogate":
            file.write_bytes(_retold(file_before, processes=[{**one, "host": "h\ud800"}]))
        case "processes":
            most = [{**one, "number": at} for at in range(5_000)]
            file.write_bytes(_retold(file_before, processes=most))
        case "pipe":
            os.mkfifo(file)
        case "endless":
            file.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "what",
    ["nested", "many rows", "real indexes", "no text", "surrogate", "processes", "pipe", "endless"],
)
def test_share__a_hostile_file_leaves_out_its_host_only(tmp_path: Path, what: str) -> None:
    (file, *_) = written(tmp_path)
    _strange(file, what)
    hosts, lines = Share(tmp_path, STALE_S).read()
    assert (len(hosts), len(lines)) == (3, 1)
    assert lines[0].startswith(file.name)
    made = Collector()
    made.step(hosts)
    assert made.latest is not None
    assert not [note for note in made.notes if "could not be judged" in note]
