"""Splits the random events for a policy's check into portions that two processes work on.

The portions are the same on any machine, and their results are merged in order.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from congestion.api import Policy
from transport.compiler.library import Library
from transport.conformance.equality import Bout, Trial

PORTIONS = 16
LEAST = 2_000  # minimum number of events of a portion
SEED_STEP = 1_000_003  # so large that runs with consecutive seeds share no portion


class Portions:
    """Tests a policy on random events, in portions that this process and a helper process share.

    The helper process runs while the context is open.
    """

    def __init__(
        self,
        policy: Policy,
        libraries: dict[str, Library],
        seed: int,
        events: int,
        progress: Callable[[int], None] = lambda events: None,
        helpers: int | None = None,
    ) -> None:
        self.policy, self.libraries, self.seed = policy, libraries, seed
        self.count = max(min(PORTIONS, events // LEAST), 1)
        self.events = -(-events // self.count)
        self.progress = progress
        cores = len(os.sched_getaffinity(0))
        # Python does not let a daemonic process start processes.
        alone = cores < 2 or multiprocessing.current_process().daemon
        self.helpers = (0 if alone else 1) if helpers is None else helpers
        self.done: dict[int, Trial] = {}
        # fork: the helper inherits the compiled code and the policy.
        self._fork = multiprocessing.get_context("fork")
        self._next: Any = self._fork.Value("q", 0)
        self._heard: Connection | None = None
        self._helper: Any = None

    def __enter__(self) -> Portions:
        if self.helpers and self.count > 1:
            self._heard, told = self._fork.Pipe(duplex=False)
            self._helper = self._fork.Process(target=self._help, args=(told,), daemon=True)
            with warnings.catch_warnings():
                # Python warns of fork() with threads. It is safe here: no lock of a thread is used.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._helper.start()
            told.close()
        return self

    def __exit__(self, *reason: object) -> None:
        if self._helper is not None:
            self._helper.terminate()
            self._helper.join()
            self._helper.close()
            self._helper = None
        if self._heard is not None:
            self._heard.close()
            self._heard = None

    def take(self) -> int | None:
        """Claims the number of the next portion that neither process has begun; None: no more."""
        with self._next.get_lock():
            number = int(self._next.value)
            self._next.value = number + 1
        return number if number < self.count else None

    def play(self, number: int) -> Trial:
        # The first portion uses the given seed itself, so that its failures are easy to reproduce.
        bout = Bout(self.policy, self.libraries, self.seed + number * SEED_STEP)
        return bout.run(self.events)

    def _help(self, told: Connection) -> None:
        """The main loop of the helper process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates the helper
        while (number := self.take()) is not None:
            told.send((number, self.play(number)))
        told.close()

    def hear(self) -> bool:
        """Receives one portion from the helper process; False if no more will come."""
        try:
            if self._heard is None:
                return False
            number, trial = self._heard.recv()
        except (EOFError, OSError):
            return False
        self.note(number, trial)
        return True

    def note(self, number: int, trial: Trial) -> None:
        self.done[number] = trial
        self.progress(sum(one.events for one in self.done.values()))

    def trial(self) -> Trial:
        """Plays portions until interpreted and compiled results differ; returns all merged."""
        while (number := self.take()) is not None:
            self.note(number, self.play(number))
            while self._heard is not None and self._heard.poll() and self.hear():
                pass
            if any(one.wrong for one in self.done.values()):
                break
        else:
            while len(self.done) < self.count and self.hear():
                pass
            for number in sorted(set(range(self.count)) - set(self.done)):
                self.note(number, self.play(number))  # the helper process ended early
        whole = Trial()
        for number in sorted(self.done):
            whole.add(self.done[number])
        return whole
