"""Starts the processes of an experiment, placed and pinned, and ends them with it.

A worker is a function that communicates through a mailbox.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from typing import Any

import click

from bench.lib.placement import Placement

PATIENCE_S = 60.0
PR_SET_PDEATHSIG = 1
PRELOADED = [
    *("bench.lib.deaf", "transport.endpoint.endpoint", "numpy.random"),
    *("bench.lib.channels", "bench.lib.collective", "bench.lib.launch", "bench.lib.traffic"),
]

Config = dict[str, Any]


class Mailbox:
    """A worker's side of the pipe to the experiment."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    def tell(self, kind: str, value: Any = None) -> None:
        self._pipe.send((kind, value))

    def hear(self, kind: str, patience_s: float = PATIENCE_S) -> Any:
        return _expect(self._pipe, kind, patience_s, RuntimeError)


Worker = Callable[[Mailbox, Placement, Config], None]


def die_with_parent() -> None:
    """Makes the kernel kill this program when the process that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _die_with(experiment: int) -> None:
    """Kills this process when the process `experiment` ends, which need not be its parent."""
    try:
        watched = os.pidfd_open(experiment)
    except ProcessLookupError:
        os._exit(1)
    poll = select.poll()
    poll.register(watched, select.POLLIN)

    def wait() -> None:
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _live(worker: Worker, place: Placement, pipe: Pipe, config: Config, experiment: int) -> None:
    try:
        place.take()
        _die_with(experiment)  # after take(): the thread that this call starts inherits the cores
        worker(Mailbox(pipe), place, config)
    except Exception as error:  # every error is reported to the experiment
        with contextlib.suppress(OSError):
            pipe.send(("failed", f"{type(error).__name__}: {error}"))


def _expect(pipe: Pipe, kind: str, patience_s: float, failure: type[Exception]) -> Any:
    if not pipe.poll(patience_s):
        raise failure(f"no '{kind}' message from the other process within {patience_s:.0f} s")
    try:
        said, value = pipe.recv()
    except (EOFError, OSError):
        raise failure("the other process ended early") from None
    if said != kind:
        raise failure(str(value))
    return value


@dataclass
class _Member:
    place: Placement
    process: BaseProcess
    pipe: Pipe


class Gang:
    """The workers of one experiment: one process for each given placement."""

    def __init__(
        self, worker: Worker, places: Sequence[Placement], configs: Sequence[Config]
    ) -> None:
        # The fork server has imported everything, so that a process forked from it starts at once.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._members: list[_Member] = []
        try:
            for place, config in zip(places, configs, strict=True):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_live, args=(worker, place, theirs, config, os.getpid()), daemon=True
                )
                process.start()
                theirs.close()
                self._members.append(_Member(place, process, ours))
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> Gang:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def gather(self, kind: str, patience_s: float = PATIENCE_S) -> list[Any]:
        """Receives the next message of every worker; it must be of the given kind."""
        until = time.monotonic() + patience_s
        found = []
        for member in self._members:
            left_s = max(until - time.monotonic(), 0.0)
            try:
                found.append(_expect(member.pipe, kind, left_s, RuntimeError))
            except RuntimeError as error:
                raise click.ClickException(f"process {member.place.name}: {error}") from None
        return found

    def introduce(self) -> None:
        """Gives the address of the first worker, a server, to the others."""
        address = _expect(self._members[0].pipe, "address", PATIENCE_S, click.ClickException)
        for member in self._members[1:]:
            member.pipe.send(("address", address))

    def tell(self, kind: str, value: Any = None) -> None:
        """Sends a message to every worker."""
        for member in self._members:
            member.pipe.send((kind, value))

    def end(self) -> None:
        """Waits for all workers and kills those that do not end."""
        until = time.monotonic() + 3.0
        for member in self._members:
            member.process.join(max(until - time.monotonic(), 0.0))
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            member.pipe.close()
        self._members.clear()

    def kill(self) -> None:
        """Kills all workers without waiting for them to finish."""
        for member in self._members:
            member.process.kill()
        self.end()


@contextlib.contextmanager
def gang(worker: Worker, places: Sequence[Placement], configs: Sequence[Config]) -> Iterator[Gang]:
    """A gang that is killed at once when the experiment fails or is interrupted."""
    made = Gang(worker, places, configs)
    try:
        yield made
    except BaseException:
        made.kill()
        raise
    made.end()


@contextlib.contextmanager
def program(command: Sequence[str], place: Placement) -> Iterator[subprocess.Popen[str]]:
    """Runs a foreign program in a placement; kills it if it still runs when the `with` ends."""

    def before() -> None:
        die_with_parent()
        place.take()

    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=before,
        process_group=0,  # the experiment handles Ctrl-C
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
