"""Runs a process that reads telemetry pages many times a second while a benchmark measures."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.lib.common import cores_of_sides
from transport import telemetry

LIST_EVERY = 100  # number of reads between two searches for new telemetry pages


@dataclass
class Reading:
    """The directory of telemetry pages; when the reader has ended, also its reads and duration."""

    where: Path
    reads: int = 0
    seconds: float = 0.0

    @property
    def reads_per_s(self) -> float:
        """Reads of telemetry pages per second, of all pages together."""
        return self.reads / self.seconds if self.seconds else 0.0


def _read(where: Path, hz: int, stop: Event, reads: Synchronized[int]) -> None:
    left = set(range(os.cpu_count() or 1)) & os.sched_getaffinity(0)
    for half in cores_of_sides():
        left.discard(min(half))  # the reader leaves a core to each measured process
    if left:
        os.sched_setaffinity(0, left)
    paths: list[Path] = []
    count, due_s = 0, time.monotonic()
    while not stop.is_set():
        if not paths or count % LIST_EVERY == 0:
            paths = telemetry.pages(where)
        for path in paths:
            with suppress(telemetry.PageError):  # the page's process has just ended
                telemetry.read_page(path)
                reads.value += 1
        count += 1
        due_s += 1 / hz
        if (rest_s := due_s - time.monotonic()) > 0:
            time.sleep(rest_s)
        else:
            due_s = time.monotonic()  # the reader is slower than `hz`: read again without a pause


@contextmanager
def pages_read(hz: int) -> Iterator[Reading]:
    """Reads every telemetry page of a new temporary directory `hz` times a second."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=telemetry.directory(), prefix="weft-bench-") as folder:
        reading = Reading(Path(folder))
        stop, reads = context.Event(), context.Value("q", 0)
        process = context.Process(target=_read, args=(reading.where, hz, stop, reads), daemon=True)
        process.start()
        begin = time.monotonic()
        try:
            yield reading
        finally:
            stop.set()
            reading.reads, reading.seconds = reads.value, time.monotonic() - begin
            process.join(5)
            if process.is_alive():
                process.kill()
