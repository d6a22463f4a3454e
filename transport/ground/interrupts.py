"""Ends programs at Ctrl-C, also where it comes in libraries that run Python code from C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

INTERRUPTED = 130  # exit status after Ctrl-C, as in a shell
Result = TypeVar("Result")


def end_at_interrupt() -> None:
    """Lets Ctrl-C end this program, from now on, with one line on stderr and status 130.

    A second Ctrl-C does not interrupt the `finally` blocks that the first one runs. A program that
    ignores SIGINT, as in the background of a shell, goes on to do so.
    """

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.write(2, b"interrupted\n")  # print() fails if the signal came within another print()
        sys.exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Holds SIGINT back inside the `with`; it is handled at its end.

    LLVM calls Python functions, and an exception such as KeyboardInterrupt in them is printed and
    dropped.
    """
    came: list[int] = []
    with _handling(lambda number, _: came.append(number)):
        yield
    if came:
        signal.raise_signal(signal.SIGINT)


def with_interrupts(work: Callable[[], Result]) -> Result:
    """Returns what `work` returns. KeyboardInterrupt if it fails after Ctrl-C.

    DuckDB turns Ctrl-C into errors of its own: RuntimeError, or one about invalid input.
    """
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return work()
    with _handling(handle):
        try:
            return work()
        except Exception:
            if came:
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _handling(handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handles SIGINT with `handle` inside the `with`, in the main thread; elsewhere nothing is
    changed, as only the main thread handles signals."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is handle:  # else the body has set its own
            signal.signal(signal.SIGINT, before)
