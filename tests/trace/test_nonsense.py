"""Tests that undamaged trace files whose records have random field values break no command."""

import os
import random
from pathlib import Path

import pytest

from transport.cli import invoke
from transport.errors import WeftError
from transport.trace import matrix_of, open_store, profile_of
from transport.trace.matrix import MEASURES

from .writer import FORMATS, LAYOUTS, Process, channel, communicator, operation, rank_of

LIMITS = {
    "u8": (0, 8),
    "u16": (0, 16),
    "u32": (0, 32),
    "u64": (0, 64),
    "i32": (-31, 31),
    "i64": (-63, 63),
}


def value(draw: random.Random, type_: str) -> int:
    """A random value for a field: often small, sometimes the type's least or largest."""
    low, high = LIMITS[type_]
    least = -(1 << -low) if low else 0
    most = (1 << high) - 1
    return max(least, min(most, draw.choice((0, 1, 2, 3, -1, least, most, draw.randint(0, 9)))))


def nonsense(process: Process, draw: random.Random, count: int) -> None:
    for _ in range(count):
        kind = draw.choice([name for name in LAYOUTS if name != "text"])
        fields = {name: value(draw, type_) for type_, name, _ in LAYOUTS[kind][1]}
        process.put(kind, draw.randint(0, 6), value(draw, "i64"), **fields)


@pytest.mark.parametrize("seed", range(12))
def test_store__survives_any_values(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    assert set(FORMATS) == set(LIMITS)
    for rank in range(3):
        process = rank_of(tmp_path, rank, 3)
        if draw.random() < 0.3:
            process.variables = {"RANK": draw.choice(("x", "-4", "99999999999"))}
        process.text("RING")
        process.dropped = draw.choice((0, (1 << 64) - 1))
        nonsense(process, draw, 150)
        process.write()
    with open_store(tmp_path) as store:
        assert store.rows("SELECT count(*) FROM processes") == [(3,)]
        store.notes()
        assert profile_of(store) is not None
        for measure in MEASURES:
            for by_host in (False, True):
                try:
                    found = matrix_of(store, measure, by_host=by_host)
                except WeftError:
                    continue
                assert found.size <= 1 << 14
        store.to_parquet(tmp_path / "tables")


COMMANDS = (["info"], ["matrix"], ["profile"], ["query", "SELECT count(*) FROM messages"])
DAMAGED = int(os.environ.get("WEFT_FUZZ_COMMANDS", "40"))  # damaged files; make fuzz: 10,000


def test_commands__damaged_files_give_a_shorter_trace_or_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(6)
    for rank in range(2):
        process = rank_of(tmp_path, rank, 2)
        comm = communicator(process, 5, rank, 2)
        for at in range(6):
            op = operation(process, comm, "AllReduce", at * 10, at * 10 + 5)
            channel(process, comm, op, 1 - rank, 1000, at * 10, at * 10 + 5)
        path = process.write()
    data = path.read_bytes()
    statuses = set()
    for number in range(DAMAGED):
        bad = bytearray(data[: draw.randrange(len(data))] if draw.random() < 0.5 else data)
        for _ in range(draw.choice((1, 1, 4))):
            if bad:
                bad[draw.randrange(len(bad))] = draw.randrange(256)
        path.write_bytes(bad)
        words = COMMANDS[number % len(COMMANDS)]
        status = invoke(["trace", words[0], str(tmp_path), *words[1:]])
        output = capfd.readouterr()
        statuses.add(status)
        assert status in (0, 1), output.err
        assert "Traceback" not in output.err
        assert status == 0 or output.err.count("\n") <= 2, output.err
    assert 0 in statuses
