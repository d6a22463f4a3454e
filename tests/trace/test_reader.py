"""Tests that damaged, truncated and foreign trace files are read up to the first damage."""

import os
import random
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.waiting import PATIENCE_S
from transport.native import trace_records
from transport.trace import TraceError, read_segment
from transport.trace.layout import read_header
from transport.trace.segment import read_rows

from .writer import Process, block, communicator, header, operation, schema

RECORD = struct.pack("<HHIq", 3, 16, 9, 77)


def test_writer__has_the_schema_of_real_files(build_tree: Path, tmp_path: Path) -> None:
    """The files that writer.py makes for other tests have the layout of the plugin's files."""
    host = build_tree / "weft_profiler_host"
    if not host.exists():
        pytest.fail(f"{host} is not built: run make test-native")
    variables = {**os.environ, "WEFT_TRACE": str(tmp_path)}
    library = str(build_tree / "libnccl-net-weft.so")
    subprocess.run([str(host), library, "6"], env=variables, timeout=PATIENCE_S, check=True)
    (path,) = tmp_path.iterdir()
    assert schema().encode() in path.read_bytes()


def test_reader__reads_what_the_writer_wrote(tmp_path: Path) -> None:
    process = Process(tmp_path, "alpha", 7, variables={"RANK": "3"})
    comm = communicator(process, 5, 1, 4, name="tensor")
    made = operation(process, comm, "AllReduce", 100, 200, count=10)
    segment = read_segment(process.write())
    assert segment.identity["host"] == "alpha"
    assert (segment.damage, segment.dropped, segment.number) == ("", 0, 0)
    found = {record.kind: record for record in segment.records}
    assert found["communicator"].fields["name"] == "tensor"
    assert found["operation"].fields["function"] == "AllReduce"
    assert (found["operation_end"].id, found["operation_end"].time_ns) == (made, 200)


@pytest.mark.parametrize(
    ("tail", "damage"),
    [
        (b"wb", "the last block is cut off"),
        (bytes(40), "no block begins at byte"),
        (block(RECORD)[:-8], "the last block is cut off"),
        (block(RECORD)[:-1] + b"\1", "the checksum of the block"),
        (block(RECORD[:2] + b"\0\0" + RECORD[4:]), "has a wrong size"),
        (block(RECORD[:2] + b"\x13\0" + RECORD[4:] + bytes(8)), "has a wrong size"),
        (block(RECORD[:2] + b"\xf8\xff" + RECORD[4:]), "has a wrong size"),
        (block(RECORD + bytes(8)), "has a wrong size"),
        (block(struct.pack("<HHIq", 4, 16, 9, 77)), "have another size than the schema says"),
    ],
)
def test_reader__says_why_it_stopped(tmp_path: Path, tail: bytes, damage: str) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(header("host a\n", 0) + block(RECORD, dropped=3) + tail)
    found = read_segment(path)
    assert [record.id for record in found.records][:1] == [9]
    assert damage in found.damage
    assert found.dropped in (0, 3)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "field a u16 id 16",
        "record 1",
        "record 1 a 24\nfield a u16 id 23",
        "record 1 a 24\nfield a u17 id 16",
        "record 1 a 24\nfield a u16 id 8",
        "record 1 a 24\nfield id u16 id 16",
        "record 1 a 20",
        "record 1 a 99999999",
        "record x a 24",
    ],
)
def test_reader__refuses_a_schema_that_cannot_be(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(header("host a\n", 0, text=text))
    with pytest.raises(TraceError, match="damaged schema"):
        read_segment(path)


def test_reader__other_versions_are_read_if_their_layout_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(header("", 0, version=9) + block(RECORD))
    assert [record.id for record in read_segment(path).records] == [9]
    path.write_bytes(header("", 0, version=9)[:-1] + b"!" + block(RECORD))
    with pytest.raises(TraceError, match="the file has version 9"):
        read_segment(path)


def test_reader__impossible_clocks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.trace"
    path.write_bytes(header("", 0, ahead_ns=(1 << 63) - 2000))
    with pytest.raises(TraceError, match="its times are impossible"):
        read_segment(path)


@given(st.binary(max_size=300), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_records__any_bytes_are_read_without_harm(data: bytes, begin: int) -> None:
    offsets, dropped, damage = trace_records(data, begin)
    assert (len(offsets), dropped) == (0, 0)
    assert bool(damage) == (begin < len(data))


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_records__any_bytes_in_a_whole_block_are_read_without_harm(body: bytes) -> None:
    data = block(body)
    offsets, _, damage = trace_records(data, 0)
    for (at,) in struct.iter_unpack("<Q", offsets):
        size = struct.unpack_from("<H", data, at + 2)[0]
        assert 32 <= at <= at + size <= len(data)
    assert damage or len(offsets) >= bool(body)


@given(st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_header__any_schema_is_read_or_refused(text: bytes) -> None:
    data = header("", 0, text=text.decode("latin1"))
    try:
        read_header(data)
    except TraceError:
        return


DAMAGED = int(os.environ.get("WEFT_FUZZ_READER", "1000"))  # damaged files; make fuzz: 1,000,000


def test_reader__damaged_files_end_early_or_are_refused(tmp_path: Path) -> None:
    """After random truncation and bit flips, the reader returns only records before the damage."""
    process = Process(tmp_path)
    comm = communicator(process, 5, 1, 4)
    for at in range(20):
        operation(process, comm, "AllReduce", at * 10, at * 10 + 5)
    path = process.write()
    data, whole = path.read_bytes(), read_segment(path)
    draw = random.Random(8)
    for index in range(DAMAGED):
        bad = bytearray(data[: draw.randrange(len(data))] if index % 2 else data)
        for _ in range(draw.choice((0, 1, 3))):
            if bad:
                bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
        path.write_bytes(bad)
        try:
            found = read_segment(path)
        except TraceError:
            continue
        assert found.records == whole.records[: len(found.records)]


def test_rows__are_arrays_with_the_fields_of_the_schema(tmp_path: Path) -> None:
    process = Process(tmp_path)
    for at in range(5):
        process.new("message", at, connection=1, message=at, bytes=100 + at)
    found = read_rows(process.write())
    assert found.rows["message"]["bytes"].tolist() == [100, 101, 102, 103, 104]
    assert found.rows["message"]["time_ns"].tolist() == [0, 1, 2, 3, 4]


def changed_schema(draw: random.Random) -> str:
    """The schema with lines that are lost, repeated, exchanged, or have another number or type."""
    lines = schema().splitlines()
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(lines))
        words = lines[at].split()
        match draw.randrange(5):
            case 0:
                del lines[at]
            case 1:
                lines.insert(draw.randrange(len(lines)), lines[at])
            case 2:
                words[-1] = str(draw.choice((0, 1, 8, 16, 24, 65_535, 1 << 40)))
                lines[at] = " ".join(words)
            case 3:
                words[draw.randrange(len(words))] = draw.choice(("u8", "i64", "x", "", "record"))
                lines[at] = " ".join(words)
            case _:
                lines.append(f"record {draw.randrange(70_000)} new {draw.choice((16, 24, 4096))}")
    return "\n".join(lines) + "\n"


def test_reader__files_of_other_versions_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    """A file whose schema another version has changed is read, or refused with one line."""
    process = Process(tmp_path)
    comm = communicator(process, 5, 1, 4)
    for at in range(5):
        operation(process, comm, "AllReduce", at * 10, at * 10 + 5)
    path = process.write()
    data = path.read_bytes()
    header_bytes, schema_bytes, identity_bytes = struct.unpack_from("<III", data, 12)
    identity = data[56 + schema_bytes :][:identity_bytes].decode()
    draw = random.Random(9)
    read, refused = 0, set()
    for _ in range(max(DAMAGED // 10, 300)):
        text = changed_schema(draw)
        version = draw.choice((1, 2))
        path.write_bytes(header(identity, 0, text=text, version=version) + data[header_bytes:])
        try:
            read_segment(path)
        except TraceError as error:
            refused.add(str(error))
        else:
            read += 1
    assert refused
    assert not [one for one in refused if "\n" in one]
    assert read > 10
