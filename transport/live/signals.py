"""Collects signals instead of being ended by them, and wakes a select() when one comes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from types import FrameType, TracebackType
from typing import Any, Self


class Signals:
    """Within a `with`: appends each signal to `came` and makes the descriptor `wakes` readable.

    Any thread of the process may get a signal, so the main thread cannot wait for it by
    sigwait(): libraries start threads that do not block it.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.came: list[int] = []
        self._numbers = tuple(numbers)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self.wakes, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        for number in self._numbers:
            self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before)
        os.close(self._wakeup)
        os.close(self.wakes)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.came.append(number)

    def clear(self) -> None:
        """Makes `wakes` unreadable until the next signal."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wakes, 4096)
