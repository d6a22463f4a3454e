"""Processor time by thread, and hardware counters, of this process."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TASKS = Path("/proc/self/task")
PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
# perf_event_open(2): PERF_TYPE_HARDWARE, and its events.
HARDWARE = 0
EVENTS = {"instructions": 1, "cache_misses": 3}
ATTR_BYTES = 112
EXCLUDE_HYPERVISOR = 1 << 6
ASLEEP_CORES = 0.01  # threads that use less than this together are asleep


def thread_ns() -> dict[int, int]:
    """Thread -> the ns for which it has run on a core so far."""
    found = {}
    for task in TASKS.iterdir():
        try:
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0])
        except (OSError, IndexError):  # the thread ended meanwhile
            continue
    return found


def names() -> dict[int, str]:
    """Thread -> its name without a number at its end."""
    found = {}
    for task in TASKS.iterdir():
        try:
            found[int(task.name)] = (task / "comm").read_text().strip().rstrip("-0123456789")
        except OSError:
            continue
    return found


@contextmanager
def metered() -> Iterator[dict[str, object]]:
    """Fills the dictionary with what this process used in the block.

    seconds: elapsed time. cores: by name of thread. events: hardware events of the threads that
    existed when the block began; None: this machine has no counters for programs.
    """
    found: dict[str, object] = {}
    counters, begin, begin_ns = _open_counters(), thread_ns(), time.monotonic_ns()
    yield found
    passed_ns = time.monotonic_ns() - begin_ns
    ran, called = thread_ns(), names()
    cores: dict[str, float] = {}
    for thread, ns in ran.items():
        name = called.get(thread, "ended")
        cores[name] = cores.get(name, 0.0) + (ns - begin.get(thread, 0)) / passed_ns
    found["seconds"] = passed_ns / 1e9
    found["cores"] = {name: round(value, 4) for name, value in sorted(cores.items())}
    found["events"] = _read(counters)


def _open_counters() -> dict[str, list[int]] | None:
    """Event -> a perf counter of each thread that exists; None if the machine has no counters."""
    number = PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    made: dict[str, list[int]] = {}
    for name, event in EVENTS.items():
        attr = struct.pack("<IIQQQQQ", HARDWARE, ATTR_BYTES, event, 0, 0, 0, EXCLUDE_HYPERVISOR)
        for thread in thread_ns():
            descriptor = libc.syscall(number, attr.ljust(ATTR_BYTES, b"\0"), thread, -1, -1, 0)
            if descriptor < 0:
                _close(made)
                return None
            made.setdefault(name, []).append(descriptor)
    return made


def _read(counters: dict[str, list[int]] | None) -> dict[str, int] | None:
    if counters is None:
        return None
    try:
        return {
            name: sum(int.from_bytes(os.read(one, 8), "little") for one in descriptors)
            for name, descriptors in counters.items()
        }
    finally:
        _close(counters)


def _close(counters: dict[str, list[int]]) -> None:
    for descriptors in counters.values():
        for one in descriptors:
            os.close(one)


def asleep_after_ns(patience_ns: int) -> tuple[int, float]:
    """Watches the other threads of this process for patience_ns; returns the time after which they
    use less than ASLEEP_CORES together, and the cores that they use from then on."""
    me = threading.get_native_id()
    begin_ns = time.monotonic_ns()
    seen: list[tuple[int, int]] = []
    while not seen or seen[-1][0] < patience_ns:
        seen.append((time.monotonic_ns() - begin_ns, _others(me)))
        time.sleep(0.001)
    end_ns, ran_ns = seen[-1]
    for at_ns, ran in seen[:-1]:
        cores = (ran_ns - ran) / (end_ns - at_ns)
        if cores < ASLEEP_CORES:
            return at_ns, cores
    return end_ns, cores


def _others(me: int) -> int:
    return sum(ns for thread, ns in thread_ns().items() if thread != me)
