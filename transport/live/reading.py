"""Reads all telemetry pages at one moment, and what /proc says about their processes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from transport import telemetry
from transport.telemetry.page import NAME

PROC = Path("/proc")
# Variables in which launchers and schedulers put the rank of a process, most specific first.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
RANK = re.compile(r"[0-9]{1,9}", re.ASCII)
THREAD = re.compile(r"weft-[a-z]+(-[0-9]+)?", re.ASCII)
NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts from /proc about a process; empty if it has ended or is in another PID namespace.

    rank: from its environment, "" if no launcher set one. command: its short name.
    cpu_ns: name of a thread of weft's -> CPU time of the threads with this name.
    """

    rank: str = ""
    command: str = ""
    cpu_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """All telemetry pages at one moment, oldest process first.

    read_ns: CLOCK_MONOTONIC when reading began. facts: of each page's process, by the page's file.
    problems: why other pages were not read, a line each. ignored: number of pages that other users
    made or can change. ended: pages that were left out because their process has ended.
    """

    read_ns: int
    pages: tuple[telemetry.Page, ...]
    facts: Mapping[Path, Facts]
    problems: tuple[str, ...]
    ignored: int = 0
    ended: frozenset[Path] = frozenset()

    def of_running(self) -> Reading:
        """The reading without the pages of processes that have ended."""
        kept = tuple(page for page in self.pages if page.process_state != "gone")
        gone = frozenset(page.path for page in self.pages if page.process_state == "gone")
        return replace(self, pages=kept, ended=gone)


def read(where: Path | None = None, pids: Collection[int] = ()) -> Reading:
    """Reads the telemetry pages in a directory: all, or those of some processes.

    PageError if the directory cannot be listed.
    """
    now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    read_all = telemetry.read_pages(where, pids)
    found = read_all.pages
    of_pid = {page.pid: facts_of(page.pid) for page in found if is_here(page)}
    facts = {page.path: of_pid[page.pid] if is_here(page) else Facts() for page in found}
    return Reading(now_ns, found, facts, read_all.problems, read_all.ignored)


def is_here(page: telemetry.Page) -> bool:
    """Whether the process exists and its pid means the same process in this PID namespace."""
    return page.process_state in ("running", "stopped")


def number_of(page: telemetry.Page) -> int:
    """The number of a page's endpoint within its process, from the name of the file."""
    name = NAME.fullmatch(page.path.name)
    return int(name[5]) if name is not None else 0


def facts_of(pid: int) -> Facts:
    """The facts of a running process; what cannot be read is left out."""
    return Facts(_rank(pid), _text(PROC / str(pid) / "comm").strip(), _cpu_ns(pid))


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""
    return "".join(one if one.isprintable() or one == "\0" else " " for one in raw)


def _rank(pid: int) -> str:
    lines = _text(PROC / str(pid) / "environ").split("\0")
    variables = dict(line.partition("=")[::2] for line in lines if "=" in line)
    named = (variables.get(name, "") for name in RANK_VARIABLES)
    return next((value for value in named if RANK.fullmatch(value)), "")


def _cpu_ns(pid: int) -> dict[str, int]:
    used: dict[str, int] = {}
    try:
        threads = os.listdir(PROC / str(pid) / "task")
    except OSError:
        return used
    for thread in threads:
        head, _, tail = _text(PROC / str(pid) / "task" / thread / "stat").rpartition(")")
        name = head.partition("(")[2]
        fields = tail.split()
        if THREAD.fullmatch(name) and len(fields) > 12:
            # Fields 14 and 15 of stat: time in user mode and in the kernel, in clock ticks.
            ticks = int(fields[11]) + int(fields[12])
            used[name] = used.get(name, 0) + ticks * NS_PER_TICK
    return used
