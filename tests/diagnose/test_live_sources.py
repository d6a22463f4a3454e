"""Tests what hosts see beside traces: /proc, network interfaces, GPUs, stacks; and failures."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import until
from transport.diagnose.live.apart import Apart
from transport.diagnose.live.cores import REMEMBERED, Cores
from transport.diagnose.live.host import Host, told_of
from transport.diagnose.live.sources import Found, Gpus, Interfaces, KernelLog, Stacks, innermost
from transport.host.kernel_log import Kmsg

SECOND_NS = 1_000_000_000
STACK = """Process 7: python train.py --shape (8, 8)
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (idle): "MainThread"
    read (loader.py:12)
    main (train.py:3)
"""


def test_host__only_its_own_processes_are_looked_at(tmp_path: Path) -> None:
    one = {"number": 0, "host": "elsewhere", "pid": 1, "start_ticks": "1", "ended": False}
    assert Host(pages=tmp_path).look([one]) == ([], [])
    mine = Host(pages=tmp_path, name="elsewhere")
    found, lines = mine.look([one])
    # Pid 1 was started at another time, and no earlier look saw the traced process.
    assert found == []
    assert any("is not in /proc" in line for line in lines)
    assert mine.look([one])[1] == []


def test_host__states_of_processes() -> None:
    assert told_of(7, "S") is None
    assert told_of(7, "T") == {"kind": "stopped", "text": "the process is stopped (state T)"}
    assert told_of(2**22 + 1, "") == {
        "kind": "gone",
        "text": f"there is no process {2**22 + 1} any more",
    }


def test_sources__interfaces_tell_what_grew(tmp_path: Path) -> None:
    counter = tmp_path / "eth0" / "statistics" / "rx_crc_errors"
    counter.parent.mkdir(parents=True)
    counter.write_text("7\n")
    source = Interfaces(tmp_path, ethtool=None)
    found, lines = source.look([], [])
    assert (found, len(lines)) == ([], 1)
    counter.write_text("10\n")
    found, lines = source.look([], [])
    assert found[0]["text"] == "counters of eth0 grew: rx_crc_errors +3"
    assert lines == []


def test_sources__py_spy_is_bounded(tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text('#!/bin/sh\necho "Thread 1: main (app.py:3)"\nyes | head -c 100000\n')
    program.chmod(0o755)
    source = Stacks(program=str(program))
    process = {"number": 4, "pid": 123, "idle_ns": 20 * SECOND_NS, "ended": False}
    assert source.look([process], [{"process": 4, "kind": "waits"}]) == ([], [])
    assert source.look([{**process, "idle_ns": SECOND_NS}], []) == ([], [])
    (one,), lines = source.look([process], [])
    assert (one["kind"], len(one["stack"]), lines) == ("stack", 8000, [])
    assert Stacks(program=None).look([process], [])[1] == [
        "py-spy is not installed: no stacks of absent ranks"
    ]


class FakeNvml(SimpleNamespace):
    """A fake of the part of pynvml that Gpus uses, with two GPUs. xids, ecc, reasons, rows,
    trained: what they report. pids: the processes that use each GPU."""

    class NVMLError(Exception):
        pass

    def __getattr__(self, name: str) -> Any:
        throttle = "nvmlClocksThrottleReason"
        calls = {
            "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
            "NVML_VOLATILE_ECC": 0,
            "nvmlEventTypeXidCriticalError": 8,
            f"{throttle}HwThermalSlowdown": 64,
            f"{throttle}SwThermalSlowdown": 32,
            f"{throttle}HwPowerBrakeSlowdown": 128,
            f"{throttle}HwSlowdown": 8,
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetIndex": lambda handle: handle,
            "nvmlEventSetCreate": lambda: "set",
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlDeviceGetTotalEccErrors": lambda handle, *_: self.ecc[handle],
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: self.reasons[handle],
            "nvmlEventSetWait_v2": self._event,
            "NVML_NVLINK_MAX_LINKS": 18,
            "NVML_NVLINK_ERROR_DL_RECOVERY": 1,
            "nvmlDeviceGetNvLinkErrorCounter": self._trained,
            "nvmlDeviceGetRemappedRows": lambda handle: (0, 0, *self.rows[handle]),
            "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(
                domain=0, bus=0x1B + handle, device=0
            ),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
                SimpleNamespace(pid=one) for one in self.pids[handle]
            ],
        }
        defaults = {"rows": [(0, 0), (0, 0)], "trained": [0, 0], "pids": [[], []]}
        if name in defaults:
            return defaults[name]
        return calls[name]

    def _trained(self, handle: int, link: int, _: int) -> int:
        if link >= 2:
            raise self.NVMLError("no such link")
        count: int = self.trained[handle]
        return count

    def _event(self, *_: Any) -> Any:
        if not self.xids:
            raise self.NVMLError("timeout")
        device, xid = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=xid)


def test_sources__gpus_tell_xids_ecc_errors_and_slow_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(xids=[], ecc=[3, 0], reasons=[0, 0])
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    host = Host([Gpus()], pages=tmp_path)
    assert [one for one in host.look([])[0] if one["kind"] == "gpu"] == []
    nvml.xids, nvml.ecc, nvml.reasons = [(1, 79)], [5, 0], [0, 64]
    wanted = [
        "heat slows down the clocks of GPU 1",
        "GPU 0 had 2 new uncorrected ECC errors 0 s ago",
        "GPU 1 reported XID 79 (the GPU has fallen off the bus) 0 s ago",
    ]
    assert [one["text"] for one in host.look([])[0]] == wanted
    nvml.reasons = [0, 0]  # events are reported for a while, but throttling only while it lasts
    assert [one["text"] for one in host.look([])[0]] == wanted[1:]


def test_sources__gpus_tell_rows_links_and_whose_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = FakeNvml(xids=[], ecc=[0, 0], reasons=[0, 0], trained=[0, 0], rows=[(1, 0), (0, 1)])
    nvml.pids = [[7, 8], [9]]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    processes: list[dict[str, Any]] = [{"number": 4, "pid": 8}, {"number": 5, "pid": 99}]
    source = Gpus()
    found, _ = source.look(processes, [])
    assert [(one["code"], one["pci"], one["process"]) for one in found] == [
        ("remap pending", "0000:1b:00", 4),
        ("remap failed", "0000:1c:00", None),
    ]
    nvml.trained = [3, 0]
    (link,) = [one for one in source.look(processes, [])[0] if one["code"] == "nvlink"]
    assert link["text"] == "NVLinks of GPU 0 were trained again 6 times"


def kmsg(folder: Path, *lines: tuple[int, str]) -> Kmsg:
    """A log of the kernel from a pipe, which holds one record. lines: us since boot, text."""
    pipe = folder / "kmsg"
    os.mkfifo(pipe)
    log = Kmsg(pipe)
    writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    for at_us, text in lines:
        os.write(writer, f"3,1,{at_us},-;{text}\n".encode())
    os.close(writer)
    return log


def test_sources__the_kernel_log_tells_xids_since_the_job_began(tmp_path: Path) -> None:
    now_us = time.monotonic_ns() // 1000
    text = "NVRM: Xid (PCI:0000:1b:00): 79, pid=8, name=python, GPU has fallen off the bus."
    source = KernelLog(kmsg(tmp_path, (now_us, text)))
    processes: list[dict[str, Any]] = [{"number": 4, "pid": 8, "first_ns": None}]
    assert source.look(processes, []) == ([], [])  # nothing was recorded yet
    processes[0]["first_ns"] = time.time_ns() - 60 * SECOND_NS
    ((one,), _) = source.look(processes, [])
    assert (one["code"], one["pci"], one["process"]) == ("xid 79", "0000:1b:00", 4)
    assert source.look(processes, []) == ([], [])
    (tmp_path / "later").mkdir()
    later = KernelLog(kmsg(tmp_path / "later", (now_us, text)))
    processes[0]["first_ns"] = time.time_ns() + SECOND_NS
    assert later.look(processes, []) == ([], [])


def test_sources__a_kernel_log_that_cannot_be_read_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kmsg.__init__, "__defaults__", (tmp_path / "none",))
    source = KernelLog()
    ((), (line,)) = source.look([], [])
    assert line.startswith("kernel log not readable: ")
    assert line.endswith("No such file or directory: XID errors in it are not seen")
    assert source.look([], []) == ([], [])


def test_sources__without_nvml_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    source = Gpus()
    assert source.look([], []) == (
        [],
        ["the package nvidia-ml-py is not installed: nothing is known of GPUs"],
    )
    assert source.look([], []) == ([], [])


def test_sources__a_stack_is_shown_until_the_process_goes_on(tmp_path: Path) -> None:
    assert innermost(STACK) == "read (loader.py:12)"
    assert innermost("") == "no Python frame"
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\ncat <<E\n{STACK}E\n")
    program.chmod(0o755)
    source = Stacks(program=str(program))
    process = {"number": 4, "pid": 123, "idle_ns": 20 * SECOND_NS, "ended": False}
    for _ in range(2):  # the second look shows the stack of the first one
        (one,), _ = source.look([process], [])
        assert one["text"] == "py-spy shows read (loader.py:12)"
    assert source.look([{**process, "idle_ns": 0}], []) == ([], [])
    assert source.look([process], []) == ([], [])  # no new dump within a minute


class Hangs:
    """A source whose device does not answer until the test sets `goes`."""

    def __init__(self) -> None:
        self.goes = threading.Event()

    def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found:
        self.goes.wait(60)
        return [{"process": None, "kind": "gpu", "text": "awake"}], []


def test_apart__a_source_that_hangs_delays_nothing() -> None:
    source = Hangs()
    apart = Apart("NVML", source, patience_s=0.01)
    line = "NVML does not answer: its evidence is missing"
    assert apart.look([], []) == ([], [line])
    assert apart.look([], []) == ([], [line])
    source.goes.set()
    assert apart._thread is not None
    apart._thread.join(60)
    found, lines = apart.look([], [])
    assert (found[0]["text"], lines) == ("awake", [])


def test_apart__a_source_that_fails_is_said_once() -> None:
    class Fails:
        def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found:
            raise RuntimeError("no such symbol")

    apart = Apart("NVML", Fails())
    assert apart.look([], []) == ([], ["NVML fails (RuntimeError: no such symbol)"])
    assert apart.look([], []) == ([], [])


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_cores__threads_that_share_a_core_wait_for_it() -> None:
    """Three processes on one core: each waits for it at some time."""
    core = min(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")
    ones = [context.Process(target=spin, args=(600.0,)) for _ in range(3)]
    try:
        for one in ones:
            one.start()
            os.sched_setaffinity(one.pid or 0, {core})
        pids = [one.pid or 0 for one in ones]
        cores = Cores()
        assert cores.read(pids) == {}
        seen: set[int] = set()

        def all_have_waited() -> bool:
            seen.update(pid for pid, share in cores.read(pids).items() if share > 0)
            return seen == set(pids)

        until(all_have_waited, lambda: f"only {seen} have waited")
    finally:
        for one in ones:
            one.kill()
            one.join()
    assert cores.read(pids) == {}


def test_cores__a_kernel_that_counts_nothing_is_no_error(tmp_path: Path) -> None:
    task = tmp_path / "7" / "task" / "7"
    task.mkdir(parents=True)
    for text in ("", "1 x 3", "12"):
        (task / "schedstat").write_text(text)
        cores = Cores(tmp_path)
        assert (cores.read([7]), cores.read([7])) == ({}, {})


def test_cores__the_largest_share_of_the_last_readings_counts(tmp_path: Path) -> None:
    task = tmp_path / "7" / "task" / "7"
    task.mkdir(parents=True)
    cores = Cores(tmp_path)
    found = []
    for waited_ns in (0, 10**12, *[10**12] * REMEMBERED):
        (task / "schedstat").write_text(f"5 {waited_ns} 1\n")
        found.append(cores.read([7]).get(7))
    assert found == [None, *[1.0] * REMEMBERED, 0.0]
