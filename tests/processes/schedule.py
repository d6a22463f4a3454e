"""Runs random fault schedules of real processes in a lab, and checks the state at the end.

python -m tests.processes.schedule FIRST LAST runs the seeds and prints those that fail.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.environment import clean_environment
from tests.lab.support import ROOT, unique
from tests.processes.node import DESCRIPTORS_MORE
from tests.waiting import PATIENCE_S, until
from transport.lab import Lab, LabModel

HOSTS, PATHS = 4, 4
ACTIONS = (
    *("stop", "go", "kill", "kill", "fork", "fork", "cut", "cut", "heal", "rest"),
    *("dial", "dial", "close", "abort", "burst", "swap", "swap", "churn"),
)
# Length of a pause; with KNOBS, control sockets on a cut path are closed in this time.
REST_S = 6.0
KNOBS = {
    "WEFT_INTERFACES": "eth0",
    "WEFT_PATHS": "16",
    "WEFT_ENGINES": "1",
    "WEFT_PEER_TIMEOUT": "silence=3s,dead=3s",
    "WEFT_LOG_LEVEL": "error",
}
# The source tree whose library and node script are used; a copy if a mistake is planted.
TREE = os.environ.get("SCHEDULES_TREE", str(ROOT))
# The errors allowed for a connection whose remote process was killed.
DEATHS = {"peer_dead", "connection_closed", "refused", "timed_out"}


class ViolationError(AssertionError):
    """A rule was violated; the message contains the schedule that led to it."""


class Process:
    """A node process and its events."""

    def __init__(self, lab: Lab, host: int) -> None:
        clean = clean_environment()
        self.host = host
        self.child: subprocess.Popen[str] = lab.popen(
            f"host{host}",
            [sys.executable, "-m", "tests.processes.node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=TREE,
            env=clean | KNOBS,
            start_new_session=True,  # so that children of the node can be killed with it
        )
        self.said: list[dict[str, Any]] = []
        self.killed = False
        self.churns = 0
        threading.Thread(target=self._listen, daemon=True).start()
        wait(lambda: bool(self.of("ready")), "a process to be ready")
        self.handle = str(self.of("ready")[0]["handle"])

    def _listen(self) -> None:
        assert self.child.stdout is not None
        for text in self.child.stdout:
            self.said.append(json.loads(text))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [one for one in list(self.said) if one["event"] == event]

    def order(self, **words: Any) -> None:
        assert self.child.stdin is not None
        try:
            self.child.stdin.write(json.dumps(words) + "\n")
            self.child.stdin.flush()
        except BrokenPipeError:
            if not self.killed:
                raise ViolationError(
                    f"a process died by itself with status {self.child.poll()}"
                ) from None

    def signal(self, number: signal.Signals) -> None:
        if self.child.poll() is None:
            self.child.send_signal(number)


def wait(what: Callable[[], bool], name: str) -> None:
    """Waits for an event; a violation of the schedule's rules passes through."""
    try:
        until(what, name)
    except ViolationError:
        raise
    except AssertionError as error:
        raise ViolationError(str(error)) from None


@dataclass
class Dialled:
    """A connection of the schedule: its two processes, and whether it may have ended."""

    number: int
    source: Process
    target: Process
    closed: bool = False

    burst: bool = False  # True: stands for many short connections at once

    @property
    def mortal(self) -> bool:
        return self.source.killed or self.target.killed

    def ended(self) -> dict[str, Any] | None:
        found = [one for one in self.source.of("burst") if one["number"] == self.number]
        return found[0] if found else None

    def failure(self) -> dict[str, Any] | None:
        found = [one for one in self.source.of("failed") if one["number"] == self.number]
        return found[0] if found else None

    def rounds(self) -> int:
        reports = self.source.of("report")
        return int(reports[-1]["rounds"].get(str(self.number), 0)) if reports else 0


@dataclass
class Schedule:
    """Runs one seed: processes on hosts of a lab, random actions, repair, final checks."""

    lab: Lab
    seed: int
    processes: list[Process] = field(default_factory=list)
    dialled: list[Dialled] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)

    def play(self) -> None:
        self.chance = random.Random(self.seed)
        try:
            for host in range(self.chance.randint(2, HOSTS)):
                self.processes.append(Process(self.lab, host))
            for process in list(self.processes):
                self.dial(process)
            for _ in range(self.chance.randint(5, 12)):
                self.act(self.chance.choice(ACTIONS))
                time.sleep(self.chance.random() * 0.5)  # the schedule's own times
            self.make_peace()
            self.reckon()
        except ViolationError as violation:
            raise ViolationError(f"seed {self.seed}: {violation}; {self.told}") from None
        finally:
            self.clear()

    def living(self) -> list[Process]:
        return [one for one in self.processes if not one.killed]

    def dial(self, source: Process, burst: bool = False) -> None:
        others = [one for one in self.living() if one is not source]
        if not others or source.killed:
            return
        target = self.chance.choice(others)
        number = len(self.dialled)
        self.dialled.append(Dialled(number, source, target, burst=burst))
        source.order(do="burst" if burst else "dial", number=number, handle=target.handle)

    def act(self, action: str) -> None:
        process = self.chance.choice(self.living())
        one = self.chance.choice(self.dialled) if self.dialled else None
        self.told.append(f"{action} {process.host}")
        match action:
            case "stop":
                process.signal(signal.SIGSTOP)
            case "go":
                process.signal(signal.SIGCONT)
            case "kill":
                self.kill(process)
            case "fork":
                process.order(do="fork")
            case "cut" | "heal":
                self.change(action)
            case "rest":
                time.sleep(REST_S if self.cut else 0)  # sockets on a cut path are closed meanwhile
            case "dial":
                self.dial(process)
            case "burst":
                if not any(each.burst for each in self.dialled):
                    self.dial(process, burst=True)
            case "churn":
                process.order(do="churn", seed=self.chance.randrange(1 << 32))
                process.churns += 1
            case "abort":
                for each in self.dialled:
                    each.closed = each.closed or each.source is process
                process.order(do="abort")
            case "close":
                if one is not None and not one.source.killed:
                    one.closed = True
                    one.source.order(do="close", number=one.number)
            case "swap":
                if one is not None and not one.source.killed:
                    one.source.order(do="swap", number=one.number, seed=self.chance.random())

    def kill(self, process: Process) -> None:
        """Kills a process; starts a new process if only one is left."""
        process.killed = True
        process.signal(signal.SIGKILL)
        if len(self.living()) < 2 or self.chance.random() < 0.5:
            self.processes.append(Process(self.lab, process.host))
            self.dial(self.processes[-1])

    def change(self, action: str) -> None:
        """Cuts or restores a random link; never cuts all paths of a host."""
        if action == "heal":
            if self.cut:
                link = self.chance.choice(sorted(self.cut))
                self.cut.remove(link)
                self.lab.heal(link)
            return
        host, spine = self.chance.randrange(HOSTS), self.chance.randrange(PATHS)
        # Links of one spine are never cut, so that any two hosts have a path.
        link = f"leaf{host}-spine{spine}"
        if spine != self.seed % PATHS and link not in self.cut:
            self.cut.add(link)
            self.lab.cut(link)

    def make_peace(self) -> None:
        for link in sorted(self.cut):
            self.lab.heal(link)
        self.cut.clear()
        for process in self.living():
            process.signal(signal.SIGCONT)

    def reckon(self) -> None:
        """Checks that healthy connections progress, the others failed, and nothing leaked."""
        bursts = [one for one in self.dialled if one.burst]
        healthy = [one for one in self.dialled if not (one.mortal or one.closed or one.burst)]
        for process in self.living():
            self.await_report(process)
        before = {one.number: one.rounds() for one in healthy}

        for one in healthy:
            self.await_progress(one, before[one.number])
        for one in bursts:
            self.await_burst(one)
        for process in self.living():
            self.await_churns(process)
        for one in self.dialled:
            if not one.mortal or one.source.killed or one.burst:
                continue
            failure = self.await_failure(one)
            if failure["status"] not in DEATHS and not one.closed:
                raise ViolationError(f"a peer was killed, but its connection ended with {failure}")
        for process in self.living():
            process.order(do="end")
        for process in self.living():
            self.bid_farewell(process)

    def await_report(self, process: Process) -> None:
        count = len(process.of("report"))
        process.order(do="report")
        wait(lambda: len(process.of("report")) > count, "a report")

    def await_progress(self, one: Dialled, before: int) -> None:
        def goes_on() -> bool:
            if (failure := one.failure()) is not None:
                raise ViolationError(f"a healthy connection ended: {failure}")
            one.source.order(do="report")
            return one.rounds() > before

        wait(goes_on, f"progress of connection {one.number}")

    def await_burst(self, one: Dialled) -> None:
        if one.source.killed:
            return
        wait(lambda: one.ended() is not None, f"the end of burst {one.number}")
        told = one.ended()
        assert told is not None
        if told["count"] and not one.target.killed:
            raise ViolationError(f"dials to a live process failed: {told}")
        if not set(told["failures"]) <= DEATHS:
            raise ViolationError(f"a peer was killed, but dials to it ended with {told}")

    def await_churns(self, process: Process) -> None:
        def over() -> bool:
            if process.child.poll() is not None:
                raise ViolationError(
                    f"a process ended by itself with status {process.child.returncode}"
                )
            return len(process.of("churned")) == process.churns

        wait(over, "the end of a churn")
        if failures := [one for told in process.of("churned") for one in told["failures"]]:
            raise ViolationError(
                f"a process's dials to itself or its policy changes failed: {failures}"
            )

    def await_failure(self, one: Dialled) -> dict[str, Any]:
        wait(lambda: one.failure() is not None, f"the end of connection {one.number}")
        failure = one.failure()
        assert failure is not None
        return failure

    def bid_farewell(self, process: Process) -> None:
        try:
            process.child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise ViolationError("a process did not end after it was told to") from None
        assert process.child.stderr is not None
        if process.child.returncode != 0:
            raise ViolationError(
                f"node status {process.child.returncode}: {process.child.stderr.read()[-2000:]}"
            )
        if wrong := process.of("wrong"):
            raise ViolationError(f"messages arrived with wrong bytes: {wrong}")
        wait(lambda: bool(process.of("ended")), "the last event of a process")
        grown = process.of("ended")[0]["descriptors"] - process.of("ready")[0]["descriptors"]
        if grown > DESCRIPTORS_MORE:
            raise ViolationError(f"a process has {grown} more descriptors open than at its start")

    def clear(self) -> None:
        self.make_peace()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.child.pid, signal.SIGKILL)  # with its forked children
            process.child.wait(PATIENCE_S)
            for pipe in (process.child.stdin, process.child.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()


def play(lab_name: str, seeds: range) -> list[str]:
    """Runs the seeds one after the other, in a lab of this process; returns the violations."""
    found = []
    with Lab(LabModel(hosts=HOSTS, spines=PATHS), name=unique(lab_name)) as lab:
        for seed in seeds:
            try:
                Schedule(lab, seed).play()
            except ViolationError as violation:
                found.append(str(violation))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--until", type=Path, help="stop at the first failure and create this file")
    options = parser.parse_args()
    begin = time.monotonic()
    played = failures = 0
    for seed in range(options.first, options.last + 1):
        if options.until is not None and options.until.exists():
            break
        played += 1
        for violation in play("seed", range(seed, seed + 1)):
            failures += 1
            print(violation, flush=True)
            if options.until is not None:
                options.until.touch()
    print(f"{played} schedules, {failures} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
