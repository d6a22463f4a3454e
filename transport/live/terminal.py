"""A terminal whose keys are read one by one; its state is restored on every exit."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Self

from transport.live.keys import KeyParser
from transport.live.signals import Signals

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Terminal:
    """Reads keys from stdin, and collects signals instead of being ended by them."""

    def __init__(self) -> None:
        self._closed = False
        self._parser = KeyParser()
        self._file = sys.stdin.fileno()
        self._signals = Signals((*ENDING, signal.SIGTSTP, signal.SIGWINCH))

    @property
    def ended(self) -> int | None:
        """The signal that asks for the end; SIGHUP if stdin was closed; else None."""
        came = next((each for each in self._signals.came if each in ENDING), None)
        return signal.SIGHUP if came is None and self._closed else came

    @property
    def suspended(self) -> bool:
        """Whether SIGTSTP (Ctrl-Z) came: the process has to stop until SIGCONT."""
        return signal.SIGTSTP in self._signals.came

    def __enter__(self) -> Self:
        self._modes = termios.tcgetattr(self._file)
        self._signals.__enter__()
        tty.setcbreak(self._file, termios.TCSADRAIN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._modes)
        self._signals.__exit__(kind, error, trace)

    def keys(self, until_s: float) -> list[str]:
        """The keys pressed; returns at a key, a signal, or when time.monotonic() is `until_s`."""
        if self.ended is not None or self.suspended:
            return []
        left_s = max(0.0, until_s - time.monotonic())
        ready, _, _ = select.select([self._file, self._signals.wakes], [], [], left_s)
        if self._signals.wakes in ready:
            self._signals.clear()
        if self._file not in ready:
            return []
        try:
            data = os.read(self._file, 1024)
        except OSError:  # the terminal was closed
            data = b""
        self._closed = not data
        return self._parser.feed(data)


def die_of(number: int) -> None:
    """Ends or stops this process by a signal, as if it had not been caught."""
    before = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, before)  # reached after SIGCONT
