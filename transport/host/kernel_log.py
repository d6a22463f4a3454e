"""Reads XID errors of NVIDIA GPUs from the kernel log: /dev/kmsg, or dmesg and journalctl output.

The lines are those of NVIDIA's driver: "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU
has fallen off the bus." (docs.nvidia.com/deploy/xid-errors).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

KMSG = Path("/dev/kmsg")
FILE_BYTES_MAX = 1 << 30
LINE_MAX = 4096  # bytes of a line that are read
RECORDS_MAX = 1_000_000  # of the kernel's buffer
ERRORS_MAX = 10_000
TEXT_MAX = 200
UNKNOWN_NS = -1

XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,20})\): (\d{1,5}),? ?"
    r"(?:pid='?([^,']{0,40})'?,? ?)?(?:name='?([^,']{0,80})'?,? ?)?(.*)"
)
# journalctl -k, with its usual stamp and with -o short-iso: "Nov 28 10:00:00 node7 kernel: ...".
FROM_HOST = re.compile(
    r"^(?P<stamp>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S{8,24}) "
    r"(?P<host>[A-Za-z0-9_.-]{1,255}) kernel: "
)
HUMAN = re.compile(r"^\[([A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] ")  # dmesg -T


class KernelLogError(ValueError):
    """A log cannot be read; the message names it and says why."""


@dataclass(frozen=True)
class XidError:
    """One XID. host: "" if the line names none. pci: as the line says it. pid: 0 if not told.

    time_ns: since 1970; UNKNOWN_NS: the line does not tell, as those of dmesg, which count from the
    start of the host.
    """

    number: int
    pci: str
    pid: int
    text: str
    host: str = ""
    time_ns: int = UNKNOWN_NS


def read_file(file: Path) -> list[XidError]:
    """The XIDs in a file that dmesg or journalctl -k has printed. KernelLogError if it cannot be
    read."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise KernelLogError(f"{file} is larger than {FILE_BYTES_MAX >> 30} GiB")
        with file.open("rb") as log:
            return parsed(_lines(log), time.time())
    except OSError as error:
        raise KernelLogError(f"{file}: {error.strerror}") from None


def _lines(log: Iterable[bytes]) -> Iterator[str]:
    for line in log:
        yield line[:LINE_MAX].decode("utf-8", "replace").rstrip("\r\n")


def parsed(lines: Iterable[str], now_s: float) -> list[XidError]:
    """The XIDs in lines of a log. now_s: the time of day; stamps without a year are before it."""
    found: list[XidError] = []
    for line in lines:
        error = _error(line)
        if error is None:
            continue
        head = FROM_HOST.match(line)
        host, time_ns = "", UNKNOWN_NS
        if head is not None:
            host, time_ns = head["host"], _time_ns(head["stamp"], now_s)
        else:
            human = HUMAN.match(line)
            if human is not None:
                time_ns = _parsed_ns(human[1], "%a %b %d %H:%M:%S %Y")
        found.append(XidError(error.number, error.pci, error.pid, error.text, host, time_ns))
        if len(found) >= ERRORS_MAX:
            break
    return found


def _error(line: str) -> XidError | None:
    match = XID.search(line)
    if match is None:
        return None
    pci, number, pid, _, text = match.groups()
    whole = int(pid) if pid and pid.isascii() and pid.isdigit() and len(pid) < 10 else 0
    return XidError(int(number), pci, whole, text[:TEXT_MAX].strip(" ."))


def _time_ns(stamp: str, now_s: float) -> int:
    if stamp[0].isdigit():
        try:
            return int(datetime.fromisoformat(stamp).timestamp() * 1e9)
        except (ValueError, OverflowError):
            return UNKNOWN_NS
    year = datetime.fromtimestamp(now_s).year
    made = _parsed_ns(f"{year} {stamp}", "%Y %b %d %H:%M:%S")
    # A stamp of December that is read in January is of the year before.
    if made > (now_s + 86_400) * 1e9:
        made = _parsed_ns(f"{year - 1} {stamp}", "%Y %b %d %H:%M:%S")
    return made


def _parsed_ns(text: str, form: str) -> int:
    try:
        return int(datetime.strptime(text, form).timestamp()) * 10**9
    except (ValueError, OverflowError):
        return UNKNOWN_NS


class Kmsg:
    """Reads the kernel's own buffer, each record once. KernelLogError if that is not allowed."""

    def __init__(self, where: Path = KMSG) -> None:
        try:
            self._file = os.open(where, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise KernelLogError(f"{where}: {error.strerror}") from None

    def read(self) -> list[XidError]:
        """The XIDs since the last call, at first those of the whole buffer."""
        found: list[XidError] = []
        # Records count time from the start of the host, as CLOCK_MONOTONIC does.
        ahead_ns = time.time_ns() - time.monotonic_ns()
        for _ in range(RECORDS_MAX):
            try:
                record = os.read(self._file, 8192)  # one record at a time (kernel ABI: dev-kmsg)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # records were overwritten before they were read
            except OSError as error:
                raise KernelLogError(f"{KMSG}: {error.strerror}") from None
            if not record:
                break
            head, _, text = record.decode("utf-8", "replace").partition(";")
            xid = _error(text.partition("\n")[0])
            words = head.split(",")
            if xid is not None and len(found) < ERRORS_MAX:
                known = len(words) > 2 and words[2].isdigit()
                at_ns = int(words[2]) * 1000 + ahead_ns if known else UNKNOWN_NS
                found.append(XidError(xid.number, xid.pci, xid.pid, xid.text, "", at_ns))
        return found

    def close(self) -> None:
        os.close(self._file)
