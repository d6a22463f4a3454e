"""Runs a command once for each incident, without waiting for it; kills it if it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transport.diagnose.live.incidents import Event

VARIABLES = {
    "WEFT_FINDING_CLASS": ("class",),
    "WEFT_FINDING_PLACE": ("place", "name"),
    "WEFT_FINDING_PLACE_KIND": ("place", "kind"),
    "WEFT_FINDING_CONFIDENCE": ("confidence",),
    "WEFT_FINDING_INCIDENT": ("incident",),
    "WEFT_FINDING_FROM_NS": ("from_ns",),
}
STDERR = 2  # commands print there, because verdicts may go to standard output
RUNNING_MAX = 8  # commands that may run at once; further incidents start none


@dataclass
class _Run:
    process: subprocess.Popen[bytes]
    incident: int
    until_s: float


@dataclass
class Action:
    """command: a shell command; it gets the finding as JSON on its standard input.

    act: False: only says what it would run. A command that runs longer than timeout_s is killed,
    with all processes of its group.
    """

    command: str
    act: bool
    timeout_s: float
    _done: set[int] = field(default_factory=set)
    _running: list[_Run] = field(default_factory=list)

    def tell(self, event: Event) -> list[str]:
        """Runs the command for a finding, once for each incident. Returns lines for the user."""
        number = event.incident.number
        if event.what != "finding" or number in self._done:
            return []
        self._done.add(number)
        document = event.as_json()
        if not self.act:
            return [f"would run for incident {number}: {self.command} (dry run: --act runs it)"]
        if len(self._running) >= RUNNING_MAX:
            return [f"incident {number}: no command is run, as {RUNNING_MAX} still run"]
        return self._start(number, document)

    def _start(self, number: int, document: dict[str, Any]) -> list[str]:
        values = {name: _at(document, path) for name, path in VARIABLES.items()}
        # Standard input is a file: a pipe would block this process if the command does not read it.
        with tempfile.TemporaryFile() as given:
            given.write(json.dumps(document).encode() + b"\n")
            given.seek(0)
            try:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", self.command],
                    stdin=given,
                    stdout=STDERR,
                    start_new_session=True,
                    env=os.environ | values,
                )
            except OSError as error:
                return [f"incident {number}: cannot run {self.command}: {error.strerror}"]
        self._running.append(_Run(process, number, time.monotonic() + self.timeout_s))
        return [f"incident {number}: runs {shlex.quote(self.command)} (process {process.pid})"]

    def poll(self) -> list[str]:
        """Takes note of commands that have ended, and kills those that ran too long."""
        lines = []
        for one in list(self._running):
            status = one.process.poll()
            if status is not None:
                self._running.remove(one)
                if status:
                    lines.append(f"incident {one.incident}: the command ended with status {status}")
            elif time.monotonic() > one.until_s:
                self._kill(one)
                lines.append(
                    f"incident {one.incident}: the command was killed, because it ran longer than "
                    f"{self.timeout_s:g} s"
                )
        return lines

    @property
    def running(self) -> int:
        """Number of commands that still run."""
        return len(self._running)

    def close(self, patience_s: float, hurries: Callable[[], bool]) -> list[str]:
        """Waits up to patience_s for commands that still run, then kills them.

        hurries: returns whether to stop waiting now.
        """
        lines = self.poll()
        until_s = time.monotonic() + patience_s
        while self._running and time.monotonic() < until_s and not hurries():
            time.sleep(0.05)
            lines += self.poll()
        for one in list(self._running):
            self._kill(one)
            lines.append(f"incident {one.incident}: the command was killed, as diagnosis ends")
        return lines

    def _kill(self, one: _Run) -> None:
        """Kills the command and all processes of its group."""
        with contextlib.suppress(ProcessLookupError):  # the command may have ended meanwhile
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
        self._running.remove(one)


def _at(document: dict[str, Any], path: tuple[str, ...]) -> str:
    value: Any = document
    for part in path:
        value = value[part]
    return str(value).replace("\0", "")
