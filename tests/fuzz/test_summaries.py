"""Fuzzes the summaries of hosts: reading one, and judging those of a job together."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path

import numpy as np
import pytest

from bench.lib.diagnosis_hosts import Shape, host_file
from tests.fuzz.mutator import fuzz, mutated, number
from transport.diagnose.live import columns, share
from transport.diagnose.live.collector import Collector
from transport.diagnose.live.layout import RANGES, typed

SHAPE = Shape(16, iterations=4, sent_rows=32)


def summaries(folder: Path) -> list[bytes]:
    made = []
    for host in range(SHAPE.hosts):
        said = host_file(SHAPE, host, 1)
        share.write(folder, said)
        made.append(share.file_of(folder, said.host).read_bytes())
    return made


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Damages the head or the columns, and mends the checksum, which would find all of it."""
    body = data[columns.HEAD.size :]
    text_bytes = columns.HEAD.unpack_from(data)[1]
    text, rest = body[:text_bytes], body[text_bytes:]
    kind = draw.randrange(8)
    if kind == 0:
        return mutated(data, draw)
    if kind <= 3:
        text = mutated(text, draw)
    elif kind == 4:
        meta = json.loads(text)
        one = draw.choice(meta["processes"])
        name = draw.choice(sorted(one))
        one[name] = draw.choice((number(draw), 0.5, None, "x", [], True))
        text = json.dumps(meta).encode()
    else:
        changed = bytearray(rest)
        for _ in range(draw.randint(1, 4)):
            at = 8 * draw.randrange(len(changed) // 8)
            changed[at : at + 8] = number(draw).to_bytes(8, "little", signed=True)
        rest = bytes(changed)
    body = text + rest
    return columns.HEAD.pack(columns.MAGIC, len(text), len(body), zlib.crc32(body)) + body


def in_range(data: bytes, draw: random.Random) -> bytes:
    """A summary that is accepted, with extreme numbers in some columns."""
    meta, tables = columns.unpack(data, 1 << 30)
    made = typed(tables)
    for _ in range(draw.randint(1, 3)):
        (table, name), (least, most) = draw.choice(sorted(RANGES.items()))
        if name != "process" and len(made[table][name]):
            column = made[table][name].copy()
            at = draw.randrange(len(column)) if draw.random() < 0.5 else slice(None)
            value = draw.choice((least, most, number(draw)))
            column[at] = min(max(value, least), most)
            made[table][name] = np.asarray(column)
    for _ in range(draw.randrange(3)):
        one = draw.choice(meta["processes"])
        name = draw.choice(("rank", "world_size", "first_ns", "last_ns", "closed_ns", "attempt"))
        one[name] = draw.choice((0, -1, 7, 1 << 20, None if name != "attempt" else 1))
        if name.endswith("_ns"):
            one[name] = draw.choice((0, 1, (1 << 62) - 1, -(1 << 61)))
    return columns.pack(meta, made)


def test_summary__damaged_is_read_or_refused(tmp_path: Path) -> None:
    fuzz(summaries(tmp_path), share.parse, columns.ColumnsError, usual=500, damage=damaged)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_summary__that_is_accepted_costs_at_most_its_host(tmp_path: Path) -> None:
    """The job's other host is judged, whatever the damaged summary says."""
    corpus = summaries(tmp_path)
    good = share.parse(corpus[0])

    def judges(data: bytes) -> None:
        bad = share.parse(data)
        made = Collector()
        made.step([good, bad])
        assert not [one for one in made.notes if "could not be judged" in one], made.notes
        assert made.judged == 1
        assert made.latest is not None or bad.processes

    def damage(data: bytes, draw: random.Random) -> bytes:
        return in_range(data, draw) if draw.random() < 0.8 else damaged(data, draw)

    fuzz(corpus[1:], judges, columns.ColumnsError, usual=15, damage=damage)
