"""Base classes of contenders: sockets that flow benchmarks use, and foreign programs."""

from __future__ import annotations

import re
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.lib.placement import Placement

Config = dict[str, Any]


class Peer(Protocol):
    """The interface of a contender: a transport that a benchmark measures."""

    @property
    def name(self) -> str: ...
    def missing(self) -> str | None:
        """Text about what this machine lacks for the contender, with the remedy; None: nothing."""


@dataclass(frozen=True)
class Socket(ABC):
    """A transport that the flow benchmarks measure: how it opens channels, and streams per flow."""

    name: str
    kind: str
    streams: int = 1

    @abstractmethod
    def missing(self) -> str | None: ...


@dataclass(frozen=True)
class Weft(Socket):
    """weft, built from this source tree."""

    name: str = "weft"
    kind: str = "weft"

    def missing(self) -> str | None:
        return None


@dataclass(frozen=True)
class Program(ABC):
    """A foreign program that measures itself."""

    name: str
    executable: str
    package: str  # the Debian package that contains it

    def missing(self) -> str | None:
        if shutil.which(self.executable) is not None:
            return None
        return f"no {self.executable} here: apt-get install {self.package}"

    def version(self) -> str:
        return first_version([self.executable, "--version"])

    @abstractmethod
    def run(self, places: Sequence[Placement], size_bytes: int, duration_s: float) -> Config:
        """Sends from the second place to the first; returns the program's numbers as a row."""


def program_row(
    size_bytes: int,
    iterations: int,
    rate_bytes_per_s: float,
    moved_bytes: float,
    cost: Config,
    *,
    peak_bytes_per_s: float | None = None,
    retransmitted_segments: int | None = None,
) -> Config:
    """A row with a program's numbers and processor time; contents are not checked."""
    return {
        "size_bytes": size_bytes,
        "iterations": iterations,
        "peak_bytes_per_s": peak_bytes_per_s,
        "rate_bytes_per_s": rate_bytes_per_s,
        "messages_per_s": rate_bytes_per_s / size_bytes,
        "sender_cpu_s_per_gbyte": cost["sender_cpu_ns"] / moved_bytes,
        "receiver_cpu_s_per_gbyte": cost["receiver_cpu_ns"] / moved_bytes,
        "cpu_share": cost["cpu_share"],
        "retransmitted_segments": retransmitted_segments,
        "wrong": None,
    }


def first_version(command: Sequence[str]) -> str:
    """The first number with a dot in the program's output, or unknown."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(r"[0-9]+(?:\.[0-9]+)+", done.stdout + done.stderr)
    return found[0] if found else "unknown"
