"""Measures what live diagnosis costs ranks: their message rate while it runs, and while stopped."""

from __future__ import annotations

import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.lib.common import ROOT, Config
from bench.lib.stats import upper_of_median
from transport.trace import open_store

WARM_S = 2.0
# After a pause, diagnosis first reads what was written meanwhile; that is not measured.
CATCH_UP_S = 2.0
RANK = """
import mmap, os, struct, sys
from transport import Endpoint
size, counts = int(sys.argv[1]), mmap.mmap(os.open(sys.argv[2], os.O_RDWR), 8)
with Endpoint(interfaces="lo") as endpoint, endpoint.listen() as listener:
    print(listener.handle.hex(), flush=True)
    after = endpoint.connect(bytes.fromhex(sys.stdin.readline().strip()))
    before = listener.accept(timeout_s=60)
    message, into, count = bytes(size), bytearray(size), 0
    while True:
        receive = before.irecv_into(into)
        send = after.isend(message)
        receive.wait(60)
        send.wait(60)
        count += 1
        counts[:] = struct.pack("<q", count)
"""


@contextmanager
def ranks(folder: Path, traces: Path, size_bytes: int, count: int) -> Iterator[list[Path]]:
    """Processes that send messages around a ring; yields files with message counts."""
    files = [folder / f"count{at}" for at in range(count)]
    running: list[subprocess.Popen[str]] = []
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    clean["WEFT_LOCAL"] = "off"
    try:
        for at, file in enumerate(files):
            file.write_bytes(bytes(8))
            env = clean | {"WEFT_TRACE": str(traces), "RANK": str(at), "WORLD_SIZE": str(count)}
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(size_bytes), str(file)],
                    cwd=ROOT,
                    env=env,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        handles = [one.stdout.readline() for one in running if one.stdout is not None]
        for at, one in enumerate(running):
            assert one.stdin is not None
            one.stdin.write(handles[(at + 1) % count])
            one.stdin.flush()
        yield files
    finally:
        for one in running:
            one.kill()
            one.communicate(timeout=10)


@contextmanager
def diagnosis(traces: Path, interval_s: float) -> Iterator[subprocess.Popen[str]]:
    words = ["diagnose", "--live", str(traces), "--interval", f"{interval_s}"]
    one = subprocess.Popen(
        [sys.executable, "-m", "transport", *words],
        cwd=ROOT,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield one
    finally:
        one.kill()
        one.wait()


def rate(files: list[Path], seconds: float) -> float:
    """Messages of all ranks a second."""
    before, began_s = _counts(files), time.monotonic()
    time.sleep(seconds)
    return (_counts(files) - before) / (time.monotonic() - began_s)


def _counts(files: list[Path]) -> int:
    return sum(struct.unpack("<q", file.read_bytes())[0] for file in files)


def cpu_s(pid: int) -> float:
    """The time that a process has run on cores."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def loss_of_ranks(pairs: int, seconds: float, size_bytes: int, count: int = 2) -> Config:
    """Compares the ranks' rate while diagnosis is stopped (SIGSTOP) and while it runs, in pairs."""
    ratios, spent, records = [], 0.0, 0.0
    with tempfile.TemporaryDirectory() as name:
        traces = Path(name) / "traces"
        traces.mkdir()
        with ranks(Path(name), traces, size_bytes, count) as files, diagnosis(traces, 1.0) as one:
            time.sleep(WARM_S + CATCH_UP_S)
            for _ in range(pairs):
                one.send_signal(signal.SIGSTOP)
                without = rate(files, seconds)
                one.send_signal(signal.SIGCONT)
                time.sleep(CATCH_UP_S)
                before_s = cpu_s(one.pid)
                ratios.append(without / rate(files, seconds))
                spent += cpu_s(one.pid) - before_s
            records = _records_per_s(traces)
    return {
        "what": "loss of the ranks",
        "ranks": count,
        "intervals": pairs,
        "records_per_s": records,
        "ratio": statistics.median(ratios),
        "upper": upper_of_median(ratios),
        "cores": spent / (pairs * seconds),
        "host_cores": os.cpu_count(),
    }


def _records_per_s(traces: Path) -> float:
    """Records that all ranks together write per second."""
    with open_store(traces) as store:
        sql = "SELECT sum(records), max(last_ns) - min(first_ns) FROM processes"
        ((records, lasted_ns),) = store.rows(sql)
    return float(records) / max(int(lasted_ns) / 1e9, 1e-9)
