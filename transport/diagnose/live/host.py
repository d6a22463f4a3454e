"""The evidence of a host on its processes beside their traces: /proc and telemetry pages."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transport import telemetry
from transport.diagnose import alive
from transport.diagnose.cpu_wait import STARVED
from transport.diagnose.live.cores import Cores
from transport.diagnose.live.sources import Source
from transport.ground.units import percent, time_text
from transport.live import ProcessRates, rates, read as read_pages

EVENTS_S = 900.0  # events of devices are reported for this long
EVENTS_MAX = 32
WAIT_NS = 1_000_000_000  # shorter waits for peers or paths are not reported
STATES = {
    "T": "the process is stopped (state T)",
    "t": "the process is stopped by a debugger (state t)",
}


@dataclass
class Host:
    """Observes the traced processes of this host.

    sources: optional sources of evidence, asked after /proc and telemetry pages. pages: the
    directory of telemetry pages; None: the default one.
    """

    sources: list[Source] = field(default_factory=list)
    pages: Path | None = None
    name: str = field(default_factory=socket.gethostname)
    cores: Cores = field(default_factory=Cores)
    _alive: set[tuple[int, str]] = field(default_factory=set)
    _since: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    _events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def look(self, processes: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """The evidence: dictionaries with process (None: of the host), kind, text and more."""
        made: list[dict[str, Any]] = []
        lines: list[str] = []
        processes = [one for one in processes if one["host"] == self.name]
        waits = self._waits(processes, lines)
        starved = self.cores.read(int(one["pid"]) for one in processes if not one["ended"])
        kept: dict[tuple[int, str], tuple[int, int]] = {}
        for one in processes:
            if one["ended"]:
                continue
            seen = self._state(one, lines)
            if seen is not None:
                made.append({"process": one["number"], **seen, **self._counted(one, seen, kept)})
            made += waits.get(int(one["number"]), [])
            share = starved.get(int(one["pid"]), 0.0) if one["state"] != "?" else 0.0
            if share >= STARVED:
                starving = f"for {percent(share, 0)} of the time"
                text = f"a thread of it was ready to run and had no core {starving}"
                made.append(
                    {"process": one["number"], "kind": "starved", "text": text, "share": share}
                )
        self._since = kept
        for source in self.sources:
            found, more = source.look(processes, made)
            for one in found:
                if one.pop("event", 0):
                    at = time.monotonic() - float(one.pop("age_s", 0.0))
                    self._events = [*self._events, (at, one)][-EVENTS_MAX:]
                else:
                    made.append(one)
            lines += more
        made += self._recent()
        fresh = [line for line in dict.fromkeys(lines) if line not in self._said]
        self._said.update(fresh[:1000])
        return made, fresh

    def _recent(self) -> list[dict[str, Any]]:
        """Recent events of devices, such as an XID, with their age: a job may hang long after."""
        now = time.monotonic()
        self._events = [each for each in self._events if now - each[0] < EVENTS_S]
        return [{**one, "text": f"{one['text']} {now - at:.0f} s ago"} for at, one in self._events]

    def _state(self, one: dict[str, Any], lines: list[str]) -> dict[str, Any] | None:
        """Evidence from /proc; a process counts as gone only if an earlier call saw it."""
        key = (int(one["pid"]), str(one["start_ticks"]))
        ticks = int(key[1]) if key[1].isdecimal() else None
        one["state"] = alive.state_of(key[0], ticks)
        if one["state"]:
            self._alive.add(key)
        elif key not in self._alive:
            one["state"] = "?"
            lines.append(
                f"process {key[0]} is not in /proc: it ended before diagnosis began, or belongs to "
                "another container; its state is not known"
            )
            return None
        return told_of(key[0], one["state"])

    def _counted(
        self,
        one: dict[str, Any],
        seen: dict[str, Any],
        kept: dict[tuple[int, str], tuple[int, int]],
    ) -> dict[str, int]:
        """Since when the process has been in this state, and how many readings showed it."""
        key = (int(one["number"]), str(seen["kind"]))
        since_ns, count = self._since.get(key, (time.time_ns(), 0))
        kept[key] = (since_ns, count + 1)
        return {"since_ns": since_ns, "readings": count + 1}

    def _waits(
        self, processes: list[dict[str, Any]], lines: list[str]
    ) -> dict[int, list[dict[str, Any]]]:
        """Evidence from telemetry pages, by number of the process."""
        try:
            reading = read_pages(self.pages, [int(one["pid"]) for one in processes])
        except telemetry.PageError as error:
            lines.append(f"no telemetry pages: {error}")
            return {}
        lines += reading.problems
        # Pid and start time -> processes with pages. Processes of several containers may have the
        # same ones; then it is not known which of the pages belongs to a trace.
        alike: dict[tuple[int, str], set[str]] = {}
        for page in reading.pages:
            start = page.process_identity.rpartition("-")[2]
            alike.setdefault((page.pid, start), set()).add(page.process_identity)
        numbers: dict[str, int] = {}
        absent = 0
        for process in [each for each in processes if not each["ended"]]:
            named = alike.get((int(process["pid"]), str(process["start_ticks"])), set())
            if len(named) == 1:
                numbers |= dict.fromkeys(named, int(process["number"]))
            absent += len(named) != 1
        if absent:
            lines.append(
                f"{absent} of {len(processes)} processes have no telemetry page in "
                f"{self.pages or telemetry.directory()}: what they wait for is not known"
            )
        found: dict[int, list[dict[str, Any]]] = {}
        everyone = rates(None, reading)
        longest_ns = max(
            (one.wait.ns for one in everyone if one.wait.reason == "receive"), default=0
        )
        for one in everyone:
            if one.process in numbers:
                number = numbers[one.process]
                found.setdefault(number, []).extend(
                    {"process": number, **each} for each in said_of(one, longest_ns)
                )
        return found


def said_of(one: ProcessRates, longest_ns: int) -> list[dict[str, Any]]:
    """Evidence from a telemetry page. longest_ns: the longest wait for a receive on this host."""
    wait = one.wait
    if wait.reason == "engine":
        return [{"kind": "engine", "text": wait.text, "ns": wait.ns}]
    if wait.reason in ("paths", "acknowledgment", "room", "receive", "dead") and wait.ns >= WAIT_NS:
        return [
            {
                "kind": "waits",
                "text": f"its telemetry page says what it waits for: {wait.text}",
                "ns": wait.ns,
                "reason": wait.reason,
            }
        ]
    if wait.reason == "idle" and one.connections and longest_ns >= WAIT_NS:
        text = f"another process of this host has waited {time_text(longest_ns, 2)} for a message"
        return [{"kind": "idle", "text": text, "ns": longest_ns}]
    return []


def told_of(pid: int, state: str) -> dict[str, Any] | None:
    """The evidence that a process is in this state, as ps shows it; None: it runs, or sleeps."""
    if not state:
        return {"kind": "gone", "text": f"there is no process {pid} any more"}
    if state in "ZX":
        return {
            "kind": "zombie",
            "text": f"process {pid} has ended, but its parent has not reaped it (state Z)",
        }
    if state in STATES:
        return {"kind": "stopped", "text": STATES[state]}
    if state == "D":
        return {
            "kind": "disk",
            "text": f"process {pid} waits for a device or a file system (state D)",
        }
    return None
