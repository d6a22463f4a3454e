"""Elects one collector of a share: only that one appends verdicts and runs commands."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport.diagnose import alive
from transport.diagnose.live.columns import read_file
from transport.ground import created

NAME = "weft-collector.json"
BYTES_MAX = 4_096


def _start_ticks(pid: int) -> int:
    """When the process was started; 0: not known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((alive.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    return 0


@dataclass
class Claim:
    """The file in the share that names the elected collector, which rewrites it in each interval.

    stale_s: a claim that was not rewritten for this long is void. holds: whether this collector is
    elected.
    """

    folder: Path
    stale_s: float
    host: str = field(default_factory=socket.gethostname)
    holds: bool = False
    _turn: int = 0
    _seen: bytes | None = None
    _changed_s: float = 0.0
    _said: str = ""
    _me: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._me = [self.host, os.getpid(), _start_ticks(os.getpid())]

    @property
    def file(self) -> Path:
        return self.folder / NAME

    def step(self) -> list[str]:
        """Takes or renews the claim unless another collector holds it; returns lines to print."""
        try:
            line = self._step()
        except OSError as error:
            self.holds = True
            line = (
                f"cannot write {NAME} into {self.folder}: {error.strerror}: a second collector "
                "would not be noticed"
            )
        said, self._said = self._said, line
        return [line] if line and line != said else []

    def _step(self) -> str:
        data = self._read()
        if data != self._seen:
            self._seen, self._changed_s = data, time.monotonic()
        if data is None:
            self.holds = self._created()
            return ""
        holder = _holder(data)
        self.holds = holder == self._me
        if self.holds:
            self._write()
            return ""
        if time.monotonic() - self._changed_s > self.stale_s or self._is_dead(holder):
            self._write()  # if two collectors write at once, the next interval shows who holds it
            return ""
        name = f"process {holder[1]} on {holder[0]}" if holder else f"the claim in {NAME}"
        return (
            f"another collector judges this share ({name}): this collector prints verdicts, runs "
            "no commands and writes no verdicts into the share"
        )

    def _read(self) -> bytes | None:
        try:
            return read_file(self.file, BYTES_MAX)
        except FileNotFoundError:
            return None

    def _text(self) -> bytes:
        self._turn += 1
        return json.dumps({"weft_collector": self._me, "turn": self._turn}).encode()

    def _created(self) -> bool:
        """Makes the file, unless another collector was faster."""
        try:
            with self.file.open("xb") as file:
                file.write(self._text())
        except FileExistsError:
            return False
        return True

    def _write(self) -> None:
        created.replace(self.file, self._text())

    def _is_dead(self, holder: list[Any]) -> bool:
        """Whether the holder was a process of this host that has ended."""
        if not holder or holder[0] != self.host or not holder[2]:
            return False
        return alive.state_of(holder[1], holder[2]) in ("", "Z", "X")

    def close(self) -> None:
        """Removes the file if this collector holds the claim."""
        if self.holds:
            with contextlib.suppress(OSError):
                if _holder(self._read() or b"") == self._me:
                    self.file.unlink()


def _holder(data: bytes) -> list[Any]:
    """Host, process id and start time of the claim's holder; empty: the file is damaged."""
    try:
        host, pid, ticks = json.loads(data)["weft_collector"]
        return [str(host), int(pid), int(ticks)]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return []
