"""Fuzzes the readers of files of other tools: Kineto traces, NCCL's logs and answers of its RAS."""

import gzip
import json
import random
from pathlib import Path

import pytest

from tests.fuzz.mutator import fuzz, mutated
from tests.trace.ras import all_reduces
from tests.trace.test_import_kineto import typical
from tests.trace.test_import_nccl import two_ranks
from transport.diagnose.ras import judged
from transport.trace import json_stream
from transport.trace.kineto import KinetoTraces
from transport.trace.layout import TraceError
from transport.trace.nccl_log import NcclLogs
from transport.trace.nccl_ras import RasStatuses

FINISHED = 16  # one in this many files is put into tables, which takes a database and 50 ms


def damaged_gzip(data: bytes, draw: random.Random) -> bytes:
    """Damages the text, or, once in four times, the compressed file."""
    if draw.randrange(4):
        return gzip.compress(mutated(gzip.decompress(data), draw), 1)
    return mutated(data, draw)


@pytest.mark.parametrize("chunk", [1 << 20, 1_000])
def test_kineto__damaged_is_read_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    file = tmp_path / "x.json"

    def reads(data: bytes) -> None:
        file.write_bytes(data)
        traces = KinetoTraces()
        traces.read(file)
        if len(data) % FINISHED == 0:
            traces.finish()

    fuzz([json.dumps(typical(rank)).encode() for rank in (0, 1)], reads, TraceError, usual=200)


def test_kineto__damaged_and_compressed_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json.gz"

    def reads(data: bytes) -> None:
        file.write_bytes(data)
        traces = KinetoTraces()
        traces.read(file)
        if len(data) % FINISHED == 0:
            traces.finish()

    corpus = [gzip.compress(json.dumps(typical(0)).encode())]
    fuzz(corpus, reads, TraceError, usual=200, damage=damaged_gzip)


def test_nccl_log__damaged_is_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.log"

    def reads(data: bytes) -> None:
        file.write_bytes(data)
        logs = NcclLogs()
        logs.read(file)
        if len(data) % FINISHED == 0:
            logs.finish()

    fuzz([two_ranks().encode(), b"no log\n"], reads, TraceError, usual=400)


def test_nccl_ras__damaged_is_read_and_judged_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"

    def reads(data: bytes) -> None:
        file.write_bytes(data)
        statuses = RasStatuses()
        statuses.read(file)
        if len(data) % FINISHED == 0:
            statuses.finish()
        judged(statuses.statuses)

    healthy = all_reduces([4, 4, 4]) + all_reduces([4, 5, 4], "12:00:09")
    corpus = [healthy.encode(), all_reduces([4, None, 5]).encode()]
    fuzz(corpus, reads, TraceError, usual=200)
