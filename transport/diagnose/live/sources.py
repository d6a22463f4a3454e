"""Optional sources of evidence: NVML, the kernel log, network interfaces, ethtool, py-spy.

A source that is not installed reports this once, and finds nothing.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from transport.host.kernel_log import KernelLogError, Kmsg, XidError
from transport.host.xids import xid_of
from transport.trace.inventory import pci_of

Found = tuple[list[dict[str, Any]], list[str]]

NET = Path("/sys/class/net")
STATISTICS = (
    *("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "rx_crc_errors", "rx_missed_errors"),
    *("tx_carrier_errors", "rx_fifo_errors"),
)
ETHTOOL = re.compile(r"\s*([A-Za-z0-9_.]{1,80}): (\d{1,19})$")
ETHTOOL_WANTED = re.compile(r"pfc|pause|discard|symbol_err|fcs|crc|out_of_buffer|link_down", re.I)
INTERFACES_MAX = 32
TIMEOUT_S = 5.0
STACK_BYTES_MAX = 8_000
STACKS_MAX = 2  # at most this many dumps of Python stacks in one step
DUMP_EVERY_S = 60.0  # seconds between two dumps of the Python stacks of one process
XID_SEEN_MAX = 16
# Code of hardware.CODES -> cause, and suffixes of NVML's constants nvmlClocksThrottleReason...
THROTTLED = {
    "heat": ("heat", ("HwThermalSlowdown", "SwThermalSlowdown")),
    "power": ("the power supply", ("HwPowerBrakeSlowdown",)),
    "slowdown": ("the hardware", ("HwSlowdown",)),
}
# Counters of NVLink whose growth is no normal operation: links that were trained again.
NVLINK_COUNTERS = ("NVML_NVLINK_ERROR_DL_RECOVERY",)


class Source(Protocol):
    """Looks at the host once an interval. before: evidence found so far in this interval."""

    def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found: ...


def device(kind: str, text: str, **more: Any) -> dict[str, Any]:
    """Evidence on the host and its devices, not on one process."""
    return {"process": None, "kind": kind, "text": text, **more}


@dataclass
class Interfaces:
    """Counters of errors, drops and pauses that grew since the last interval."""

    where: Path = NET
    ethtool: str | None = field(default_factory=lambda: shutil.which("ethtool"))
    _before: dict[tuple[str, str], int] = field(default_factory=dict)
    _said: bool = False

    def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found:
        lines = []
        if not self._said:
            self._said = True
            if self.ethtool is None:
                lines.append("ethtool is not installed: no PFC and no port counters")
        made = []
        now: dict[tuple[str, str], int] = {}
        for name in self._names():
            values = self._statistics(name) | self._of_ethtool(name)
            now |= {(name, counter): value for counter, value in values.items()}
            grown = {
                counter: value - self._before[name, counter]
                for counter, value in values.items()
                if value > self._before.get((name, counter), value)
            }
            if grown:
                text = ", ".join(f"{counter} +{value}" for counter, value in grown.items())
                made.append(device("interface", f"counters of {name} grew: {text}", interface=name))
        self._before = now
        return made, lines

    def _names(self) -> list[str]:
        try:
            return sorted(one.name for one in self.where.iterdir())[:INTERFACES_MAX]
        except OSError:
            return []

    def _statistics(self, name: str) -> dict[str, int]:
        found = {}
        for counter in STATISTICS:
            try:
                found[counter] = int((self.where / name / "statistics" / counter).read_text())
            except (OSError, ValueError):
                continue
        return found

    def _of_ethtool(self, name: str) -> dict[str, int]:
        if self.ethtool is None or name == "lo":
            return {}
        text, _ = output_of([self.ethtool, "-S", name])
        matches = (ETHTOOL.fullmatch(line) for line in text.splitlines())
        return {one[1]: int(one[2]) for one in matches if one and ETHTOOL_WANTED.search(one[1])}


@dataclass
class Gpus:
    """Errors of memory and NVLink, throttled clocks, and XIDs, through NVML."""

    _nvml: Any = None
    _tried: bool = False
    _before: dict[tuple[str, int], int] = field(default_factory=dict)
    _events: Any = None

    def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found:
        lines = self._open()
        made: list[dict[str, Any]] = []
        if self._nvml is None:
            return made, lines
        nvml = self._nvml
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                who = {"pci": _pci(nvml, handle)} | _owner(nvml, handle, processes)
                found = [*self._memory(nvml, index, handle), *self._links(nvml, index, handle)]
                found += self._clocks(nvml, index, handle)
                made += [one | who for one in found]
            made += self._xids(nvml, processes)
        except nvml.NVMLError as error:
            lines.append(f"NVML fails: {error}")
        return made, lines

    def _open(self) -> list[str]:
        if self._tried:
            return []
        self._tried = True
        try:
            import pynvml
        except ImportError:
            return ["the package nvidia-ml-py is not installed: nothing is known of GPUs"]
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return [f"NVML cannot be used ({error}): nothing is known of GPUs"]
        self._nvml = pynvml
        try:
            self._events = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                pynvml.nvmlDeviceRegisterEvents(
                    pynvml.nvmlDeviceGetHandleByIndex(index),
                    pynvml.nvmlEventTypeXidCriticalError,
                    self._events,
                )
        except pynvml.NVMLError as error:
            self._events = None
            return [f"NVML does not report XIDs ({error})"]
        return []

    def _memory(self, nvml: Any, index: int, handle: Any) -> list[dict[str, Any]]:
        made = []
        try:
            kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
            more = self._grown("ecc", index, int(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds)))
            if more:
                text = f"GPU {index} had {more} new uncorrected ECC errors"
                made.append(device("gpu", text, event=1, code="ecc", time_ns=time.time_ns()))
        except nvml.NVMLError:
            pass  # this GPU does not count ECC errors
        try:
            *_, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
            if failed:
                text = f"GPU {index} could not remap a row of its memory"
                made.append(device("gpu", text, code="remap failed", time_ns=time.time_ns()))
            elif pending:
                text = f"rows of the memory of GPU {index} wait for a reset to be remapped"
                made.append(device("gpu", text, code="remap pending", time_ns=time.time_ns()))
        except nvml.NVMLError:
            pass  # this GPU does not remap rows
        return made

    def _links(self, nvml: Any, index: int, handle: Any) -> list[dict[str, Any]]:
        total, known = 0, False
        for link in range(int(nvml.NVML_NVLINK_MAX_LINKS)):
            try:
                for name in NVLINK_COUNTERS:
                    counter = getattr(nvml, name)
                    total += int(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter))
                    known = True
            except nvml.NVMLError:
                break  # no more links, or this GPU does not count
        more = self._grown("nvlink", index, total) if known else 0
        if not more:
            return []
        text = f"NVLinks of GPU {index} were trained again {more} times"
        return [device("gpu", text, event=1, code="nvlink", time_ns=time.time_ns())]

    def _clocks(self, nvml: Any, index: int, handle: Any) -> list[dict[str, Any]]:
        made = []
        try:
            reasons = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            for code, (cause, names) in THROTTLED.items():
                bits = [int(getattr(nvml, f"nvmlClocksThrottleReason{name}")) for name in names]
                if any(reasons & one for one in bits):
                    text = f"{cause} slows down the clocks of GPU {index}"
                    made.append(device("gpu", text, code=code, time_ns=time.time_ns()))
        except nvml.NVMLError:
            pass  # this GPU does not report why its clocks are throttled
        return made

    def _grown(self, what: str, index: int, count: int) -> int:
        """By how much a counter grew since the last interval."""
        before = self._before.get((what, index), count)
        self._before[what, index] = count
        return max(count - before, 0)

    def _xids(self, nvml: Any, processes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for _ in range(XID_SEEN_MAX if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError:
                break  # no more events
            index, number = nvml.nvmlDeviceGetIndex(event.device), int(event.eventData)
            text = f"GPU {index} reported XID {number} ({xid_of(number).meaning})"
            one = device("gpu", text, event=1, code=f"xid {number}", time_ns=time.time_ns())
            one |= {"pci": _pci(nvml, event.device)} | _owner(nvml, event.device, processes)
            made.append(one)
        return made


def _pci(nvml: Any, handle: Any) -> str:
    """The PCI address of a GPU, as kernel logs name it; empty: not known."""
    try:
        found = nvml.nvmlDeviceGetPciInfo(handle)
        return f"{int(found.domain):04x}:{int(found.bus):02x}:{int(found.device):02x}"
    except nvml.NVMLError:
        return ""


def _owner(nvml: Any, handle: Any, processes: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of the process that uses a GPU, if it is one of the traced ones alone."""
    try:
        pids = {int(one.pid) for one in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except nvml.NVMLError:
        return {}
    mine = [int(one["number"]) for one in processes if int(one["pid"]) in pids]
    return {"process": mine[0]} if len(mine) == 1 else {}


@dataclass
class KernelLog:
    """XIDs in this host's kernel log, from when the first of its processes began to record.

    GPUs that NVML watches report the same XIDs; the kernel log also has those from before
    diagnosis began, and those of a GPU that has fallen off the bus.
    """

    log: Kmsg | None = None
    _tried: bool = False
    _waiting: list[XidError] = field(default_factory=list)

    def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found:
        lines = []
        if not self._tried:
            self._tried = True
            try:
                self.log = Kmsg() if self.log is None else self.log
            except KernelLogError as error:
                lines.append(f"kernel log not readable: {error}: XID errors in it are not seen")
        if self.log is None:
            return [], lines
        try:
            self._waiting += self.log.read()
        except KernelLogError as error:
            self.log = None
            return [], [f"kernel log not readable: {error}: XID errors in it are not seen"]
        began = [int(one["first_ns"]) for one in processes if one.get("first_ns")]
        if not began:  # no process has recorded yet: it is not known which errors are old
            self._waiting = self._waiting[-XID_SEEN_MAX:]
            return [], lines
        now_ns = time.time_ns()
        fresh = [one for one in self._waiting if one.time_ns >= min(began)]
        self._waiting = []
        return [_of_kernel(one, now_ns, processes) for one in fresh[-XID_SEEN_MAX:]], lines


def _of_kernel(one: XidError, now_ns: int, processes: list[dict[str, Any]]) -> dict[str, Any]:
    """The evidence of an XID in the kernel log."""
    pci = pci_of(one.pci)
    text = f"GPU {pci or '?'} reported XID {one.number} ({xid_of(one.number).meaning})"
    mine = [int(each["number"]) for each in processes if one.pid and int(each["pid"]) == one.pid]
    made = device("gpu", text, event=1, code=f"xid {one.number}", pci=pci, pid=one.pid)
    made |= {"time_ns": one.time_ns, "age_s": max(now_ns - one.time_ns, 0) / 1e9}
    return made | ({"process": mine[0]} if len(mine) == 1 else {})


@dataclass
class Stacks:
    """The Python stacks, by py-spy, of processes that have begun no operation for long.

    A process that waits for another one, as its calls or its telemetry page say, is left out.
    """

    idle_ns: int = 10_000_000_000
    program: str | None = field(default_factory=lambda: shutil.which("py-spy"))
    _said: bool = False
    _dumped: dict[int, float] = field(default_factory=dict)
    _kept: dict[int, dict[str, Any]] = field(default_factory=dict)

    def look(self, processes: list[dict[str, Any]], before: list[dict[str, Any]]) -> Found:
        if self.program is None:
            lines = [] if self._said else ["py-spy is not installed: no stacks of absent ranks"]
            self._said = True
            return [], lines
        lines, tries = [], 0
        idle = {one["process"] for one in before if one.get("kind") == "idle"}
        others = {
            one["process"]
            for one in before
            if one.get("kind") in ("gone", "zombie", "stopped", "waits")
        }
        quiet = [
            one
            for one in sorted(processes, key=lambda each: -int(each["idle_ns"]))
            if (one["number"] in idle or int(one["idle_ns"]) > self.idle_ns)
            and one["number"] not in others
            and not one["ended"]
        ]
        # A stack is shown until its process makes progress.
        pids = {int(one["pid"]) for one in quiet}
        self._kept = {pid: one for pid, one in self._kept.items() if pid in pids}
        for one in quiet:
            pid = int(one["pid"])
            due = time.monotonic() - self._dumped.get(pid, -DUMP_EVERY_S) >= DUMP_EVERY_S
            if not due or tries >= STACKS_MAX:
                continue
            tries += 1
            self._dumped[pid] = time.monotonic()
            text, problem = output_of([self.program, "dump", "--pid", str(pid)])
            if problem:
                lines.append(f"py-spy dump of process {pid}: {problem}")
            elif text:
                shows = f"py-spy shows {innermost(text)[:200]}"
                self._kept[pid] = {"kind": "stack", "stack": text, "text": shows}
        made = [
            {"process": one["number"], **self._kept[int(one["pid"])]}
            for one in quiet
            if int(one["pid"]) in self._kept
        ]
        return made, lines


def innermost(stack: str) -> str:
    """The innermost frame of the first thread that py-spy shows."""
    lines = stack.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith("Thread ")), len(lines))
    return lines[first + 1].strip() if first + 1 < len(lines) else "no Python frame"


def output_of(command: list[str]) -> tuple[str, str]:
    """The first bytes of a command's output, and what went wrong; empty: it succeeded."""
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {TIMEOUT_S:.0f} s"
    except OSError as error:
        return "", str(error.strerror)
    text = done.stdout[:STACK_BYTES_MAX].decode("utf-8", "replace")
    if done.returncode:
        return "", " ".join(done.stderr.decode("utf-8", "replace").split())[:200] or "it failed"
    return text, ""
