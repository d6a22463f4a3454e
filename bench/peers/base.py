"""A peer: a kind of socket that the flow benches drive, or a program that is run."""

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
    """What every peer answers."""

    @property
    def name(self) -> str: ...
    def missing(self) -> str | None:
        """What this machine lacks for it and what to type; None when nothing."""


@dataclass(frozen=True)
class Socket(ABC):
    """A contender of the flow benches: a kind of channel and how many streams a flow has."""

    name: str
    kind: str
    streams: int = 1

    @abstractmethod
    def missing(self) -> str | None: ...


@dataclass(frozen=True)
class Weft(Socket):
    """This tree's own."""

    name: str = "weft"
    kind: str = "weft"

    def missing(self) -> str | None:
        return None


@dataclass(frozen=True)
class Program(ABC):
    """A measuring program of others, in its own words."""

    name: str
    executable: str
    package: str  # Debian's

    def missing(self) -> str | None:
        if shutil.which(self.executable) is not None:
            return None
        return f"no {self.executable} here: apt-get install {self.package}"

    def version(self) -> str:
        return first_version([self.executable, "--version"])

    @abstractmethod
    def run(self, places: Sequence[Placement], size_bytes: int, duration_s: float) -> Config:
        """The first place receives, the second sends; a row with what the program says."""


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
    """What a program said and what running it cost; none of them looks at what arrives."""
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
    """The first number with a dot that the program says, or unknown."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(r"[0-9]+(?:\.[0-9]+)+", done.stdout + done.stderr)
    return found[0] if found else "unknown"
